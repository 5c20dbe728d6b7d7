"""Schedules as they are declared, and the embedded scheduler that sends their ticks.

Imports `run` and below. When a tick is due is decided in `schedules/ticks.py`; what a dispatcher yields goes through
`run/dispatcher.py`.
"""
