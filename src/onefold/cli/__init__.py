"""Private: the commands, which call `admin` and print. Can change with any release."""
