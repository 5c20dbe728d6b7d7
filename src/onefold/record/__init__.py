"""Private: the guard's rules, as pure functions. May change with any release."""
