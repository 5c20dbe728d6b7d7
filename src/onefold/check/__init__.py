"""Private: what of an app or template is legal and will hurt. May change with any release."""
