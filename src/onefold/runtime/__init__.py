"""Private: what a process opens: engine, clock, random numbers, sinks. May change with any release."""
