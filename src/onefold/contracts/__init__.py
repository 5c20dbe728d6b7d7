"""Private: the verbs of a queue and a store, and the values that travel. May change with any release."""
