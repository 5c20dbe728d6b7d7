"""Private: facts read from templates, for finding settings that are allowed but harmful. May change with any release."""
