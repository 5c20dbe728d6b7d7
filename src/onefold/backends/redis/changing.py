"""Records changed by compare-and-set: the rules stay in Python, the server compares stamps.

Two ways to be atomic on Redis: write the rules once more in Lua, or keep them in `contracts/transitions.py` and let a
script that knows none of them replace what nobody has changed since it was read. This is the second, because the rules
are the hard part and exist once. It costs no round trip more. The script answers a refused change with what stands
there, so a wrong guess about a record is a read, and the usual guesses are right: a claim guesses that there is no
record, everything after it that the record is as this process left it.

    first delivery: claim 1 call, write 1 call, for one record or for a hundred    duplicate: 1 call    takeover: 2 calls

Of those who race for a record the server takes one; each of the others has the winner's record in its answer, and most
need nothing more. An answer that changes nothing is given only from what the server said, never from a guess.

Never here: rules, verbs. Invariant: a record goes from what the step saw to what the step made of it, or stays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct

from onefold import errors, forks, limits
from onefold.backends.redis.names import SHELVES, Names, job_place, shelf
from onefold.backends.redis.rows import ABSENT, Standing, decode, encode
from onefold.backends.redis.scripts import CHANGE
from onefold.backends.redis.server import Server
from onefold.contracts.store import Record, RecordKey

if TYPE_CHECKING:
    from onefold.outside import Entropy

LISTED_MAX: Final = 10_000  # records per shelf: ten times what any command of ours asks for
GRACE_MS: Final = limits.DAY_MS  # as on DynamoDB: far beyond any skew between the clocks of hosts and server
COUNTED_MS: Final = limits.DAY_MS + 2 * limits.MINUTE_MS  # contracts/admin.py: a day; whole minutes at both ends
RECORDS_PER_CALL: Final = 100  # about a millisecond of the server's only thread
REFUSALS_MAX: Final = 50  # of one step; each means that somebody else's change was taken meanwhile
_GUESSES_MAX: Final = 4_096  # records this process is in the middle of

_T = TypeVar("_T")
Step = Callable[[Record | None], tuple[_T, Record | None]]
"""What stands -> the answer, and the record it leaves behind (None: unchanged)."""


class _Change(Struct, frozen=True, gc=False):
    """One record's part of a call: the stamp it came from and what shall stand; `after` None: just read."""

    key: RecordKey
    before: Standing
    after: Standing


_READ: Final = ABSENT


class Changing:
    """Steps on records, each applied to what really stands.

    Args:
        server, names: where. entropy: draws the stamps.
    """

    def __init__(self, server: Server, names: Names, entropy: Entropy) -> None:
        self._server = server
        self._names = names
        self._entropy = entropy
        self._guesses: dict[RecordKey, Standing] = {}
        self._lock = threading.Lock()
        forks.in_child(self._start_anew)

    def _start_anew(self) -> None:
        """In a forked child: nothing guessed, and a lock that no thread of the parent's has."""
        self._guesses, self._lock = {}, threading.Lock()

    def standing(self, keys: Sequence[RecordKey]) -> list[Standing]:
        """What stands under these keys, in one round trip."""
        values = self._server.values([self._names.record(key) for key in keys])
        return [decode(key, value) for key, value in zip(keys, values, strict=True)]

    def apply(
        self, steps: Sequence[tuple[RecordKey, Step[_T]]], now_ms: int | None, guess: Standing | None
    ) -> list[_T]:
        """Take each step, in order where two have one key; the answers in order.

        Args:
            now_ms: for lives and counts; None for verbs that are not told the time and complete nothing.
            guess: what is probably there when this process does not know; None: look first.

        Raises:
            TransientError: others kept changing the same record.
        """
        answers: dict[int, _T] = {}
        seen: dict[RecordKey, Standing] = {}
        refused = 0
        while len(answers) < len(steps):
            turn = self._turn(steps, answers)
            changes: dict[int, _Change] = {}
            made: dict[int, _T] = {}
            for number in turn:
                key, step = steps[number]
                before = seen.get(key) or self._guesses.get(key) or guess
                if before is not None:
                    made[number], after = step(before.record)
                    if after is not None:
                        changes[number] = _Change(key, before, Standing(self._entropy.token().encode(), after))
                        continue
                    if key in seen:
                        answers[number] = made[number]
                        continue
                changes[number] = _Change(key, ABSENT, _READ)
            for number, stands in self._call(changes, now_ms).items():
                took = changes[number].after.record is not None and stands is changes[number].after
                if took:
                    answers[number] = made[number]
                seen[changes[number].key] = stands
                refused += not took
            if refused > REFUSALS_MAX * len(steps):
                raise errors.TransientError(
                    f"A record was changed {REFUSALS_MAX} times by others before its own turn came.",
                    meaning="Nothing of this step was written.",
                    todo="Try again.",
                )
        return [answers[number] for number in range(len(steps))]

    def _turn(self, steps: Sequence[tuple[RecordKey, Any]], answers: dict[int, Any]) -> list[int]:
        """The first unanswered step of each key, as many as one call takes."""
        first: dict[RecordKey, int] = {}
        for number, (key, _) in enumerate(steps):
            if number not in answers:
                first.setdefault(key, number)
                if len(first) == RECORDS_PER_CALL:
                    break
        return list(first.values())

    def _call(self, changes: dict[int, _Change], now_ms: int | None) -> dict[int, Standing]:
        """Ask the server for these changes; what stands afterwards, a change's own `after` where it took."""
        if not changes:
            return {}
        names = self._names
        minute = 0 if now_ms is None else now_ms // limits.MINUTE_MS
        keys = [names.jobs, names.completed(minute), *names.shelves]
        arguments: list[Any] = [len(SHELVES), LISTED_MAX, COUNTED_MS, len(names.records.encode())]
        for change in changes.values():
            keys.append(names.record(change.key))
            arguments += _arguments(change, now_ms)
        replies = self._server.run(CHANGE, keys, arguments, repeatable=True)
        stands: dict[int, Standing] = {}
        for (number, change), reply in zip(changes.items(), replies, strict=True):
            stands[number] = change.after if reply == 1 else decode(change.key, reply)
            self._keep(change.key, stands[number] if reply == 1 else ABSENT)
        return stands

    def _keep(self, key: RecordKey, stands: Standing) -> None:
        """Remember how this process left a record, if it will come back to it."""
        record = stands.record
        with self._lock:
            self._guesses.pop(key, None)
            if record is not None and (record.status == "in_progress" or record.outbox):
                self._guesses[key] = stands
                if len(self._guesses) > _GUESSES_MAX:
                    del self._guesses[next(iter(self._guesses))]


def _arguments(change: _Change, now_ms: int | None) -> list[Any]:
    """One change as the script wants it."""
    before, after = change.before.record, change.after.record
    if after is None:
        return ["", "", 0, 0, 0, 0, "", ""]
    stood = 0 if before is None else shelf(before) + 1
    moved = before is None or (stood, before.updated_at_ms) != (shelf(after) + 1, after.updated_at_ms)
    completed = after.status == "completed" and before is not None and before.status != "completed"
    return [
        change.before.stamp,
        encode(after, change.after.stamp),
        _life_ms(after, after.updated_at_ms if now_ms is None else now_ms),
        stood,
        shelf(after) + 1 if moved else 0,
        after.updated_at_ms,
        job_place(after.key) if before is None else "",
        f"{after.updated_at_ms // limits.SECOND_MS}|{after.key.job}" if completed else "",
    ]


def _life_ms(record: Record, now_ms: int) -> int:
    """How long Redis keeps a record, counted from the caller's now; 0: until a person settles it.

    A length, not an instant, so that the server's clock does not matter. It only frees memory: what counts as expired is
    decided by instants. Without a now (renew) it is counted from the last change, which is longer.
    """
    if record.expires_at_ms is None:
        return 0
    until_ms = (
        max(record.expires_at_ms, record.lease_until_ms) if record.status == "in_progress" else record.expires_at_ms
    )
    return max(until_ms - now_ms, 0) + GRACE_MS
