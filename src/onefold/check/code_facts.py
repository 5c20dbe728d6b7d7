"""Facts from Python files: handlers of queues, AWS calls and idempotency keys, as plain values with positions.

Never here: reading code (collect_python.py and the other collect modules), or rules. Invariant: a field states what is
certain; what the files do not show is None, "unknown" or left out, and no rule reports it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from msgspec import Struct

from onefold.check.findings import FindingSource
from onefold.check.python_values import Origin


class Argument(Struct, frozen=True):
    """An argument of a call.

    Attributes:
        text: the source text, shortened. constant: its value, if it is a constant; otherwise None.
        origins: what its value certainly contains. variable: the environment variable that it is read from.
    """

    text: str
    source: FindingSource
    constant: object = None
    origins: frozenset[Origin] = frozenset()
    variable: str | None = None


class CodeFact(Struct, frozen=True, kw_only=True):
    """A fact with a place in a function.

    Attributes:
        source: where it is. function: the id of the unit that it is in.
    """

    source: FindingSource
    function: str

    @property
    def name(self) -> str:
        """The name of the function, for people."""
        return self.function.rpartition(":")[2] or "the module"


class CodeCall(CodeFact, frozen=True, kw_only=True):
    """An AWS call through boto3.

    Attributes:
        service, operation: boto3's names, such as `sqs` and `send_message`; calls of resources have the client's names.
        arguments: by AWS's names. is_complete: all arguments are known.
        read_timeout_s: the read timeout of the client; None if not known. attempts: the number of attempts of the SDK
            in total; None if not known.
        is_entry: an entry of a batch call.
    """

    service: str
    operation: str
    arguments: Mapping[str, Argument]
    is_complete: bool
    read_timeout_s: float | None
    attempts: int | None
    is_entry: bool = False

    @property
    def position(self) -> tuple[str, int, int]:
        """File, line and column, which identify the call."""
        return self.source.file, self.source.start_line, self.source.start_column

    @property
    def is_send(self) -> bool:
        """Whether it sends to a queue; of a batch the whole, not its entries."""
        is_send = self.service == "sqs" and self.operation in {"send_message", "send_message_batch"}
        return is_send and not self.is_entry

    def lacks(self, name: str) -> bool:
        """Whether an argument is certainly missing."""
        return self.is_complete and name not in self.arguments


class Key(CodeFact, frozen=True, kw_only=True):
    """An idempotency key.

    Attributes:
        what: the beginning of a sentence about it. text: the source text.
        origins: what it certainly contains. is_whole: it is the whole event or record, with the values of the delivery.
        is_for_partner: it is passed to another service and not stored.
    """

    what: str
    text: str
    origins: frozenset[Origin]
    is_whole: bool = False
    is_for_partner: bool = False


class Idempotency(CodeFact, frozen=True, kw_only=True):
    """A use of Powertools' idempotency: `@idempotent` or `@idempotent_function`.

    Attributes:
        life_s: how long a record is kept, in seconds; None if not known. life: where that is written, or the decorator.
        has_context: the decorator registers the Lambda context itself, as `@idempotent` does.
    """

    has_context: bool
    life_s: int | None
    life: FindingSource
    is_default_life: bool


class Swallowed(CodeFact, frozen=True, kw_only=True):
    """An `except` or `suppress` after which a failed message counts as processed: nothing is raised, reported or stored."""

    is_batch: bool


class Deletion(CodeFact, frozen=True, kw_only=True):
    """A deletion of a message that does not depend on its work: in a `finally`, or before the work.

    Attributes:
        work: for a deletion before the work, the first call that uses the message afterwards.
    """

    how: Literal["finally", "before"]
    work: FindingSource | None = None
    work_text: str = ""


class CodeClaim(CodeFact, frozen=True, kw_only=True):
    """A record that is written with a condition before the work, and that nothing deletes when the work fails.

    Attributes:
        source: the conditional write. skip: where a later delivery is skipped. effect: the first call after the write.
    """

    skip: FindingSource
    effect: FindingSource
    effect_text: str


class Lock(CodeFact, frozen=True, kw_only=True):
    """A conditional write of a lock that only the table's TTL releases, `seconds` after the write."""

    attribute: str
    seconds: int


class Race(CodeFact, frozen=True, kw_only=True):
    """A record that is read (check) and later written without a condition (source)."""

    check: FindingSource


class CodeStep(CodeFact, frozen=True, kw_only=True):
    """A step of a durable function that can run more than once, and its effect on another service without a key."""

    effect: FindingSource
    effect_text: str


class Durable(Struct, frozen=True, kw_only=True):
    """A durable function.

    Attributes:
        idempotent: Powertools' decorator on the same function. is_outside: that decorator is the outer one.
        waits: the place, kind and seconds of each wait; None: no timeout. steps: those that send something.
    """

    source: FindingSource
    idempotent: FindingSource | None
    is_outside: bool
    waits: tuple[tuple[FindingSource, str, int | None], ...]
    steps: tuple[CodeStep, ...]


class CodeHandler(Struct, frozen=True, kw_only=True):
    """A function that Lambda invokes with messages of a queue.

    Attributes:
        answer: whether its return value can report failed messages: `reports`, `never`, or `unknown`.
        is_powertools: a batch processor of Powertools makes the response, and raises if all messages of a batch failed.
        functions: the ids of the units that it can call, and its own.
        is_guarded: something in it can keep a second delivery from repeating the work.
        registers_context: one of its files registers a Lambda context with a configuration of Powertools.
        acts: it makes a call that can fail. on_instances: Lambda Managed Instances run it, as each template says.
    """

    name: str
    file: str
    source: FindingSource
    answer: Literal["reports", "never", "unknown"]
    is_powertools: bool
    on_instances: bool
    acts: bool
    functions: frozenset[str]
    is_guarded: bool
    registers_context: bool
    swallowed: tuple[Swallowed, ...]
    calls: tuple[CodeCall, ...]
    keys: tuple[Key, ...]
    idempotency: tuple[Idempotency, ...]
    claims: tuple[CodeClaim, ...]
    locks: tuple[Lock, ...]
    races: tuple[Race, ...]
    thresholds: tuple[Threshold, ...]
    durable: Durable | None


class Countdown(CodeFact, frozen=True, kw_only=True):
    """A Celery task that is sent with a countdown, in seconds."""

    seconds: int


class Timeout(Struct, frozen=True, kw_only=True):
    """Celery's `visibility_timeout`, in seconds."""

    source: FindingSource
    seconds: int


class Threshold(CodeFact, frozen=True, kw_only=True):
    """The body size in bytes above which the extended SQS client stores a body in S3."""

    size: int


class Code(Struct, frozen=True, kw_only=True):
    """All that was read from Python files.

    Attributes:
        texts: the text of each file. handlers: of queues. calls: all AWS calls. keys: keys outside of handlers.
        extends: some call changes the visibility of a message.
    """

    texts: Mapping[str, str]
    handlers: tuple[CodeHandler, ...]
    calls: tuple[CodeCall, ...]
    keys: tuple[Key, ...]
    deletions: tuple[Deletion, ...]
    countdowns: tuple[Countdown, ...]
    timeouts: tuple[Timeout, ...]
    thresholds: tuple[Threshold, ...]
    extends: bool

    @property
    def unguarded_calls(self) -> Iterator[CodeCall]:
        """The calls of handlers in which nothing keeps a second delivery from repeating the work."""
        return (call for one in self.handlers if not one.is_guarded for call in one.calls)
