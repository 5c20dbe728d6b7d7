"""Moves: conditional writes that are decided anew when the item was not as expected, until they stand or are refused.

A move begins with a write that is right in the usual case and needs no read. When it is refused, the item that stands
there is taken from the refusal (or read, where the answer holds none), `decide` says what is to be made of it, and that is
written on the condition that no one has written since: every write leaves its own `stamp`. So a lost answer is no loss
either: a refusal that shows a stamp of this very move means that an earlier try took.

Never here: what is decided. Invariant: an answer other than an error is what stood, or stands now, in the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from onefold import errors
from onefold.backends.aws.dynamodb.items import item_of, place_of, record_of, stamp_of
from onefold.backends.aws.dynamodb.table import STATEMENTS_MAX, Refused
from onefold.backends.aws.dynamodb.writes import Insert, changed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from onefold.backends.aws.dynamodb.items import Item, Layout
    from onefold.backends.aws.dynamodb.table import Table
    from onefold.backends.aws.dynamodb.writes import Write
    from onefold.contracts.store import Record, RecordKey

A = TypeVar("A")
About = tuple[str | None, str] | tuple[int, str]  # what a rider tells; see `notes.py`
ROUNDS_MAX: Final = 10  # losing this often in a row needs as many others that won in between


class Move(Generic[A]):
    """One operation's change.

    Args:
        key: the operation.
        layout: of the table.
        first: makes the usual write for a stamp; None reads first.
        won: the answer when that write takes.
        decide: the answer for what stands there, and what is to stand there instead (None: it stays).
    """

    __slots__ = ("answer", "decide", "first", "key", "layout", "place", "read", "sent", "standing", "write")

    def __init__(
        self,
        key: RecordKey,
        layout: Layout,
        first: Callable[[str], Write] | None,
        won: A,
        decide: Callable[[Record | None], tuple[A, Record | None]],
    ) -> None:
        self.key = key
        self.layout = layout
        self.place = place_of(key, layout)
        self.first = first
        self.decide = decide
        self.sent: dict[str, A] = {}  # stamp: the answer when that write took
        self.answer: A = won
        self.write: Write | None = None
        self.standing: Item | None = None  # what was last seen there; empty: nothing
        self.read = first is None

    def begin(self, stamp: str) -> None:
        """Prepare the usual write."""
        if self.first is not None:
            self.write = self.first(stamp)
            self.sent[stamp] = self.answer

    def go_on(self, stamp: str) -> bool:
        """Decide about what stands; True when another write is to be made."""
        item = self.standing
        assert item is not None
        self.write = None
        if (earlier := stamp_of(item)) in self.sent:
            self.answer = self.sent[earlier]
            return False
        self.answer, after = self.decide(record_of(item) if item else None)
        if after is None:
            return False
        target = item_of(after, stamp, self.layout)
        self.write = changed(self.place, item, target) if item else Insert(target)
        self.sent[stamp] = self.answer
        return True


class Rider:
    """An item that is written along with moves, if there is room in their calls, and of which no answer depends.

    Args:
        write: with a place of its own.
        about: what it tells, for the one who made it.

    Attributes:
        written: whether it stands now.
    """

    __slots__ = ("about", "write", "written")

    def __init__(self, write: Insert, about: About) -> None:
        self.write = write
        self.about = about
        self.written = False


def make(table: Table, moves: Sequence[Move[A]], riders: Sequence[Rider] = ()) -> list[A | errors.OnefoldError]:
    """Make moves of different operations; the answer or the error of each. Raises nothing of its own."""
    token = table.entropy.token()
    failed: dict[int, errors.OnefoldError] = {}
    left = list(range(len(moves)))
    for place in left:
        moves[place].begin(f"{token}.{place}")
    for number in range(1, ROUNDS_MAX + 1):
        left = _round(table, moves, left, failed, riders if number == 1 else ())
        try:
            _read(table, [moves[place] for place in left])
        except errors.OnefoldError as error:
            failed |= dict.fromkeys(left, error)
            left = []
        going = []
        for place in left:
            try:
                if moves[place].go_on(f"{token}.{place}.{number}"):
                    going.append(place)
            except errors.OnefoldError as error:
                failed[place] = error
        left = going
        if not left:
            break
    failed |= {place: _contended(moves[place].key) for place in left}
    return [failed.get(place, move.answer) for place, move in enumerate(moves)]


def _round(
    table: Table,
    moves: Sequence[Move[A]],
    left: Sequence[int],
    failed: dict[int, errors.OnefoldError],
    riders: Sequence[Rider],
) -> list[int]:
    """Make the writes that are prepared; the places of those that go on."""
    going = [place for place in left if moves[place].write is None]
    writing = [(place, write) for place in left if (write := moves[place].write) is not None]
    if not writing:
        return going
    aboard = riders[: -len(writing) % STATEMENTS_MAX]  # what the last call has room for
    answers = table.write([write for _, write in writing], [rider.write for rider in aboard])
    for rider, answer in zip(aboard, answers[len(writing) :], strict=True):
        rider.written = not isinstance(answer, errors.OnefoldError)
    for (place, _), answer in zip(writing, answers[: len(writing)], strict=True):
        if isinstance(answer, errors.OnefoldError):
            failed[place] = answer
        elif isinstance(answer, Refused):
            moves[place].standing = answer.item
            moves[place].read = answer.item is None
            going.append(place)
    return sorted(going)


def _read(table: Table, moves: Sequence[Move[A]]) -> None:
    """Look at what stands where the refusal did not say."""
    unread = [move for move in moves if move.read]
    if not unread:
        return
    found = {(item["pk"]["S"], item["sk"]["S"]): item for item in table.get_all([move.place for move in unread])}
    for move in unread:
        move.standing = found.get((move.place["pk"]["S"], move.place["sk"]["S"]), {})
        move.read = False


def _contended(key: RecordKey) -> errors.StorageBusy:
    return errors.StorageBusy(
        f"The record of {key.job} {key.key!r} was changed by others {ROUNDS_MAX} times while it was to be written.",
        meaning="Nothing was changed by this call.",
        todo="Try again in a moment.",
    )
