"""The judge of a demo run: compares the partner's ledger and the dead letters with the figures of the file.

Here: pure functions from values to what is wrong. Never here: files, processes, an import of onefold proper, or a
look at onefold's own records, since what onefold believes is not evidence. Invariant: a run passes only if every
invoice number has exactly the effects that it would have if one of its rows came first.

- twice: an invoice number with more than one booking, whatever they say.
- never: an invoice number that must have a booking and has no acceptable one.
- unexpected: a booking that no row of its invoice number asks for (a refused row, other figures, an unknown number).
- dead letters: the refused rows, and for each number with different figures the rows that did not win it. They
  are compared as a set: a duplicate of a conflicting message is another conflict, which adds no information.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from onefold.demo.figures import CONFLICT, REFUSED, Figures, FileRow, what_is_left
from onefold.demo.partner_books import Booking


@dataclass(frozen=True)
class EffectCounts:
    """What the partner's ledger shows; every tuple is sorted, and empty if nothing is wrong.

    Attributes:
        bookings: number of bookings.
        twice: invoice numbers booked more than once.
        never: invoice numbers that should be booked and are not.
        unexpected: bookings that no row asks for.
    """

    bookings: int
    twice: tuple[str, ...]
    never: tuple[str, ...]
    unexpected: tuple[Booking, ...]

    @property
    def right(self) -> bool:
        """Whether no invoice was booked twice, left out, or booked without being asked for."""
        return not (self.twice or self.never or self.unexpected)


@dataclass(frozen=True, slots=True, order=True)
class JudgedDeadLetter:
    """A dead letter in the form that the judge compares.

    Attributes:
        reference: invoice number.
        reason: "refused" or "conflict"; with any other reason the dead letter is unexpected.
        quantity, unit_price: those of the message's payload, the price as the text in the file.
    """

    reference: str
    reason: str
    quantity: int
    unit_price: str


@dataclass(frozen=True)
class DeadLetters:
    """What the dead letters show.

    Attributes:
        refused, conflicts: how many different rows there are with that reason.
        missing: dead letters that should be there and are not.
        unexpected: dead letters that should not be there.
    """

    refused: int
    conflicts: int
    missing: tuple[JudgedDeadLetter, ...]
    unexpected: tuple[JudgedDeadLetter, ...]

    @property
    def right(self) -> bool:
        """Whether exactly the expected rows are there, each with the right reason."""
        return not (self.missing or self.unexpected)


def judge_effects(figures: Figures, bookings: Iterable[Booking]) -> EffectCounts:
    """Compare the partner's bookings with the figures.

    Args:
        figures: what the file says must happen.
        bookings: all bookings of the ledger.
    """
    by_reference = _by_reference(bookings)
    unexpected = [
        booking
        for reference, found in by_reference.items()
        for booking in found
        if _winner(figures.invoices.get(reference, ()), booking) is None
    ]
    never = [
        reference
        for reference, rows in figures.invoices.items()
        if all(row.kind != REFUSED for row in rows)
        and not any(_winner(rows, booking) for booking in by_reference.get(reference, ()))
    ]
    return EffectCounts(
        bookings=sum(len(found) for found in by_reference.values()),
        twice=tuple(sorted(reference for reference, found in by_reference.items() if len(found) > 1)),
        never=tuple(sorted(never)),
        unexpected=tuple(sorted(unexpected, key=lambda booking: booking.number)),
    )


def judge_dead_letters(
    figures: Figures, bookings: Iterable[Booking], dead_letters: Iterable[JudgedDeadLetter]
) -> DeadLetters:
    """Compare the dead letters with the figures, given which row of each invoice number the partner booked.

    If no row of a number was booked and several could be the refused winner, the one that makes the dead letters
    right is assumed, if there is one.

    Args:
        figures: what the file says must happen.
        bookings: all bookings of the ledger.
        dead_letters: the dead-letter queue's messages at the end; duplicates count once.
    """
    by_reference = _by_reference(bookings)
    distinct = set(dead_letters)
    found: dict[str, set[JudgedDeadLetter]] = defaultdict(set)
    for dead_letter in distinct:
        found[dead_letter.reference].add(dead_letter)
    missing: set[JudgedDeadLetter] = set()
    unexpected: set[JudgedDeadLetter] = set()
    for reference, rows in figures.invoices.items():
        here = found.pop(reference, set())
        booked = [row for booking in by_reference.get(reference, ()) if (row := _winner(rows, booking))]
        winners = booked or [row for row in rows if row.kind == REFUSED] or rows
        allowed = [_dead_letters(reference, rows, winner) for winner in winners]
        expected = here if here in allowed else allowed[0]
        missing |= expected - here
        unexpected |= here - expected
    unexpected.update(*found.values())
    reasons = Counter(dead_letter.reason for dead_letter in distinct)
    return DeadLetters(reasons[REFUSED], reasons[CONFLICT], tuple(sorted(missing)), tuple(sorted(unexpected)))


def _by_reference(bookings: Iterable[Booking]) -> dict[str, list[Booking]]:
    by_reference: dict[str, list[Booking]] = defaultdict(list)
    for booking in bookings:
        by_reference[booking.order.reference].append(booking)
    return by_reference


def _winner(rows: Iterable[FileRow], booking: Booking) -> FileRow | None:
    """The row that this booking is for; None if no row asks for it."""
    order = booking.order
    for row in rows:
        if row.kind != REFUSED and (row.kind, row.quantity, row.unit_price) == (
            order.kind,
            order.quantity,
            order.unit_price,
        ):
            return row
    return None


def _dead_letters(reference: str, rows: tuple[FileRow, ...], winner: FileRow) -> set[JudgedDeadLetter]:
    left = what_is_left(rows, winner)
    return {JudgedDeadLetter(reference, reason, row.quantity, row.unit_price) for row, reason in left.items()}
