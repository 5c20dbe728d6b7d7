"""Checks, some time after a run or when asked to, that what should exist exists exactly once.

Imports `runner` and below. Nothing here resends missing messages: `admin/reconcile.py` does, when a person decides so.
The names here are loaded when they are first used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onefold import lazy

if TYPE_CHECKING:
    from onefold.reconcile.counts import Counted, Totals
    from onefold.reconcile.reconciler import Reconciler, Reconciliation
    from onefold.reconcile.reconciler import declare as declare

__all__ = ["Counted", "Reconciler", "Reconciliation", "Totals"]

__getattr__: Callable[[str], Any] = lazy.attributes(
    __name__,
    {
        "Counted": "onefold.reconcile.counts",
        "Totals": "onefold.reconcile.counts",
        "Reconciler": "onefold.reconcile.reconciler",
        "Reconciliation": "onefold.reconcile.reconciler",
        "declare": "onefold.reconcile.reconciler",
    },
)
