"""Private: the local SQS. May change with any release."""
