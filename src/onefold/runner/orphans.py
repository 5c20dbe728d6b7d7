"""Messages that no job here takes: the app declares no job of their name on their queue, or they belong to another app.

They wait for a worker that takes them (during a deployment, for example), longer each time. They are reported at once and
then every ten minutes. Well before their retention ends they are moved to the dead-letter queue with the reason, and
can be redriven from there. Where every check costs a receive (SQS), they are moved at the last receive that the queue
allows. Waiting messages are noted in State under `no-job/<queue>`, for `onefold status` and `onefold stuck`.
Never here: settling. Invariant: a sender that invents many job names can fill neither State nor ledger.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from msgspec import Struct

from onefold import errors, limits
from onefold.clock import age_ms as age_of
from onefold.contracts.documents import reader
from onefold.contracts.queue import APP_ATTRIBUTE, JOB_ATTRIBUTE, Attribute, Delivery
from onefold.contracts.settings import QueueSettings
from onefold.contracts.state import Change
from onefold.interrupts import ignored
from onefold.record.attempt import Facts
from onefold.record.delivery import Backoff, Detail, Policy
from onefold.runner.execution import Execution

if TYPE_CHECKING:
    from onefold.contracts.verbs import State
    from onefold.outside import Clock
    from onefold.runner.handlers import Job

PLACE: Final = "no-job/"  # prefix of the name in State; the queue follows
REPORT_MS: Final = 10 * limits.MINUTE_MS
FRESH_MS: Final = 3 * REPORT_MS  # if a note is older, the messages no longer wait, or no worker checks them
_FIRST_MS: Final = limits.SECOND_MS
_LONGEST_MS: Final = 5 * limits.MINUTE_MS
_COUNTED_FIRST_MS: Final = 30 * limits.SECOND_MS
_COUNTED_LONGEST_MS: Final = 15 * limits.MINUTE_MS
_NAMES_MAX: Final = 20  # names of jobs that are noted per queue
_NAME_CHARS_MAX: Final = 128
_OTHERS: Final = "(others)"
_HIDDEN_MIN: Final = 1_000  # how many hidden messages are remembered before those visible again are forgotten


class WaitingForJob(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A note about messages that wait for one job.

    Args:
        at_ms: when such a message was last seen. message_id: its id. why: the reason why no job takes it. ends_at_ms:
            when it is moved to the dead-letter queue.
    """

    at_ms: int
    message_id: str
    why: str
    ends_at_ms: int


def wait_ms(settings: QueueSettings, age_ms: int, receive_count: int, *, counted: bool) -> int | None:
    """How long to hide a message that no job takes, ms; None when it has waited long enough.

    Args:
        settings: its queue's. age_ms: the time since it was sent. receive_count: this receive included.
        counted: whether each check uses up one of the receives that the queue allows.
    """
    if settings.dead_letter is not None:
        worn = counted and settings.receives_max is not None and receive_count >= settings.receives_max
        if worn or age_ms >= patience_ms(settings):
            return None
    if counted:
        return min(_COUNTED_FIRST_MS << min(max(receive_count - 1, 0), 10), _COUNTED_LONGEST_MS)
    return min(max(age_ms, _FIRST_MS), _LONGEST_MS)


def patience_ms(settings: QueueSettings) -> int:
    """The age at which a message of this queue is moved to the dead-letter queue, ms."""
    return settings.retention_ms // 2


class Orphans:
    """Decides about such messages for one runner, and reports them. Safe from the threads that begin runs.

    Args:
        settings: the app's queues by name. report: called with a delivery and the event's detail.
    """

    def __init__(
        self,
        settings: Mapping[str, QueueSettings],
        state: State,
        clock: Clock,
        report: Callable[[Delivery, Detail], None],
    ) -> None:
        self._settings = settings
        self._state = state
        self._clock = clock
        self._report = report
        self._reported_ms: dict[tuple[str, str], int] = {}  # queue and name: monotonic instant of the last report
        self._hidden: dict[str, dict[str, int]] = {}  # queue, receipt: monotonic instant at which it is visible again
        self._prune_at = _HIDDEN_MIN
        self._lock = threading.Lock()

    def settle(self, delivery: Delivery, why: str, *, counted: bool) -> int | Execution:
        """How long a message is hidden, ms; or the run that moves it to the dead-letter queue."""
        settings = self._settings.get(delivery.queue) or QueueSettings(name=delivery.queue)
        found = wait_ms(settings, age_of(self._clock, delivery.sent_at_ms), delivery.receive_count, counted=counted)
        if found is None:
            return _dead_letter(delivery, why)
        self._warn(delivery, why, delivery.sent_at_ms + patience_ms(settings))
        return found

    def hide(self, queue: str, receipts: Collection[str], until_ms: int) -> None:
        """Remember messages that were returned and stay hidden until a monotonic instant."""
        with self._lock:
            hidden = self._hidden.setdefault(queue, {})
            hidden.update(dict.fromkeys(receipts, until_ms))
            if len(hidden) > self._prune_at:
                self._hidden[queue] = hidden = _later(hidden, self._clock.monotonic_ms())
                self._prune_at = max(2 * len(hidden), _HIDDEN_MIN)

    def hidden(self, queue: str) -> int:
        """How many messages of a queue this worker has hidden now because no job here takes them."""
        with self._lock:
            self._hidden[queue] = found = _later(self._hidden.get(queue, {}), self._clock.monotonic_ms())
            return len(found)

    def _warn(self, delivery: Delivery, why: str, ends_at_ms: int) -> None:
        now_ms, queue, name = self._clock.monotonic_ms(), delivery.queue, name_of(delivery.attributes)
        if (queue, name) not in self._reported_ms and sum(one == queue for one, _ in self._reported_ms) >= _NAMES_MAX:
            name = _OTHERS
        last_ms = self._reported_ms.get((queue, name))
        if last_ms is not None and now_ms - last_ms < REPORT_MS:
            return
        self._reported_ms[queue, name] = now_ms
        wall_ms = self._clock.now_ms()
        self._report(delivery, {"job": name, "why": why[:500], "given_up_in_ms": ends_at_ms - wall_ms})
        note = WaitingForJob(at_ms=wall_ms, message_id=delivery.message_id, why=why[:500], ends_at_ms=ends_at_ms)
        with ignored(errors.OnefoldError):  # it was reported; another worker, or the next call, notes it
            self._note(queue, name, note)

    def _note(self, queue: str, name: str, note: WaitingForJob) -> None:
        found = self._state.get([PLACE + queue])[0]
        kept = {
            other: one
            for other, one in (decoded(found.value) if found is not None else {}).items()
            if note.at_ms - one.at_ms < FRESH_MS
        }
        names = sorted(kept, key=lambda other: -kept[other].at_ms)[:_NAMES_MAX]
        value = msgspec.json.encode({**{other: kept[other] for other in names}, name: note})
        self._state.put([Change(PLACE + queue, value, found.version if found is not None else 0)])


def _later(hidden: Mapping[str, int], now_ms: int) -> dict[str, int]:
    return {receipt: at_ms for receipt, at_ms in hidden.items() if at_ms > now_ms}


_read = reader(dict[str, WaitingForJob], None)


def decoded(value: bytes) -> dict[str, WaitingForJob]:
    """The notes about a queue, by job; empty if another version wrote them in another form."""
    return _read(value) or {}


def name_of(attributes: Mapping[str, Attribute]) -> str:
    """The name under which a message waits: its job's name, and its app's if the message names one."""
    job, app = attributes.get(JOB_ATTRIBUTE), attributes.get(APP_ATTRIBUTE)
    named = str(job.value) if job is not None else "(none)"
    return (f"{named} of {app.value!s}" if app is not None else named)[:_NAME_CHARS_MAX]


class _Nobody:
    """A stand-in for a job that does not exist, with what a run needs."""

    dispatches = False
    limit = None

    def __init__(self, policy: Policy) -> None:
        self.name = policy.job
        self.policy = policy


def _dead_letter(delivery: Delivery, why: str) -> Execution:
    named = delivery.attributes.get(JOB_ATTRIBUTE)
    policy = Policy(
        job=str(named.value)[:_NAME_CHARS_MAX] if named is not None else "(none)",
        queue=delivery.queue,
        effect="external",
        attempts_max=1,
        crashes_max=1,
        backoff=Backoff(),
        on_unknown="hold",
        after_failure="stop",
        timeout_ms=1,
        keep_ms=1,
        fifo=delivery.sequence is not None,
    )
    facts = Facts(
        key=None,
        malformed=why[:500],
        kind="no-job",
        message_id=delivery.message_id,
        sent_at_ms=delivery.sent_at_ms,
        receive_count=delivery.receive_count,
    )
    return Execution(cast("Job[Any, Any]", _Nobody(policy)), delivery, facts, None)
