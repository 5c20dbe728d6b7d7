"""The operator's view of the records on Redis: lists by status, search by key, settling, counts.

The script that changes a record moves it from shelf to shelf (`scripts.py`): one sorted set per status, newest change
first, and one for what is parked. A shelf names the newest 10,000 of its records, so it needs no sweep; the parked ones
are all there. A name on a shelf whose record has gone, or stands elsewhere since, is passed over. A key is looked for
under every job that ever had a record, so no list per key is kept.

Never here: rules, hot paths. Invariant: what is listed is read from the record itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from heapq import merge, nlargest
from itertools import islice

from onefold import limits
from onefold.backends.redis.changing import Changing, Step
from onefold.backends.redis.names import SHELVES, Names, key_at, shelf
from onefold.backends.redis.server import Server
from onefold.contracts import transitions
from onefold.contracts.store import Record, RecordKey, Status

_PAGE = 500


class RedisRecords:
    """The RecordAdmin contract on one server.

    Args:
        server, names: where. changing: its records.
    """

    def __init__(self, server: Server, names: Names, changing: Changing) -> None:
        self._server = server
        self._names = names
        self._changing = changing

    def scan(self, *, status: Status | None = None, parked: bool | None = None, limit: int = 100) -> list[Record]:
        """Records, newest change first; of each status the newest 10,000 at most, of the parked ones all."""
        shelves = [number for number, name in enumerate(SHELVES) if _shows(name, status, parked)]
        places = merge(*(self._places(number) for number in shelves), reverse=True)
        found: dict[RecordKey, Record] = {}
        while len(found) < limit:
            page = [(key_at(text), number) for _, text, number in islice(places, min(limit, _PAGE))]
            if not page:
                break
            for (key, number), standing in zip(page, self._changing.standing([key for key, _ in page]), strict=True):
                if standing.record is not None and shelf(standing.record) == number:
                    found.setdefault(key, standing.record)
        return list(found.values())[:limit]

    def _places(self, number: int) -> Iterator[tuple[float, str, int]]:
        """What a shelf names, newest change first, page by page: when, the place, the shelf."""
        first = 0
        while True:
            start, stop = first, first + _PAGE - 1
            rows = self._server.ask(
                lambda client: client.zrevrange(self._names.shelves[number], start, stop, withscores=True),  # noqa: B023
                repeatable=True,
            )
            yield from ((at_ms, text.decode(), number) for text, at_ms in rows)
            if len(rows) < _PAGE:
                return
            first += _PAGE

    def find(self, key: str, limit: int = 20) -> list[Record]:
        """Records whose business key is exactly `key`, newest change first: one read per job and scope ever seen."""
        found: dict[RecordKey, Record] = {}
        for jobs in self._server.members(self._names.jobs, _PAGE):
            keys = [key_at(f"{job.decode()}|{key}") for job in jobs]
            standing = [one.record for one in self._changing.standing(keys) if one.record is not None]
            found |= {record.key: record for record in standing}
            newest = nlargest(limit, found.values(), key=lambda record: record.updated_at_ms)
            found = {record.key: record for record in newest}
        return list(found.values())

    def settle(
        self,
        key: RecordKey,
        *,
        done: bool,
        result: bytes,
        now_ms: int,
        expires_at_ms: int,
        corrects: bytes | None = None,
    ) -> bool:
        """End a parked record by a person's word, or correct a result; False when it is neither (any more)."""

        def step(record: Record | None) -> tuple[bool, Record | None]:
            after = transitions.settle(
                record, done=done, result=result, now_ms=now_ms, expires_at_ms=expires_at_ms, corrects=corrects
            )
            return after is not None, after

        steps: list[tuple[RecordKey, Step[bool]]] = [(key, step)]
        (settled,) = self._changing.apply(steps, now_ms, None)
        return settled

    def count_completed(self, since_ms: int, now_ms: int) -> dict[str, int]:
        """Runs completed in [since_ms, now_ms) per job; the seconds that both ends fall in count as a whole."""
        first, last = since_ms // limits.SECOND_MS, (now_ms - 1) // limits.SECOND_MS
        oldest = (now_ms - limits.DAY_MS) // limits.SECOND_MS  # nothing is kept for longer
        minutes = range(max(first, oldest) // 60, last // 60 + 1)
        counts: Counter[str] = Counter()
        for fields in self._server.each("HGETALL", [self._names.completed(minute) for minute in minutes]):
            for field, count in fields.items():
                second, job = field.decode().split("|", 1)
                if first <= int(second) <= last:
                    counts[job] += int(count)
        return dict(counts)


def _shows(name: str, status: Status | None, parked: bool | None) -> bool:
    """Whether a shelf holds records of this status and parking."""
    of_status = status is None or name == status or (name == "parked" and status == "unknown")
    return of_status and (parked is None or parked == (name == "parked"))
