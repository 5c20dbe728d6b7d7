"""Private: the guard's rules, pure. May change with any release."""
