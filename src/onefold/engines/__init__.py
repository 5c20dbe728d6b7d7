"""Private: queues and records on SQLite, AWS, Redis, PostgreSQL and in memory. May change with any release."""
