"""Private: the operations of queues and stores as protocols, and their values. May change with any release."""
