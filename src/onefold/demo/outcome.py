"""The outcome of a run: its settings, its numbers in one value, and every fault as a sentence.

The three runs differ in their partner and in what the job does about an interrupted run. The counts come from the
engine's history at level `full`: a row for each delivery is written in the transaction that settles it, so a killed
worker can neither lose a count nor leave one for something that did not happen. Deliveries that were never settled have
no row of their own; the rows `owner-dead` (killed) and `worker-draining` (released) say how many there were. `verdict`
compares dead letters and the partner's ledger with the figures.

Here: values, and functions from values to values. Never here: processes, output, a number from the engine if the
partner's ledger has it too: what onefold believes is not evidence that the effects are right. Invariant: every delivery
is counted once; two runs with equal settings send the same messages to partners that misbehave in the same way (only
the work that a kill hits differs); a run passed if and only if it has no fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from onefold.contracts.admin import Peeked
from onefold.contracts.ledger import Row
from onefold.demo.figures import CONFLICT, REFUSED, Figures
from onefold.demo.fulfilment import Invoice, Setup
from onefold.demo.partner_books import Mode
from onefold.demo.partner_ledger import PartnerLedger, RequestRow
from onefold.demo.verdict import DeadLetters, EffectCounts, JudgedDeadLetter, judge_dead_letters, judge_effects
from onefold.observe import wording

Phase = Literal["under fire", "settling"]


class DemoRun(Struct, frozen=True, kw_only=True):
    """The kind of partner, and what the job does about an interrupted run."""

    name: Setup
    mode: Mode
    title: str


RUNS = (
    DemoRun(
        name="keys",
        mode="honours-keys",
        title="The partner honours the job's key; in doubt the job runs again",
    ),
    DemoRun(name="probe", mode="fences", title="A partner without keys; in doubt a probe asks it and fences"),
    DemoRun(name="hold", mode="no-keys", title="A partner without keys or fences; in doubt a person decides"),
)


class DemoSettings(Struct, frozen=True, kw_only=True):
    """The options of the demo.

    Args:
        rows: how many rows of the file to send, from the first; 1 or more.
        workers: processes, 2 or more. threads: handlers in flight in each.
        seed: the seed of the random numbers.
        kills: planned in each run. kills_min: how many must hit a worker with work in progress; fewer is a fault.
        plant: a fault to build in, or None.
    """

    rows: int
    workers: int
    threads: int
    seed: int
    kills: int
    kills_min: int
    plant: Literal["no-fence"] | None = None


class DemoProgress(Struct, frozen=True, kw_only=True):
    """The progress of a run.

    Args:
        phase: what the run is doing. bookings: made by the partner. expected: how many there must be in the end.
        left: messages not finished, including unsent ones. kills: so far. held: invoices that the person has yet to
            settle. seconds: since the run began.
    """

    phase: Phase
    bookings: int
    expected: int
    left: int
    kills: int
    held: int
    seconds: float


ENDS = frozenset(
    {
        "completed",
        "duplicate",
        "retry",
        "held",
        "dead-letter",
        "quarantine",
        "conflict",
        "malformed",
        "released",
        "running-elsewhere",
        "dependency-down",
        "lease-lost",
        "completion-failed",
    }
)
"""Every settled delivery has exactly one of these events."""


class HistoryCounts(Struct, frozen=True, kw_only=True):
    """The numbers of a run.

    Args:
        deliveries: messages that workers received: those that were settled, those of killed workers, and those that
            draining workers released.
        duplicates: deliveries answered from the record; the handler did not run.
        waited: deliveries that came while another run of the same key was in progress, and were delivered again later.
        takeovers: runs begun again after their worker was killed.
        retries: deliveries that failed temporarily.
        lost: runs whose lease was lost.
        taken_over: a key that was taken over and completed later, as an example; None if there is none.
    """

    deliveries: int
    duplicates: int
    waited: int
    takeovers: int
    retries: int
    lost: int
    taken_over: str | None


def count_deliveries(rows: Iterable[Row]) -> HistoryCounts:
    """Count rows of a history at level `full`, oldest first."""
    events: Counter[str] = Counter()
    unsettled = 0
    taken_over: set[str] = set()
    example: str | None = None
    for row in rows:
        events[row.event] += 1
        key = row.key.key if row.key is not None else None
        if row.event == "owner-dead":
            unsettled += _number(row, "messages")
        elif row.event == "worker-draining":
            unsettled += _number(row, "given_back")
        elif row.event == "takeover" and key is not None:
            taken_over.add(key)
        elif row.event == "completed" and example is None and key in taken_over:
            example = key
    return HistoryCounts(
        deliveries=sum(events[name] for name in ENDS) + unsettled,
        duplicates=events["duplicate"],
        waited=events["running-elsewhere"],
        takeovers=events["takeover"],
        retries=events["retry"],
        lost=events["lease-lost"],
        taken_over=example,
    )


def _number(row: Row, name: str) -> int:
    value = row.detail.get(name)
    return value if isinstance(value, int) else 0


SHOWN_MAX = 5
"""How many faults of one kind are listed; the others are only counted."""
IN_JUDGES_WORDS = {"permanent": REFUSED, "conflict": CONFLICT}
"""The guard's reasons for a dead letter and the figures' names for them; any other reason is a fault."""


class PersonAnswers(Struct, frozen=True, kw_only=True):
    """The person's answers: how many invoices were done, and how many were not."""

    done: int = 0
    not_done: int = 0

    def __add__(self, other: PersonAnswers) -> PersonAnswers:
        return PersonAnswers(done=self.done + other.done, not_done=self.not_done + other.not_done)

    @property
    def all(self) -> int:
        """How many there are together."""
        return self.done + self.not_done


class Observed(Struct, frozen=True, kw_only=True):
    """What the drill has seen and what the engine reports.

    Args:
        seconds: from the first message to the end of the last worker. messages: how many were sent.
        counted: from the engine's history. dead: the dead letters. held_left: invoices still held.
        hits: how many messages each killed worker had in flight. misses: kills of idle workers. stops: by SIGTERM.
        settled: the person's answers. url: the URL of the engine.
    """

    seconds: float
    messages: int
    counted: HistoryCounts
    dead: Sequence[Peeked]
    held_left: int
    hits: Sequence[int]
    misses: int
    stops: int
    settled: PersonAnswers
    url: str


class RunOutcome(Struct, frozen=True, kw_only=True):
    """The numbers of a run, and in `faults` what is wrong with it.

    Args:
        name, title: those of the run. plant: the fault that was built in. seconds: as in `Observed`.
        messages: how many were sent; `again`: how many of these for the second time.
        deliveries, duplicates, waited, takeovers, retries, lost: as in `HistoryCounts`.
        kills: those that hit a worker with work in progress; in_hand: how many messages these workers had in flight;
            misses, stops: as in `Observed`.
        held: invoices that a person settled; held_done: how many of these had been booked.
        dead_letters: rows of the file by reason; dead_messages: including the copies of rows sent twice.
        requests: requests that the partner decided; fences, looks: how many of these were such; cut_off: how many had a
            caller that was dead by then.
        expected: bookings that there must be; bookings: those that the partner made.
        twice, never: invoices booked more than once, and those that must be booked but are not.
        taken_over: an invoice that was taken over, as an example; None if there is none.
        url: the URL of the engine; None if it was deleted.
    """

    name: str
    title: str
    plant: str | None
    seconds: float
    messages: int
    again: int
    deliveries: int
    duplicates: int
    waited: int
    takeovers: int
    retries: int
    lost: int
    kills: int
    in_hand: int
    misses: int
    stops: int
    held: int
    held_done: int
    dead_letters: dict[str, int]
    dead_messages: int
    requests: int
    fences: int
    looks: int
    cut_off: int
    expected: int
    bookings: int
    twice: int
    never: int
    faults: tuple[str, ...]
    taken_over: str | None
    url: str | None


def outcome(
    run: DemoRun, settings: DemoSettings, figures: Figures, seen: Observed, ledger: PartnerLedger
) -> RunOutcome:
    """Judge a run.

    Args:
        figures: the figures of the rows that were sent. ledger: the partner's, read after the partner has ended.
    """
    dead = [dead_letter_of(message) for message in seen.dead]
    effects = judge_effects(figures, ledger.bookings)
    letters = judge_dead_letters(figures, ledger.bookings, dead)
    actions = Counter(request.action for request in ledger.requests)
    words = {judged: kind for kind, judged in IN_JUDGES_WORDS.items()}
    reasons = Counter(words.get(one.reason, one.reason) for one in set(dead))
    return RunOutcome(
        name=run.name,
        title=run.title,
        plant=settings.plant,
        seconds=round(seen.seconds, 1),
        messages=seen.messages,
        again=seen.messages - settings.rows,
        deliveries=seen.counted.deliveries,
        duplicates=seen.counted.duplicates,
        waited=seen.counted.waited,
        takeovers=seen.counted.takeovers,
        retries=seen.counted.retries,
        lost=seen.counted.lost,
        kills=len(seen.hits),
        in_hand=sum(seen.hits),
        misses=seen.misses,
        stops=seen.stops,
        held=seen.settled.all,
        held_done=seen.settled.done,
        dead_letters={kind: reasons[kind] for kind in (*IN_JUDGES_WORDS, *sorted(reasons.keys() - IN_JUDGES_WORDS))},
        dead_messages=len(dead),
        requests=len(ledger.requests),
        fences=actions["fence"],
        looks=actions["look"],
        cut_off=sum(request.caller_gone for request in ledger.requests),
        expected=figures.expected["bookings"],
        bookings=effects.bookings,
        twice=len(effects.twice),
        never=len(effects.never),
        faults=(
            *_faults_of_drill(settings, seen),
            *faults_of_effects(effects, ledger),
            *faults_of_letters(letters),
        ),
        taken_over=seen.counted.taken_over,
        url=seen.url,
    )


def dead_letter_of(message: Peeked) -> JudgedDeadLetter:
    """A message of the dead-letter queue, in the form that the judge compares."""
    invoice = msgspec.json.decode(message.body, type=Invoice)
    kind = message.reason.kind if message.reason is not None else "receives"
    return JudgedDeadLetter(invoice.number, IN_JUDGES_WORDS.get(kind, kind), invoice.quantity, invoice.unit_price)


# -- faults as sentences ---------------------------------------------------------------------------------------------


def _faults_of_drill(settings: DemoSettings, seen: Observed) -> list[str]:
    faults = []
    if len(seen.hits) < settings.kills_min:
        faults.append(
            f"{wording.counted(len(seen.hits), 'kill')} hit a worker with work in progress; at least {settings.kills_min} "
            "are asked for"
        )
    if seen.held_left:
        faults.append(f"{seen.held_left} invoices are still held for a person")
    return faults


def faults_of_effects(effects: EffectCounts, ledger: PartnerLedger) -> list[str]:
    """What is wrong with the bookings, with the first few faults of each kind."""
    twice = [_sent_twice(reference, ledger) for reference in effects.twice[:SHOWN_MAX]]
    never = [f"never: invoice {reference} was not booked" for reference in effects.never[:SHOWN_MAX]]
    unasked = [
        f"unasked: booking {one.number} is {one.order.kind} {one.order.quantity} at {one.order.unit_price} for invoice "
        f"{one.order.reference}, which asks for nothing like it"
        for one in effects.unexpected[:SHOWN_MAX]
    ]
    return [
        *_with_rest(twice, len(effects.twice), "twice"),
        *_with_rest(never, len(effects.never), "never"),
        *_with_rest(unasked, len(effects.unexpected), "unasked"),
    ]


def _sent_twice(reference: str, ledger: PartnerLedger) -> str:
    made = [request for request in ledger.requests if request.reference == reference and request.made is not None]
    return (
        f"twice: invoice {reference} has {len(made)} bookings: {'; '.join(_sent_booking(one, made[0]) for one in made)}"
    )


def _sent_booking(request: RequestRow, first: RequestRow) -> str:
    assert request.made is not None
    later_ms = request.decided_at_ms - first.decided_at_ms
    gone = ", its worker dead by then" if request.caller_gone else ""
    when = f" {later_ms} ms later" if request is not first else ""
    return f"B{request.made.number:06d} under fence {request.fence}{when}{gone}"


def faults_of_letters(letters: DeadLetters) -> list[str]:
    """What is wrong with the dead letters."""
    missing = [
        f"dead letter missing: invoice {one.reference}, {one.quantity} at {one.unit_price}, should be {one.reason}"
        for one in letters.missing[:SHOWN_MAX]
    ]
    unasked = [
        f"dead letter wrong: invoice {one.reference}, {one.quantity} at {one.unit_price}, is {one.reason}"
        for one in letters.unexpected[:SHOWN_MAX]
    ]
    return [
        *_with_rest(missing, len(letters.missing), "dead letter missing"),
        *_with_rest(unasked, len(letters.unexpected), "dead letter wrong"),
    ]


def _with_rest(shown: list[str], count: int, kind: str) -> list[str]:
    return [*shown, f"{kind}: {count - len(shown):,} more"] if count > len(shown) else shown
