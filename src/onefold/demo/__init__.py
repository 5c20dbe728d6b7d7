"""Private: the demos. May change with any release."""
