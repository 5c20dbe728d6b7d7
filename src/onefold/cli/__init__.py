"""Private: the commands, which call `admin` and print. May change with any release."""
