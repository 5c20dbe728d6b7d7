"""Private: the things that a process opens: engine, clock, random numbers, sinks. May change with any release."""
