"""Private: what an operator can do, in plain values. May change with any release."""
