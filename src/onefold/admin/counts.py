"""`counts`: what handlers counted with `ctx.count`, added up by day, job and counter.

The numbers come from the history rows of completed runs, so a run that failed, was retried, or was answered from its record
counts nothing. On SQLite and PostgreSQL the row is written in the transaction of the record. Where records and history are
written one after the other (Redis, DynamoDB without a transaction), a process that dies in between leaves a completed run
without its row: a sum can then be too small, but never too large.
Never here: output; counting by anything but rows. Invariant: reading changes nothing.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, tzinfo

from msgspec import Struct

from onefold.admin.days import TimeRange
from onefold.admin.session import AdminSession
from onefold.contracts.ledger import counts_of
from onefold.observe.readings import rows
from onefold.zones import zone_of


class OutcomeCount(Struct, frozen=True, kw_only=True):
    """One counter of one job on one day.

    Args:
        day: for example `2026-11-23`, in the zone of the range. job, name: those of the counter.
        total: the sum. runs: how many completed runs counted it.
    """

    day: str
    job: str
    name: str
    total: int
    runs: int


def counted(session: AdminSession, when: TimeRange, job: str | None = None) -> list[OutcomeCount]:
    """The counters of a range of time, by day, job and name.

    Args:
        when: from `days.range_of`. job: only counters of this job.
    """
    zone = zone_of(when.zone)
    totals: Counter[tuple[str, str, str]] = Counter()
    runs: Counter[tuple[str, str, str]] = Counter()
    for row in rows(session.engine.ledger, when.from_ms, when.to_ms):
        if row.event == "completed" and row.key is not None and job in (None, row.key.job):
            for name, count in counts_of(row.detail).items():
                cell = (_day(row.at_ms, zone), row.key.job, name)
                totals[cell] += count
                runs[cell] += 1
    return [
        OutcomeCount(day=day, job=of, name=name, total=totals[day, of, name], runs=runs[day, of, name])
        for day, of, name in sorted(totals)
    ]


def _day(at_ms: int, zone: tzinfo) -> str:
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC).astimezone(zone).date().isoformat()
