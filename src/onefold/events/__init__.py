"""Events: buses with rules, archives and replays, and pipes from queue to queue.

Imports `run` and below. Which rule an event matches is decided in `events/routing.py`.
"""
