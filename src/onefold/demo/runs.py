"""The three runs of the demo as values: which partner, which policy, how much fire, and how a run stands meanwhile.

Never here: doing any of it. Invariant: two runs with equal settings send the same messages to partners that misbehave alike;
only where the kills fall in the work of the moment differs, as it does in life.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from onefold.demo.fulfilment import Setup
from onefold.demo.partner_books import Mode

Phase = Literal["under fire", "settling"]


class Run(Struct, frozen=True, kw_only=True):
    """What the partner is like, and what the job does about a run that ended in the middle."""

    name: Setup
    mode: Mode
    title: str


RUNS = (
    Run(
        name="keys",
        mode="honours-keys",
        title="The partner honours the job's key; in doubt the job runs again",
    ),
    Run(name="probe", mode="fences", title="A partner without keys; in doubt a probe asks it and fences"),
    Run(name="hold", mode="no-keys", title="A partner without keys or fences; in doubt a person decides"),
)


class Settings(Struct, frozen=True, kw_only=True):
    """What a user may choose.

    Args:
        rows: of the file, from the first; 1 or more.
        workers: processes, 2 or more. threads: handlers in flight in each.
        seed: of everything that is left to chance.
        kills: planned in each run. kills_min: so many at least must hit a worker with work in hand; fewer is a fault.
        plant: a fault to be built in, or None.
    """

    rows: int
    workers: int
    threads: int
    seed: int
    kills: int
    kills_min: int
    plant: Literal["no-fence"] | None = None


class Progress(Struct, frozen=True, kw_only=True):
    """How a run stands.

    Args:
        phase: what it does. bookings: made by the partner. expected: how many there must be in the end.
        left: messages not finished, unsent ones included. kills: by now. held: invoices that the person has yet to settle.
        seconds: since it began.
    """

    phase: Phase
    bookings: int
    expected: int
    left: int
    kills: int
    held: int
    seconds: float
