"""Private: Lambda functions and event source mappings on this machine. May change with any release."""
