"""The guard alone, on any function, in any framework: `@onefold.once(key=..., store=...)`, sync and async.

The same claim, lease, fence, fingerprint and unknown-outcome rules as a job's, without queue or worker: the caller is the
delivery. A second call with the same key answers the stored result; one that runs elsewhere is waited for or refused; an
exception releases the key and is raised to the caller. After as many deaths as `crashes` says, a key is held for a person.
Never here: retries between calls, queues. Invariant: a result is returned only after its record was written.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from itertools import starmap
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypedDict, TypeVar

from msgspec.structs import replace

from onefold import duration, errors, forks, owner_process
from onefold.clock import Never, SystemClock
from onefold.codec import digest, outline, payload_type
from onefold.contracts import store as records
from onefold.contracts.store import (
    Ask,
    Claimed,
    Complete,
    Completed,
    Conflict,
    Fail,
    Failure,
    Held,
    Release,
    Running,
    Unknown,
)
from onefold.duration import Duration
from onefold.entropy import SystemEntropy
from onefold.interrupts import ignored, is_of_a_signal, let_through
from onefold.options import check_choice, checked_options
from onefold.record.failures import classify
from onefold.record.keys import KeyFunction, key_rule
from onefold.runner import once_reports
from onefold.runner.once_reports import CallHistory
from onefold.runtime.events import is_kept, kept_text
from onefold.runtime.names import declare, take
from onefold.steady_clock import SteadyClock, lease_from_ms, until_ms

if TYPE_CHECKING:
    from onefold.contracts.verbs import State, Store
    from onefold.outside import Clock, Entropy, Waiter


A = ParamSpec("A")
R = TypeVar("R")

_WAIT_MS = 100  # how often a waiting duplicate looks again
_WRITE_TRIES = 6  # a record that cannot be written is tried again after 50 ms x 2^n: about 1.6 s in all
_WRITE_PAUSE_MS = 50
_LOOK_MS = 30_000  # how often the keeper of leases looks whether the clock was set
_log = logging.getLogger("onefold")
_inside: ContextVar[tuple[records.Hold, ...]] = ContextVar("onefold_once", default=())
"""The calls that this thread, or this task and those it came from, is in the middle of."""


class LeaseKeeper:
    """Renews the leases of calls that run longer than a third of their lease. One daemon thread, started when needed.

    A lease that is lost, or over, while its call runs is logged. When the machine's clock is set forward, all are renewed
    before the time without steps follows it, however long they last (`steady_clock.HOLD_MS`).
    """

    def __init__(self, store: Store, clock: Clock, lease_ms: int) -> None:
        self._store = store
        self._clock = clock
        self._lease_ms = lease_ms
        self._holds: dict[records.Hold, bool] = {}  # of calls that are not recorded yet; False: not renewed any more
        self._ends: dict[records.Hold, int] = {}  # of the thread: when each lease is over unless renewed
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        forks.in_child(self._start_anew)

    def _start_anew(self) -> None:
        """In a forked child: the calls that run are the parent's, and its thread is not here."""
        self._holds, self._stop, self._lock, self._thread = {}, threading.Event(), threading.Lock(), None

    def add(self, hold: records.Hold) -> None:
        """Renew from now on."""
        self._holds[hold] = True
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    thread = threading.Thread(target=self._renew_all, name="onefold-once", daemon=True)
                    thread.start()
                    self._thread = thread  # after its start: an exception out of a signal's handler may come between

    def __contains__(self, hold: records.Hold) -> bool:
        """Whether a call of this process has it, up to the end of its record's write."""
        return hold in self._holds

    def end(self, hold: records.Hold) -> None:
        """The call's record is about to be written: renew no more."""
        self._holds[hold] = False

    def remove(self, hold: records.Hold) -> None:
        """The call is over."""
        self._holds.pop(hold, None)

    def _renew_all(self) -> None:
        renewed_ms, third_ms = self._clock.monotonic_ms(), self._lease_ms // 3
        while not self._clock.wait(self._stop, min(third_ms, _LOOK_MS)):
            now_ms = lease_from_ms(self._clock)
            is_set = isinstance(self._clock, SteadyClock) and self._clock.behind_ms > 0
            if not is_set and self._clock.monotonic_ms() - renewed_ms < third_ms:
                continue
            renewed_ms = self._clock.monotonic_ms()
            holds = [hold for hold, is_renewed in list(self._holds.items()) if is_renewed]
            if holds:
                self._renew(holds, now_ms, until_ms(self._clock, now_ms, self._lease_ms))

    def _renew(self, holds: list[records.Hold], now_ms: int, ends_ms: int) -> None:
        self._ends = {hold: self._ends.get(hold, ends_ms) for hold in holds}
        try:
            kept = self._store.renew(holds, ends_ms)
        except errors.OnefoldError as error:  # tried again a third of a lease later; no signal comes in this thread
            for hold in holds:
                if self._ends[hold] <= now_ms:
                    text = "%s %r: its lease is over while it runs, and could not be renewed: %s"
                    _log.warning(text, hold.key.job, hold.key.key, error)
            return
        for hold, is_renewed in zip(holds, kept, strict=True):
            self._ends[hold] = ends_ms
            if not is_renewed and self._holds.get(hold):  # else the call has ended meanwhile
                self.end(hold)
                text = "%s %r: its lease was lost while it runs: another call has taken it over. It will end with LeaseLost."
                _log.warning(text, hold.key.job, hold.key.key)


class Guard:
    """What `once` holds for one function. Not for use by itself."""

    look_again_ms = _WAIT_MS
    inside = _inside

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        key: str | KeyFunction,
        store: Store,
        name: str,
        tenant: str | KeyFunction | None,
        ignore: object,
        keep_ms: int,
        lease_ms: int,
        on_unknown: Literal["rerun", "hold"],
        on_running: Literal["wait", "raise"],
        wait_ms: int,
        crashes: int,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        check_choice(on_unknown, ("rerun", "hold"), "on_unknown")
        check_choice(on_running, ("wait", "raise"), "on_running")
        once_reports.check_crashes(crashes)
        self.name = name
        self.store = store
        self._history = CallHistory(store, name, on_unknown, crashes)
        self.clock = clock
        self._lease_from_ms = clock.fresh_ms if isinstance(clock, SteadyClock) else clock.now_ms
        self.never: Waiter = Never()
        self._signature = inspect.signature(function)
        self._names = tuple(self._signature.parameters)
        self._plain = all(
            parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and parameter.default is inspect.Parameter.empty
            for parameter in self._signature.parameters.values()
        )
        parameters = self._signature.parameters
        self._ignored = once_reports.fingerprinted(function, self._signature, ignore, name)
        self._defaults = once_reports.defaults_of(self._signature)
        self._open = next((one.name for one in parameters.values() if one.kind is inspect.Parameter.VAR_KEYWORD), None)
        fields: Any = Any if self._open else TypedDict(f"The call of {name}", dict.fromkeys(parameters, Any))  # type: ignore[operator]
        self._key = key_rule(key, fields, what=f"key of {name}")
        self._tenant = key_rule(tenant, fields, what=f"tenant of {name}") if tenant else None
        returned = once_reports.returned(function)
        self._result = payload_type(Any, result=returned)
        self._replays = once_reports.Replays(function, name) if returned in (Any, object) else None
        self._keep_ms = keep_ms
        self._lease_ms = lease_ms
        self._on_unknown = on_unknown
        self._crashes = crashes
        self._wait_ms = wait_ms
        self.on_running = on_running
        self._entropy = entropy
        self._owner = owner_process.owner_of(entropy.token())
        self._keeper = LeaseKeeper(store, clock, lease_ms)
        self._is_named = False  # whether its name is known to be that of guarded calls on this store
        self._asking: dict[
            object, records.RecordKey
        ] = {}  # of calls that are about to know whether they have their key

        self.generation = forks.generation()
        forks.in_child(self._start_anew)

    def _start_anew(self) -> None:
        """In a forked child: another owner, and none of the parent's calls."""
        self._owner = owner_process.owner_of(self._entropy.token())
        self._asking = {}
        self.generation = forks.generation()

    def claim(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Claimed | Completed | Running:
        """Claim the call's operation; Running when someone else has it.

        Raises:
            PayloadError: no key. ConflictError: the key came with other arguments before.
            OutcomeUnknown: an earlier call's outcome is not known, and the policy is to hold.
        """
        if not self._is_named:
            self._take_name()
        arguments = self._arguments(args, kwargs)
        named = self._named(arguments)
        told = (
            {one: value for one, value in arguments.items() if one not in self._ignored} if self._ignored else arguments
        )
        try:
            fingerprint = digest(outline(told))
        except errors.PayloadError as error:
            raise once_reports.without_form(self.name, told, error) from None
        now_ms = self._lease_from_ms()
        ask = Ask(
            key=records.RecordKey(self._tenant.of(named) if self._tenant else "", self.name, self._key.of(named)),
            fingerprint=fingerprint,
            owner=self._owner,
            lease_until_ms=until_ms(self.clock, now_ms, self._lease_ms),
            start=True,
            expires_at_ms=now_ms + self._keep_ms,
        )
        found: records.Answer | None = None
        call = object()
        self._asking[call] = ask.key
        try:
            found = self._history.claim(ask, now_ms)
            if isinstance(found, Conflict) and once_reports.is_alike(
                told, fingerprint, found.fingerprint, self._defaults
            ):
                found = self._history.claim(replace(ask, fingerprint=found.fingerprint), now_ms)
            if isinstance(found, Claimed):
                found = self._claimed(found, now_ms)
            self._asking.pop(call)
        except BaseException as error:
            if not isinstance(error, errors.OnefoldError) or is_of_a_signal(error):  # nobody will run what was claimed
                self.give_back(found if found is not None else self._claimed_unheard(ask, now_ms))
            self._asking.pop(call, None)
            raise
        match found:
            case Claimed() | Completed():
                return found  # without another call in between, which an exception could follow
            case Running():
                if self.on_running == "wait" and records.Hold(ask.key, found.owner, found.fence) in _inside.get():
                    raise once_reports.own_call(self.name, ask.key.key)
                return found
            case Held():
                raise self._unknown(ask.key, now_ms)
            case Conflict():
                raise errors.ConflictError(
                    f"{self.name} was called with key {ask.key.key!r} and other arguments than the first time.",
                    meaning=f"Fingerprint {ask.fingerprint[:12]}, first {found.fingerprint[:12]} (now {found.status})."
                    " Of the first arguments only the fingerprint is kept, which does not show the one that differs.",
                    todo="If this is another operation, give it another key; if it is the same, pass the same arguments.",
                )

    def _take_name(self) -> None:
        state: State | None = getattr(self.store, "state", None)
        if state is not None:
            take(state, (self.name,), None, self.clock.now_ms())
        self._is_named = True

    def _claimed(self, found: Claimed, now_ms: int) -> Claimed:
        if found.crashed:
            _log.warning(
                "%s %r: the call of %s ended with its process (%d of at most %d); whether it took effect is not known.",
                self.name, found.hold.key.key, found.previous_owner, found.crashes, self._crashes,
            )  # fmt: skip
        if not found.started:
            if found.doubt and (self._on_unknown == "hold" or found.crashes >= self._crashes):
                why = "on_unknown is hold" if self._on_unknown == "hold" else f"crashes is {self._crashes}"
                failure = Failure(kind="unknown", error="CallerDied", summary=once_reports.died(found, why))
                parked = Unknown(failure=failure, expires_at_ms=now_ms + self._keep_ms, parked=True)
                if self.store.write([(found.hold, parked)], now_ms)[0]:
                    self._history.note(found, now_ms, "held", failure)
                raise self._unknown(found.hold.key, now_ms)
            if not self.store.start([found.hold], now_ms)[0]:
                raise errors.LeaseLost(f"{self.name} {found.hold.key.key!r} was taken over.", todo="Call again.")
        self._keeper.add(found.hold)
        return found

    def _claimed_unheard(self, ask: Ask, now_ms: int) -> Claimed | None:
        """What the store gave this call, whose answer an exception has torn away; None when it may be another thread's."""
        (record,) = self.store.read((ask.key,), now_ms)
        if record is None or record.status != "in_progress" or record.owner != self._owner:
            return None
        hold = records.Hold(ask.key, record.owner, record.fence)
        if list(self._asking.values()).count(ask.key) > 1 or hold in self._keeper:
            return None
        return Claimed(
            hold=hold, found="absent", doubt=False, started=True, attempts=record.attempts, crashes=record.crashes,
            first_at_ms=record.created_at_ms,
        )  # fmt: skip

    def finished(self, claimed: Claimed, value: object) -> None:
        """Write the record of a call that returned `value`.

        Raises:
            PayloadError: the result cannot be stored; the effect happened, and the outcome is parked for a person.
            UsageError: the result is an iterator or has to be awaited; the key is free.
            LeaseLost: someone else took the operation over; their result counts.
            OutcomeUnknown: the store could not write for a while; the effect happened, and nothing says so.
        """
        self._keeper.end(claimed.hold)
        try:
            self._record(claimed, value)
        finally:
            self._keeper.remove(claimed.hold)  # after the write: until then the claim is this call's, and no torn one's

    def _record(self, claimed: Claimed, value: object) -> None:
        now_ms = self.clock.now_ms()
        expires_at_ms = now_ms + self._keep_ms
        try:
            result = self._result.encode_result(value)
        except errors.PayloadError as error:
            if isinstance(value, once_reports.LAZY):
                refused = once_reports.lazy_result(self.name, value)
                reason = Failure(kind="permanent", error="UsageError", summary=refused.what)
                if self._write(claimed, Fail(failure=reason, expires_at_ms=expires_at_ms)):
                    self._history.note(claimed, now_ms, "failed", reason)
                raise refused from None
            failure = Failure(kind="unknown", error="PayloadError", summary=kept_text(error))
            if self._write(claimed, Unknown(failure=failure, expires_at_ms=expires_at_ms, parked=True)):
                self._history.note(claimed, now_ms, "held", failure)
            raise once_reports.not_recorded(claimed.hold.key.key, error) from None
        if not self._write(claimed, Complete(result=result, expires_at_ms=expires_at_ms)):
            self._history.note(claimed, now_ms, "lease-lost")
            raise errors.LeaseLost(
                f"{self.name} {claimed.hold.key.key!r} finished, but its lease had been taken over.",
                meaning="The run that took over decides what is recorded; this result was dropped.",
                todo="Give the call a longer lease, or find out why this process could not renew it.",
            )
        replays = self._replays
        if replays is not None and not replays.is_over and type(value) not in replays.same:
            replays.look(value, self._result.decode_result(result))

    def _write(self, claimed: Claimed, outcome: records.Outcome) -> bool:
        """Write what became of a call that had its effect; again for a while when the store cannot."""
        for number in range(_WRITE_TRIES):
            try:
                return self.store.write(((claimed.hold, outcome),), self.clock.now_ms())[0]
            except errors.TransientError as error:
                let_through(error)
                if number + 1 == _WRITE_TRIES:
                    raise errors.OutcomeUnknown(
                        f"{self.name} {claimed.hold.key.key!r} took effect, but its record could not be written: {error}",
                        meaning="When its lease is over, the next call with this key is treated as on_unknown says.",
                        todo="Find out why the store fails, and whether the call is to be repeated.",
                    ) from error
                self.clock.wait(self.never, _WRITE_PAUSE_MS << number)
        raise AssertionError("not reached: the last try returns or raises")

    def failed(self, claimed: Claimed, error: BaseException) -> None:
        """Write the record of a call that raised: claimable at once, or unknown when the error says so.

        A store that cannot write must not hide what the function raised; then the key is free when the lease is over.
        """
        self._keeper.end(claimed.hold)
        try:
            self._record_failure(claimed, error)
        finally:
            self._keeper.remove(claimed.hold)

    def _record_failure(self, claimed: Claimed, error: BaseException) -> None:
        now_ms = self.clock.now_ms()
        told = classify(error, now_ms=now_ms, with_text=is_kept())
        expires_at_ms = now_ms + self._keep_ms
        failure = Failure(kind=told.kind, error=told.error, summary=told.summary)
        outcome: records.Outcome = Fail(failure=failure, expires_at_ms=expires_at_ms)
        if told.kind == "unknown":
            outcome = Unknown(failure=failure, expires_at_ms=expires_at_ms, parked=self._on_unknown == "hold")
        with ignored(errors.TransientError):
            if self.store.write(((claimed.hold, outcome),), now_ms)[0]:
                self._history.note(claimed, now_ms, "unknown" if told.kind == "unknown" else "failed", failure, told)
                if isinstance(outcome, Unknown) and outcome.parked:
                    self._history.note(claimed, now_ms, "held", failure)
            else:
                self._history.note(claimed, now_ms, "lease-lost", failure)
                error.add_note(f"onefold: the lease of {self.name} {claimed.hold.key.key!r} had been taken over.")

    def give_back(self, found: records.Answer | None) -> None:
        """Let go of a claim whose call did not start after all."""
        if isinstance(found, Claimed):
            self._keeper.remove(found.hold)
            now_ms = self.clock.now_ms()
            release = Release(expires_at_ms=now_ms + self._keep_ms, refund=True)
            with ignored(errors.TransientError):  # then it is free when its lease is over
                self.store.write(((found.hold, release),), now_ms)

    def ended(self, found: Claimed, values: list[Any], error: BaseException, *, runs: bool) -> None:
        """Record a call that raised, or that a signal's handler tore from its record; once more if that is torn, too."""
        for is_last in (False, True):
            try:
                if values:
                    self.finished(found, values[0])
                elif runs:
                    self.failed(found, error)
                else:
                    self.give_back(found)
            except BaseException as torn:
                if isinstance(torn, errors.OnefoldError) and not is_of_a_signal(torn):
                    return  # the first error counts
                if is_last:
                    raise
            else:
                return

    def stored(self, found: Completed) -> Any:
        """The result of the call that completed, as the function would have returned it."""
        try:
            return self._result.decode_result(found.result)
        except errors.PayloadError as error:
            raise once_reports.unfit(self.name, found.hold.key.key, error) from None

    def wait_from(self, found: Running, since_ms: int | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Since when a duplicate that has met a running call waits; None: until now it has not.

        Raises:
            TransientError: it does not want to wait, or has waited for as long as it may.
        """
        waits, now_ms = self.on_running == "wait", self.clock.monotonic_ms()
        if waits and since_ms is None and owner_process.ended([found.owner]):
            left_ms = max(found.until_ms - self.clock.now_ms(), 0)
            key = self._key.of(self._named(self._arguments(args, kwargs)))
            text = "%s %r waits up to %s: the process of the call that had the key, owner %s, has ended. Its lease has not."
            _log.warning(text, self.name, key, duration.to_text(left_ms), found.owner)
        since_ms = now_ms if since_ms is None else since_ms
        if not waits or now_ms - since_ms >= self._wait_ms:
            waited_ms = self._wait_ms if waits else None
            own = found.owner == self._owner
            key = self._key.of(self._named(self._arguments(args, kwargs)))
            raise once_reports.running(self.name, key, found, self.clock.now_ms(), waited_ms=waited_ms, own=own)
        return since_ms

    def _unknown(self, key: records.RecordKey, now_ms: int) -> errors.OutcomeUnknown:
        return once_reports.held(self.name, self.store.read([key], now_ms)[0], key)

    def _named(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments as key rules see them: those of **kwargs by their own names, too."""
        return {**arguments[self._open], **arguments} if self._open else arguments

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
        if self._plain and not kwargs and len(args) == len(self._names):
            return dict(zip(self._names, args, strict=True))
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments


@checked_options
def once(
    *,
    key: str | KeyFunction,
    store: Store,
    name: str | None = None,
    tenant: str | KeyFunction | None = None,
    ignore: Collection[str] = (),
    keep: Duration = "90d",
    lease: Duration = "60s",
    on_unknown: Literal["rerun", "hold"] = "rerun",
    on_running: Literal["wait", "raise"] = "wait",
    wait: Duration = "10m",
    crashes: int = 3,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
) -> Callable[[Callable[A, R]], Callable[A, R]]:
    """Let a function take effect once per key; a repeated call is answered with the stored result.

    Args:
        key: which operation a call is: a template over the argument names ("{order.id}"), a JMESPath expression
            ("jmespath:..."), or a function of the mapping of arguments.
        store: where the records are, from `onefold.store(url)`.
        name: of the operation, a part of every key: renaming makes every key new. The function's module and name unless
            given; it has to be given in a script that is started itself, and for lambdas and partials.
        tenant: scope of the key, by a rule as `key`.
        ignore: parameters that do not say what is done (a connection, a request): calls that differ only in them are the
            same. A method's `self` or `cls` always is; every other argument needs a JSON form.
        keep: how long a result answers duplicates.
        lease: how long a call holds its key between two renewals.
        on_unknown: after a crash in the middle: `rerun`, or `hold` for a person.
        on_running: a call whose key runs elsewhere waits for it, or raises TransientError.
        wait: how long such a call waits before it raises TransientError all the same.
        crashes: calls with one key that may end with their process; then it is held, whatever `on_unknown` says.
        clock, entropy: where time and chance come from.

    Raises:
        UsageError: an option that cannot be right, or a generator function, when it decorates.
        ConflictError: another function of this program has the name on the same store, when it decorates.
    Raises (from the decorated function):
        PayloadError: no key, or arguments or result that have no JSON form.
        ConflictError: the key came with other arguments, or `name` is that of an app's job on the same store.
        OutcomeUnknown: held for a person. LeaseLost: taken over while it ran. TransientError: runs elsewhere.
        UsageError: called from within its own call; or it returned an iterator, or what has to be awaited.
        Exception: whatever the function raised; the key is free again.
    """

    def decorate(function: Callable[A, R]) -> Callable[A, R]:
        guard = Guard(
            function,
            key=key,
            store=store,
            name=once_reports.named(name, function, store),
            tenant=tenant,
            ignore=ignore,
            keep_ms=duration.to_ms(keep, "keep", least_ms=1),
            lease_ms=duration.to_ms(lease, "lease", least_ms=1_000),
            on_unknown=on_unknown,
            on_running=on_running,
            wait_ms=duration.to_ms(wait, "wait", least_ms=0),
            crashes=crashes,
            clock=clock or getattr(store, "clock", None) or SteadyClock(SystemClock()),
            entropy=entropy or SystemEntropy(),
        )
        if inspect.iscoroutinefunction(function):
            from onefold.runner import once_async  # 36 ms for asyncio; a program with coroutines has it already

            guarded: Callable[A, R] = once_async.asynchronous(function, guard)
        else:
            guarded = _synchronous(function, guard)
        declare(store, guard.name, function, guarded, is_given=name is not None)
        return guarded

    return decorate


def _synchronous(function: Callable[A, R], guard: Guard) -> Callable[A, R]:
    @functools.wraps(function)
    def guarded(*args: A.args, **kwargs: A.kwargs) -> R:
        found: Claimed | Completed | Running | None = None
        values: list[R] = []
        runs, generation = False, guard.generation
        since_ms: int | None = None
        outside = _inside.get()
        try:
            found = guard.claim(args, kwargs)
            while isinstance(found, Running):
                since_ms = guard.wait_from(found, since_ms, args, kwargs)
                guard.clock.wait(guard.never, _WAIT_MS)
                found = guard.claim(args, kwargs)
            if isinstance(found, Completed):
                answer: R = guard.stored(found)
                return answer
            call = functools.partial(function, **kwargs) if kwargs else function
            _inside.set((*outside, found.hold))
            runs = True
            values.extend(starmap(call, (args,)))  # in C: no exception of a signal between the effect and its result
            if guard.generation == generation:  # else the function forked, and both came back: the parent records it
                guard.finished(found, values[0])
        except BaseException as error:
            if guard.generation != generation:
                raise
            # What `finished` raised itself is all that is to be said; anything else came between two steps.
            is_said = bool(values) and isinstance(error, errors.OnefoldError) and not is_of_a_signal(error)
            if isinstance(found, Claimed) and not is_said:
                guard.ended(found, values, error, runs=runs)
            raise
        finally:
            if runs:
                _inside.set(outside)
        return values[0]

    return guarded
