"""What it costs to see what goes on: alarms evaluated over many queues."""
