"""Whether what should exist after a run exists, once: looked at later, or by hand.

Imports `run` and below. Nothing here sends the missing again: that is `admin/repair.py`, and a person's decision.
"""
