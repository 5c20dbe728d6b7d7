"""What Python files say about handlers of queues, calls of AWS and idempotency keys, as plain values with positions.

Never here: how code is read (collect_python.py and the modules beside it), or what to think of it. Invariants: a field says
what holds for certain; what cannot be told from the files is None, "unknown" or left out, and no rule reports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from onefold.check.findings import Source
from onefold.check.python_values import Origin


class Argument(Struct, frozen=True):
    """An argument of a call.

    Attributes:
        text: as it is written, shortened. constant: its value where it is one; None where it is not known.
        origins: what is certainly in it. variable: the environment variable that it is.
    """

    text: str
    source: Source
    constant: object = None
    origins: frozenset[Origin] = frozenset()
    variable: str | None = None


class Call(Struct, frozen=True, kw_only=True):
    """A call of AWS through boto3.

    Attributes:
        service, operation: as boto3 names them: `sqs`, `send_message`; a resource's calls have the client's names.
        function: that makes the call. arguments: by AWS's names. is_complete: there are no others than these.
        read_timeout_s: of the client; None: not known. attempts: how often the SDK tries; None: not known.
    """

    service: str
    operation: str
    source: Source
    function: str
    arguments: Mapping[str, Argument]
    is_complete: bool
    read_timeout_s: float | None
    attempts: int | None

    @property
    def position(self) -> tuple[str, int, int]:
        """What it is told apart by."""
        return self.source.file, self.source.start_line, self.source.start_column

    def lacks(self, name: str) -> bool:
        """Whether an argument is certainly not given."""
        return self.is_complete and name not in self.arguments


class Key(Struct, frozen=True, kw_only=True):
    """An idempotency key.

    Attributes:
        what: whose it is, for a sentence: "Powertools' idempotency key". function: that uses it.
        origins: what is certainly in it. is_whole: the whole event or record, with everything that a delivery adds.
        is_for_partner: it is given to somebody else's service, and not kept.
    """

    what: str
    source: Source
    function: str
    text: str
    origins: frozenset[Origin]
    is_whole: bool = False
    is_for_partner: bool = False


class Idempotency(Struct, frozen=True, kw_only=True):
    """A use of Powertools' idempotency: `@idempotent` or `@idempotent_function`.

    Attributes:
        life_s: how long a record is kept; None: not known. has_context: `@idempotent` has the Lambda context itself.
        life: where that is written, the decorator where it is the default.
    """

    source: Source
    function: str
    has_context: bool
    life_s: int | None
    life: Source
    is_default_life: bool


class Swallowed(Struct, frozen=True, kw_only=True):
    """An `except` (source) that lets a message count as done that was not: nothing is raised, reported or kept."""

    source: Source
    function: str
    is_batch: bool


class Deletion(Struct, frozen=True, kw_only=True):
    """A message that is deleted whether or not its work was done: in a `finally`, or before the work.

    Attributes:
        work: the first thing that is done with the message after a deletion that comes before the work.
    """

    source: Source
    function: str
    how: Literal["finally", "before"]
    work: Source | None = None
    work_text: str = ""


class Claim(Struct, frozen=True, kw_only=True):
    """A record that is written, once, before the work, and that nothing takes away when the work fails.

    Attributes:
        source: the conditional write. skip: where a later delivery is passed over. effect: the first thing done after it.
    """

    source: Source
    function: str
    skip: Source
    effect: Source
    effect_text: str


class Lock(Struct, frozen=True, kw_only=True):
    """A conditional write whose record is said to end by its TTL attribute, seconds after it was written."""

    source: Source
    function: str
    attribute: str
    seconds: int


class Race(Struct, frozen=True, kw_only=True):
    """A record that is looked for (check) and later written without a condition (source)."""

    source: Source
    function: str
    check: Source


class Step(Struct, frozen=True, kw_only=True):
    """A step of a durable function that runs at least once, and the effect outside that it has, without a key of its own."""

    source: Source
    function: str
    effect: Source
    effect_text: str


class Durable(Struct, frozen=True, kw_only=True):
    """A durable function.

    Attributes:
        idempotent: Powertools' decorator on it. is_outside: that one is the outer of the two.
        waits: each wait with its seconds; None: without an end, or not known.
    """

    steps: tuple[Step, ...]

    source: Source
    idempotent: Source | None
    is_outside: bool
    waits: tuple[tuple[Source, str, int | None], ...]


class Handler(Struct, frozen=True, kw_only=True):
    """A function that Lambda calls with messages of a queue.

    Attributes:
        name: of the function. answer: whether what it returns may name failed messages: `reports`, `never`, or `unknown`.
        is_powertools: a batch processor of Powertools answers, which raises when every message of a batch has failed.
        functions: what it may call, its own name among them; with `module.name` of each, for `Call.function` and the others.
        is_guarded: something in it may keep a second delivery from doing the work again.
        registers_context: in one of its files a Lambda context is registered with a configuration of Powertools'.
        acts: it does something that may fail.
    """

    name: str
    file: str
    source: Source
    answer: Literal["reports", "never", "unknown"]
    is_powertools: bool
    acts: bool
    functions: frozenset[str]
    is_guarded: bool
    registers_context: bool
    swallowed: tuple[Swallowed, ...]
    calls: tuple[Call, ...]
    keys: tuple[Key, ...]
    idempotency: tuple[Idempotency, ...]
    claims: tuple[Claim, ...]
    locks: tuple[Lock, ...]
    races: tuple[Race, ...]
    thresholds: tuple[Threshold, ...]
    durable: Durable | None


class Countdown(Struct, frozen=True, kw_only=True):
    """A task of Celery that is sent with a countdown, in seconds."""

    source: Source
    function: str
    seconds: int


class Timeout(Struct, frozen=True, kw_only=True):
    """Celery's `visibility_timeout`, in seconds."""

    source: Source
    seconds: int


class Threshold(Struct, frozen=True, kw_only=True):
    """A body size, in bytes, above which the extended client of SQS puts a body into S3."""

    source: Source
    function: str
    size: int


class Code(Struct, frozen=True, kw_only=True):
    """All that was read from Python files.

    Attributes:
        texts: each file as it was read. handlers: of queues. calls: of AWS, wherever they are.
        keys: those outside of handlers. extends: a message's visibility is changed somewhere.
    """

    texts: Mapping[str, str]
    handlers: tuple[Handler, ...]
    calls: tuple[Call, ...]
    keys: tuple[Key, ...]
    deletions: tuple[Deletion, ...]
    countdowns: tuple[Countdown, ...]
    timeouts: tuple[Timeout, ...]
    thresholds: tuple[Threshold, ...]
    extends: bool
