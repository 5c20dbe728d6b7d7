"""Private: what is opened: engine, clock, chance, sinks. May change with any release."""
