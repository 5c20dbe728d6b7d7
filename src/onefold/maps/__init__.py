"""Map runs: a job for each item of a file or listing, worked through to its end or to its tolerated failures.

Imports `run` and below. What is tried again, tolerated or caught is decided in `maps/rules.py`; how results are written
in `maps/results.py`.
"""
