"""Private: facts read from templates, and rules that find harmful settings among them. May change with any release."""
