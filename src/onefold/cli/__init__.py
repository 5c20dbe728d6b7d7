"""Private: the commands, thin faces of `admin`. May change with any release."""
