"""Injected faults: their kinds, how people write them, and what one random draw decides.

A fault is one option, `KEY=VALUE`, followed by its limits after commas: `lose-ack=0.1,queue=orders*,times=3`. The same
text is its JSON. The draws are functions of the faults and of random numbers that are passed in; each returns a plan
that says what to do and, in one sentence, why, or None if there is nothing to do.

Never here: carrying a plan out, counting, memory between two draws (`faults.py`), HTTP statuses.
Invariants: if no fault applies, nothing is drawn; and kinds that AWS never shows on a FIFO queue (`deliver`, `reorder`,
`delay`, `lose-ack`, `repeat-deleted`) do not apply to one, so that its order is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Literal

from msgspec import Struct, structs

from onefold import duration, limits
from onefold.errors import UsageError

Chance = Callable[[], float]
At = Literal["send", "receive", "delete", "request", "invoke", "dead-letter"]
Form = Literal["rate", "rate:time", "count", "time", "times"]

COPIES_MAX = 100
HOLD_MS_DEFAULT = 65_000  # botocore gives up reading an answer after 60 s
REDRIVE_WITHIN_MS_DEFAULT = 10_000
_TIMES_MAX = 1_000_000_000
_FAULTS_MAX = 100
_FIFO_SUFFIX = ".fifo"


class Kind(Struct, frozen=True):
    """One kind of fault.

    Args:
        at: the moment at which it is drawn.
        form: how its value is written: a rate, a rate with a time, a whole number, a time, or one or two times.
        fifo: whether it applies to FIFO queues.
        meaning: one line for help and documentation.
        time_ms: the default time.
    """

    at: At
    form: Form
    fifo: bool
    meaning: str
    time_ms: int = 0


KINDS: Mapping[str, Kind] = {
    "deliver": Kind("receive", "count", False, "deliver each message this many times"),
    "repeat-deleted": Kind("delete", "rate", False, "answer a delete, and deliver the message once more at once"),
    "reorder": Kind("send", "time", False, "shuffle messages within a window of this length"),
    "delay": Kind("send", "times", False, "make a sent message visible only after this time"),
    "lose-ack": Kind("delete", "rate", False, "answer a delete without doing it"),
    "lose-answer": Kind("request", "rate", True, "do what is asked, then close the connection without an answer"),
    "hold": Kind("request", "rate:time", True, "do what is asked and hold the answer", HOLD_MS_DEFAULT),
    "error": Kind("request", "rate", True, "answer 500 before anything is done"),
    "error-after": Kind("request", "rate", True, "do what is asked, then answer 500"),
    "throttle": Kind("request", "rate", True, "answer RequestThrottled before anything is done"),
    "kill-before": Kind("invoke", "rate", True, "kill the container before it has the event"),
    "kill-during": Kind("invoke", "rate", True, "kill the container while the handler runs"),
    "kill-after": Kind("invoke", "rate", True, "kill the container after the handler, before its answer is read"),
    "expire-early": Kind("receive", "rate", True, "end a visibility timeout at a random moment before its time"),
    "redrive": Kind(
        "dead-letter", "rate:time", True, "send a dead letter back to where it came from", REDRIVE_WITHIN_MS_DEFAULT
    ),
}
_LIMITS = ("queue", "operation", "times")


class Fault(Struct, frozen=True, kw_only=True):
    """One fault and its limits.

    Args:
        kind: a name in `KINDS`.
        value: as written.
        rate: how often, 0 to 1; 1 for kinds without a rate.
        count: for `deliver`, how many times each message is delivered, 2 to 100.
        least_ms, most_ms: bounds of its time.
        queue, operation: shell patterns (`orders*`) of the queue names and SQS operations to which it is limited.
        times: how often it is injected at most; None: no limit.
    """

    kind: str
    value: str
    rate: float = 1.0
    count: int = 0
    least_ms: int = 0
    most_ms: int = 0
    queue: str = "*"
    operation: str = "*"
    times: int | None = None

    @property
    def text(self) -> str:
        """This fault as an option."""
        parts = [f"{self.kind}={self.value}"]
        if self.queue != "*":
            parts.append(f"queue={self.queue}")
        if self.operation != "*":
            parts.append(f"operation={self.operation}")
        if self.times is not None:
            parts.append(f"times={self.times}")
        return ",".join(parts)

    def applies(self, queue: str, operation: str) -> bool:
        """Whether its limits and its kind allow it here."""
        return (
            (KINDS[self.kind].fifo or not queue.endswith(_FIFO_SUFFIX))
            and (self.queue == "*" or fnmatchcase(queue, self.queue))
            and (self.operation == "*" or fnmatchcase(operation, self.operation))
        )


class Faults(Struct, frozen=True, kw_only=True):
    """All faults that are set.

    Args:
        faults: in the order they were written.
        seed: repeats a run: the same seed and order of calls give the same faults; None: a new seed is drawn.
    """

    faults: tuple[Fault, ...] = ()
    seed: int | None = None

    def at(self, at: At) -> tuple[Fault, ...]:
        """The faults that are drawn at this moment."""
        return tuple(fault for fault in self.faults if KINDS[fault.kind].at == at)

    def to_json(self) -> dict[str, object]:
        """`{"seed": 7, "faults": ["lose-ack=0.1,queue=orders*"]}`; `from_json` reads it back equal."""
        return {"seed": self.seed, "faults": [fault.text for fault in self.faults]}

    @staticmethod
    def from_json(value: object) -> Faults:
        """Faults from the result of `to_json`, from a list of options, or from `{"deliver": 2, "queue": "orders*"}`.

        Raises:
            UsageError: as for `parse_faults`; or the value has another form.
        """
        if isinstance(value, Mapping) and isinstance(value.get("faults"), list):
            unknown = sorted(set(value) - {"faults", "seed"})
            if unknown:
                raise UsageError(f"{unknown[0]!r} is not known beside faults.", todo="Only seed may be beside it.")
            value = [*value["faults"], *([] if value.get("seed") is None else [f"seed={value['seed']}"])]
        elif isinstance(value, Mapping):
            value = [f"{key}={setting}" for key, setting in value.items() if setting is not None]
        if not isinstance(value, list) or not all(isinstance(option, str) for option in value):
            raise UsageError(
                "The faults are neither an object nor a list of texts.",
                todo='Write {"faults": ["lose-ack=0.1,queue=orders*"], "seed": 7}, or {"deliver": 2}.',
            )
        return parse_faults(value)


NO_FAULTS = Faults()


# ------------------------------------------------------------------------------------------------------------ parsing


def parse_faults(options: Sequence[str]) -> Faults:
    """Faults as people write them: `["deliver=2", "lose-ack=10%,queue=orders*,times=3", "seed=7"]`.

    A limit without a fault (`queue=orders*`) holds for every fault that does not set that limit itself.

    Raises:
        UsageError: an unknown key (names a similar one), a value out of its range, a limit that cannot apply; no fault
            of the list is set.
    """
    shared: dict[str, str] = {}
    seed: int | None = None
    written: list[list[tuple[str, str]]] = []
    for option in options:
        pairs = [_pair(part, option) for part in option.split(",")]
        key, value = pairs[0]
        if key == "seed" and len(pairs) == 1:
            seed = _whole("seed", value, 0, 2**64 - 1)
        elif all(name in _LIMITS for name, _ in pairs):
            shared.update(pairs)
        else:
            written.append(pairs)
    if len(written) > _FAULTS_MAX:
        raise UsageError(f"{len(written)} faults are too many.", todo=f"At most {_FAULTS_MAX} can be set at a time.")
    if shared and not written:
        raise UsageError(f"{next(iter(shared))}={next(iter(shared.values()))!r} limits no fault.", todo=_EXAMPLE)
    return Faults(faults=tuple(_fault(pairs, shared) for pairs in written), seed=seed)


_EXAMPLE = "Write the fault first, for example lose-ack=0.1,queue=orders*."


def _pair(part: str, option: str) -> tuple[str, str]:
    key, equals, value = part.strip().partition("=")
    if not equals or not key or not value:
        raise UsageError(f"fault {option!r}: {part.strip()!r} is not KEY=VALUE.", todo=_EXAMPLE)
    if key not in KINDS and key not in _LIMITS and key != "seed":
        near = get_close_matches(key, [*KINDS, *_LIMITS, "seed"], n=1)
        raise UsageError(
            f"fault {option!r}: {key!r} is not known.",
            todo=f"Did you mean {near[0]}?"
            if near
            else f"There are {', '.join(KINDS)}; and queue, operation, times, seed.",
        )
    return key, value.strip()


def _fault(pairs: list[tuple[str, str]], shared: Mapping[str, str]) -> Fault:
    (name, value), *behind = pairs
    bounds = dict(behind)
    if name not in KINDS or len(bounds) < len(behind) or not bounds.keys() <= set(_LIMITS):
        found = ",".join(f"{key}={text}" for key, text in pairs)
        raise UsageError(
            f"fault {found!r} is not one fault with its limits.", todo=f"{_EXAMPLE} Repeat --fault for another one."
        )
    kind = KINDS[name]
    if "operation" in bounds and kind.at != "request":
        of = ", ".join(other for other, one in KINDS.items() if one.at == "request")
        raise UsageError(
            f"fault {name}={value}: operation={bounds['operation']} does not apply.", todo=f"It limits {of}."
        )
    bounds = {**shared, **bounds}
    return structs.replace(
        _valued(name, kind, value),
        queue=bounds.get("queue", "*"),
        operation=bounds.get("operation", "*") if kind.at == "request" else "*",
        times=_whole("times", bounds["times"], 1, _TIMES_MAX) if "times" in bounds else None,
    )


def _valued(name: str, kind: Kind, value: str) -> Fault:
    if kind.form == "count":
        return Fault(kind=name, value=value, count=_whole(name, value, 2, COPIES_MAX))
    if kind.form in ("time", "times"):
        least, dash, most = value.partition("-") if kind.form == "times" else ("", "", value)
        most_ms = duration.to_ms(most or least, name, most_ms=limits.DELAY_MS_MAX)
        least_ms = duration.to_ms(least, name, most_ms=most_ms) if least else 0
        if dash and not most:
            raise UsageError(f"{name}={value!r} has no end.", todo=f"Write {name}=100ms-2s.")
        return Fault(kind=name, value=value, least_ms=least_ms, most_ms=most_ms)
    rate, colon, time = value.partition(":")
    if colon and kind.form == "rate":
        raise UsageError(f"{name}={value!r} takes no time.", todo=f"Write {name}={rate}.")
    most_ms = duration.to_ms(time, name, least_ms=1, most_ms=limits.DELAY_MS_MAX) if colon else kind.time_ms
    return Fault(kind=name, value=value, rate=_rate(name, rate), most_ms=most_ms)


def _rate(name: str, text: str) -> float:
    try:
        rate = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= 1:
        raise UsageError(
            f"{name}={text!r} is not a rate.", todo=f"Write 0 to 1 or a percentage: {name}=0.1, {name}=10%."
        )
    return rate


def _whole(name: str, text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise UsageError(f"{name}={text!r} is out of range.", todo=f"It is a whole number, {least:,} to {most:,}.")
    return int(text)


# -------------------------------------------------------------------------------------------------------------- draws

Armed = Sequence[tuple[Fault, Chance]]  # each fault has its own random stream: no draw affects another


class OnSend(Struct, frozen=True):
    """Hide a message `delay_ms` longer than requested; `by`: the faults that cause it."""

    delay_ms: int
    by: tuple[Fault, ...]
    why: str


class OnReceive(Struct, frozen=True):
    """What happens to one receive.

    Args:
        copies: how many more times the same delivery is given.
        expires_in_ms: end its visibility this long after the receive; None: at its normal time.
    """

    copies: int
    expires_in_ms: int | None
    by: tuple[Fault, ...]
    why: str


class OnDelete(Struct, frozen=True):
    """Answer a delete as done, but ignore it (`lose`), or make the message visible at once (`repeat`)."""

    how: Literal["lose", "repeat"]
    by: tuple[Fault, ...]
    why: str


class OnRequest(Struct, frozen=True):
    """What happens to one request.

    Args:
        before: the answer, without anything being done.
        hold_ms: it is done; the answer waits this long (or until the client hangs up).
        after: it is done; then it is answered 500, or the connection is closed (`drop`).
    """

    before: Literal["error", "throttle"] | None
    hold_ms: int
    after: Literal["error", "drop"] | None
    by: tuple[Fault, ...]
    why: str


class OnInvoke(Struct, frozen=True):
    """Kill the container at this point of an invocation."""

    kill: Literal["before", "during", "after"]
    by: tuple[Fault, ...]
    why: str


class OnDeadLetter(Struct, frozen=True):
    """Send a dead letter back after this time."""

    redrive_in_ms: int
    by: tuple[Fault, ...]
    why: str


def on_send(armed: Armed, queue: str) -> OnSend | None:
    """What happens to one message that is sent; delays add up to at most 15 minutes."""
    by = []
    delay_ms = 0
    for fault, chance in armed:
        if fault.applies(queue, ""):
            delay_ms += fault.least_ms + int(chance() * (fault.most_ms - fault.least_ms + 1))
            by.append(fault)
    delay_ms = min(delay_ms, limits.DELAY_MS_MAX)
    return OnSend(delay_ms, tuple(by), f"fault: visible {delay_ms:,} ms late ({_names(by)})") if by else None


def on_receive(armed: Armed, queue: str, visible_ms: int) -> OnReceive | None:
    """What happens to one message that is received and hidden for `visible_ms`."""
    copies, expires_in_ms = 0, None
    by: list[Fault] = []
    whys: list[str] = []
    for fault, chance in armed:
        if not fault.applies(queue, ""):
            continue
        if fault.kind == "deliver":
            copies = max(copies, fault.count - 1)
            whys.append(f"it will be given {fault.count} times")
        elif visible_ms and chance() < fault.rate:
            expires_in_ms = int(chance() * visible_ms)
            whys.append(f"its visibility ends after {expires_in_ms:,} ms instead of {visible_ms:,} ms")
        else:
            continue
        by.append(fault)
    return OnReceive(copies, expires_in_ms, tuple(by), f"fault: {', and '.join(whys)}") if by else None


def on_delete(armed: Armed, queue: str) -> OnDelete | None:
    """What happens to one delete; the first fault that is drawn decides."""
    for fault in _hits(armed, queue):
        if fault.kind == "lose-ack":
            return OnDelete("lose", (fault,), "fault: the delete was answered and not done")
        return OnDelete("repeat", (fault,), "fault: the delete was answered, and the message comes back at once")
    return None


def on_request(armed: Armed, operation: str, queue: str) -> OnRequest | None:
    """What happens to one request.

    Args:
        operation: SQS's name, for example `DeleteMessageBatch`.
        queue: the queue's name; empty if the operation names none.
    """
    by = list(_hits(armed, queue, operation))
    if not by:
        return None
    first = next((fault for fault in by if fault.kind in ("error", "throttle")), None)
    if first is not None:
        before: Literal["error", "throttle"] = "error" if first.kind == "error" else "throttle"
        said = "answered 500" if before == "error" else "throttled"
        return OnRequest(before, 0, None, (first,), f"fault: {operation} was {said} before anything was done")
    hold_ms = max(fault.most_ms for fault in by)
    kinds = {fault.kind for fault in by}
    after: Literal["error", "drop"] | None = (
        "drop" if "lose-answer" in kinds else "error" if "error-after" in kinds else None
    )
    whys = [f"its answer was held for {hold_ms:,} ms"] if hold_ms else []
    whys += {"drop": ["its answer was lost"], "error": ["it was answered 500"], None: []}[after]
    return OnRequest(None, hold_ms, after, tuple(by), f"fault: {operation} was done, and {', and '.join(whys)}")


def on_invoke(armed: Armed, queue: str) -> OnInvoke | None:
    """What happens to one invocation for messages of `queue` (empty: a direct one); the first fault drawn decides."""
    for fault in _hits(armed, queue):
        kill: Literal["before", "during", "after"] = "before"
        if fault.kind != "kill-before":
            kill = "during" if fault.kind == "kill-during" else "after"
        when = {"before": "before it had the event", "during": "while the handler ran", "after": "after the handler"}[
            kill
        ]
        return OnInvoke(kill, (fault,), f"fault: the container was killed {when}")
    return None


def on_dead_letter(armed: Armed, queue: str) -> OnDeadLetter | None:
    """What happens to one message that was moved to the dead-letter queue `queue`."""
    for fault, chance in armed:
        if fault.applies(queue, "") and chance() < fault.rate:
            in_ms = int(chance() * fault.most_ms)
            return OnDeadLetter(in_ms, (fault,), f"fault: sent back to where it came from after {in_ms:,} ms")
    return None


def _hits(armed: Armed, queue: str, operation: str = "") -> Iterator[Fault]:
    for fault, chance in armed:
        if fault.applies(queue, operation) and chance() < fault.rate:
            yield fault


def _names(by: Sequence[Fault]) -> str:
    return ", ".join(fault.kind for fault in by)
