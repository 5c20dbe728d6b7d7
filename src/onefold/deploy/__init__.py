"""Private: plans, templates and packages for AWS. May change with any release."""
