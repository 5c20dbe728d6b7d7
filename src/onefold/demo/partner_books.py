"""What the courier partner decides: its bookings and its planned faults, without network, files or clock.

Here: which request makes a booking, which is answered from an earlier one, which is refused; and what goes wrong on
purpose, drawn from a seed. Never here: sockets, SQLite, time, or an import of onefold, since the partner is an
independent system.
Invariant: a decision is one call on one thread, so bookings are in the order of the calls.

The three modes are three kinds of partner that exist in practice:

- `honours-keys`: a POST that repeats an Idempotency-Key is answered with the first booking; no second one is
  made.
- `fences`: keys are ignored and each accepted POST is a new booking, but the partner can cancel or report: a
  fence at number N is answered with the bookings made so far, and from then on each POST of that reference
  whose `Onefold-Fence` is below N (or missing, which counts as 0) is refused. Reading alone is not enough,
  because the POST of a dead worker may still be on its way: the answer "nothing there" can be wrong a moment
  later, whereas after a fence at N it stays right, because everything older is refused. The attempt that set
  the fence, N itself, may book. A fence below the highest one is refused too, because a later attempt has
  overtaken its sender. The same fence sent twice gets the same answer.
- `no-keys`: keys are ignored, no fence is checked, each POST is a new booking. Bookings can be read.

What goes wrong: requests are slow, either before the booking is made (it is still on its way when the caller is
already dead) or after it (the answer is lost). 429 and 503 always mean "refused at the door, nothing was
done" and carry Retry-After. 500 means "something broke", before the booking or after it, and does not say
which: with keys the request can be sent again, without keys the outcome is unknown. No reference gets more
than ERRORS_IN_A_ROW_MAX planned errors in a row, because a transient error must pass.
"""

from __future__ import annotations

import hashlib
import struct
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal, get_args

Mode = Literal["honours-keys", "fences", "no-keys"]
MODES: tuple[Mode, ...] = get_args(Mode)

ERRORS_IN_A_ROW_MAX = 2
"""Most planned errors in a row for one reference; fewer than the usual three tries of a retry within a call."""

DOOR_RETRY_AFTER_S = 1
"""Seconds in the Retry-After header of a 429 or 503: the smallest whole number that asks for a wait."""


@dataclass(frozen=True, slots=True)
class BookingOrder:
    """What a POST asks for: `reference` is the invoice number, `unit_price` the text that was sent."""

    reference: str
    kind: str
    quantity: int
    unit_price: str


@dataclass(frozen=True, slots=True)
class Booking:
    """A booking that was made; numbers start at 1, in the order of the decisions."""

    number: int
    order: BookingOrder


@dataclass(frozen=True, slots=True)
class PartnerDecision:
    """The books' decision about a request.

    Attributes:
        status: HTTP status.
        outcome: one word for the ledger: booked, repeated, other-order, fenced, told, nothing, overtaken,
            no-fences; the partner itself adds turned-away, broke and malformed.
        made: the booking that this request made, if it made one.
        shown: the bookings that the answer shows.
        error: text for the caller if the request was refused, else empty.
    """

    status: int
    outcome: str
    made: Booking | None = None
    shown: tuple[Booking, ...] = ()
    error: str = ""


class PartnerBooks:
    """The partner's memory of one run. Not thread-safe; one event loop calls it."""

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self.bookings_count = 0
        self._by_reference: dict[str, list[Booking]] = defaultdict(list)
        self._by_key: dict[str, Booking] = {}
        self._fences: dict[str, int] = {}

    def book(self, order: BookingOrder, key: str | None, fence: int) -> PartnerDecision:
        """Book `order`, unless the mode's rule says otherwise.

        Args:
            order: what to book.
            key: the Idempotency-Key header; used in honours-keys mode only.
            fence: the Onefold-Fence header, 0 if it is missing; used in fences mode only.
        """
        if self.mode == "honours-keys" and key is not None and (first := self._by_key.get(key)):
            if first.order == order:
                return PartnerDecision(200, "repeated", shown=(first,))
            return PartnerDecision(
                422, "other-order", error=f"key {key} was used for another order of {first.order.reference}"
            )
        if self.mode == "fences" and fence < (lowest := self._fences.get(order.reference, 0)):
            return PartnerDecision(
                409, "fenced", error=f"attempt {fence} of {order.reference} is fenced off below {lowest}"
            )
        self.bookings_count += 1
        booking = Booking(self.bookings_count, order)
        self._by_reference[order.reference].append(booking)
        if key is not None:
            self._by_key[key] = booking
        return PartnerDecision(201, "booked", made=booking, shown=(booking,))

    def look(self, reference: str) -> PartnerDecision:
        """The bookings of `reference` made so far, which says nothing about requests still on their way."""
        shown = tuple(self._by_reference.get(reference, ()))
        return PartnerDecision(200, "told" if shown else "nothing", shown=shown)

    def fence(self, reference: str, fence: int) -> PartnerDecision:
        """Refuse later POSTs of `reference` below `fence` (1 or more), and report the bookings made so far."""
        if self.mode != "fences":
            return PartnerDecision(
                404, "no-fences", error=f"this partner ({self.mode}) has no fences; look with GET /bookings"
            )
        highest = self._fences.get(reference, 0)
        if fence < highest:
            return PartnerDecision(409, "overtaken", error=f"fence {fence} of {reference} comes after {highest}")
        self._fences[reference] = fence
        return self.look(reference)


@dataclass(frozen=True, slots=True)
class Mood:
    """What goes wrong with one request.

    Attributes:
        before_ms: wait before the books are asked.
        after_ms: wait between the books' decision and the answer.
        door_status: 429 or 503 if the request is refused before anything is done, else 0.
        breaks: "before" or "after" if it is answered with 500 before or after the books are asked, else "".
    """

    before_ms: float
    after_ms: float
    door_status: int = 0
    breaks: Literal["", "before", "after"] = ""


@dataclass(frozen=True)
class Temper:
    """How often things go wrong; rates are shares from 0 to 1.

    Attributes:
        seed: with the same seed the n-th request of a reference has the same mood, whatever else runs.
        slow_rate: share of slow requests; half of them wait before the books are asked, half after.
        slow_ms_min, slow_ms_max: how long a slow request waits, milliseconds.
        fast_ms_max: the others wait from 0 to this many milliseconds, before the books are asked.
        refuse_rate: share refused at the door, half with 429, half with 503.
        break_rate: share of bookings answered with 500, half before, half after the booking.
    """

    seed: int = 0
    slow_rate: float = 0.01
    slow_ms_min: int = 200
    slow_ms_max: int = 1_500
    fast_ms_max: int = 3
    refuse_rate: float = 0.02
    break_rate: float = 0.005

    def __post_init__(self) -> None:
        for name in ("slow_rate", "refuse_rate", "break_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; a rate is a share from 0 to 1")
        if not 0 <= self.slow_ms_min <= self.slow_ms_max or self.fast_ms_max < 0:
            raise ValueError(
                f"waits are {self.slow_ms_min}..{self.slow_ms_max} ms and 0..{self.fast_ms_max} ms;"
                " each must go from 0 or more up to as much or more"
            )

    def mood(self, reference: str, nth: int) -> Mood:
        """The mood of the `nth` request (from 0) of `reference`; a hash of seed and both gives six draws."""
        digest = hashlib.blake2b(f"{self.seed}/{reference}/{nth}".encode(), digest_size=24).digest()
        slow, length, side, refuse, breaks, half = (draw / 2**32 for draw in struct.unpack("<6I", digest))
        before_ms, after_ms = length * self.fast_ms_max, 0.0
        if slow < self.slow_rate:
            slow_ms = self.slow_ms_min + length * (self.slow_ms_max - self.slow_ms_min)
            before_ms, after_ms = (slow_ms, 0.0) if side < 0.5 else (0.0, slow_ms)
        if refuse < self.refuse_rate:
            return Mood(before_ms, after_ms, door_status=429 if half < 0.5 else 503)
        if breaks < self.break_rate:
            return Mood(before_ms, after_ms, breaks="before" if half < 0.5 else "after")
        return Mood(before_ms, after_ms)


class Weather:
    """Returns moods request by request, and keeps errors from accumulating on one reference."""

    def __init__(self, temper: Temper) -> None:
        self._temper = temper
        self._seen: dict[str, int] = defaultdict(int)
        self._errors_in_a_row: dict[str, int] = defaultdict(int)

    def next_mood(self, reference: str, *, may_break: bool) -> Mood:
        """The next mood of `reference`, with a 500 only if it `may_break`, and never a third error in a row."""
        nth = self._seen[reference]
        self._seen[reference] = nth + 1
        mood = self._temper.mood(reference, nth)
        goes_wrong = mood.door_status != 0 or (may_break and mood.breaks != "")
        if not goes_wrong or self._errors_in_a_row[reference] >= ERRORS_IN_A_ROW_MAX:
            self._errors_in_a_row.pop(reference, None)
            return Mood(mood.before_ms, mood.after_ms)
        self._errors_in_a_row[reference] += 1
        return mood
