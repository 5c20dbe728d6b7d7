"""Private: the local SQS, and Lambda functions and event source mappings on this machine. May change in any release."""
