"""Calls of a guarded function as deliveries: the source behind `once.py` and `once_async.py`.

    receive  `claim`: a call's arguments become an operation, which is claimed
    extend   `call_leases.py`
    settle   `finished`, `failed`: the outcome is recorded, and then returned or raised by the caller
    close    `give_back`: releases the key of a call that did not start after all

The meaning of a claim, whether a call runs after a crash, the consequences of a failure and the events are decided and
carried out as for a job's deliveries: by the script, the `Runner`, `Claims` and `Reports`. The common case needs no
script: the claim is fresh, the call returns, and no events are wanted. Its two writes are made here, from the values of
`record/delivery.py`.
Never here: waiting, calling the function. Invariant: whatever is claimed is recorded or released, even if a signal handler
raises an exception between any two steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from msgspec.structs import replace

from onefold import duration, errors, forks, owner_process
from onefold.clock import Never, SteadyClock, until_ms
from onefold.codec import payload_type
from onefold.contracts import store as records
from onefold.contracts.queue import Delivery
from onefold.contracts.store import Ask, Claimed, Complete, Completed, Conflict, Held, Running, Unknown, Unreadable
from onefold.interrupts import ENDING, ignored, is_of_a_signal, let_through, stems_from_signal
from onefold.options import check_choice
from onefold.record import decisions, guard
from onefold.record.attempt import Commit, Facts
from onefold.record.delivery import Backoff, NotStarted, Outcome, Policy, Success, Unstorable, completion
from onefold.record.error_text import quote_key
from onefold.record.failures import classify
from onefold.record.keys import KeyFunction
from onefold.record.lease import trusted_until_ms
from onefold.runner import once_reports
from onefold.runner.admission import Admission
from onefold.runner.aliases import NamedRecord
from onefold.runner.call_arguments import CallArguments, hints_of
from onefold.runner.call_leases import KeptCall, LeaseKeeper, owner_of_calls
from onefold.runner.execution import Execution
from onefold.runner.handlers import Job, Rules
from onefold.runner.hooks import HookSet
from onefold.runner.reports import CallReports
from onefold.runner.runner import Runner
from onefold.runner.settlement import Backend
from onefold.runtime.events import Event, Sinks, is_kept, kept_text
from onefold.runtime.names import take

if TYPE_CHECKING:
    from onefold.contracts.commit import Verdict
    from onefold.contracts.verbs import Ledger, State, Store
    from onefold.outside import Clock, Entropy, Waiter
    from onefold.record.delivery import Note
    from onefold.runner.context import Context
    from onefold.runner.late_closer import LateCloser

    OnUnknown = Literal["rerun", "hold"] | Callable[..., Any]
    Args = tuple[tuple[Any, ...], dict[str, Any]]

Begun = Claimed | Execution
"""A call that is about to be made: an `Execution` if events, a probe or a decision are needed, otherwise its claim."""

_ENDLESS: Final = 1 << 62  # attempts: calls have no limit
_LATE_MAX: Final = 3  # claims in a row whose lease ended before the call could begin
_log = logging.getLogger("onefold")
inside: ContextVar[tuple[records.Hold, ...]] = ContextVar("onefold_once", default=())
"""The calls in progress in this thread, or in this task and the tasks that started it."""
_NO_MESSAGE: Final = Delivery(
    queue="", message_id="", receipt="", body="", attributes={}, receive_count=0, sent_at_ms=0, first_received_at_ms=0,
    received_at_ms=0, visible_ms=0,
)  # fmt: skip


class _Calls(Job[Any, Any]):
    """A guarded function as the runner sees it: a job without a queue, whose probe takes the function's arguments."""

    def __init__(self, name: str, policy: Policy, rules: Rules, probe: Callable[..., Any] | None) -> None:
        self.name, self.policy, self.rules, self.probe = name, policy, rules, probe
        self.classes, self.limit, self.unique = {}, None, False

    def ask(self, payload: Any, ctx: Context) -> Any:  # noqa: ARG002 - calls have no context before they are made
        """Call the probe."""
        assert self.probe is not None
        args, kwargs = payload
        return self.probe(*args, **kwargs)


class GuardedFunction:
    """The state of `once` for one function. Internal."""

    check_again_ms = 100  # how often a waiting duplicate checks again

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        key: str | KeyFunction,
        store: Store,
        name: str,
        aliases: tuple[str, ...] = (),
        tenant: str | KeyFunction | None,
        ignore: object,
        keep_ms: int,
        lease_ms: int,
        on_unknown: OnUnknown,
        on_running: Literal["wait", "raise"],
        wait_ms: int,
        crashes: int,
        unknown: Collection[type[BaseException] | str] = (),
        sinks: Sinks,
        clock: Clock,
        entropy: Entropy,
        hooks: HookSet | None = None,
    ) -> None:
        self.hooks: HookSet = hooks or HookSet()
        check_choice("rerun" if callable(on_unknown) else on_unknown, ("rerun", "hold"), "on_unknown")
        check_choice(on_running, ("wait", "raise"), "on_running")
        once_reports.check_crashes(crashes)
        self.name = name
        self.names = (name, *aliases)
        self.store = store
        self.clock = clock
        self.on_running = on_running
        self.never: Waiter = Never()
        hints = hints_of(function)
        self._arguments = CallArguments(function, hints, name=name, key=key, tenant=tenant, ignore=ignore)
        self._arguments.check_probe(on_unknown)
        self.context_parameter = self._arguments.context_parameter
        self._lease_from_ms = clock.fresh_ms if isinstance(clock, SteadyClock) else clock.now_ms
        returned = hints.get("return", Any)
        self._result = payload_type(Any, result=returned)
        self._replays = once_reports.Replays(function, name) if returned in (Any, object) else None
        self._lease_ms, self._trusted_ms = lease_ms, trusted_until_ms(0, lease_ms)
        self._wait_ms = wait_ms
        self._entropy, self._unknowns = entropy, unknown
        self._owner = owner_of_calls(store, entropy)
        self._policy = Policy(
            job=name, queue="", effect="external", attempts_max=_ENDLESS, crashes_max=crashes, backoff=Backoff(),
            on_unknown="probe" if callable(on_unknown) else on_unknown, after_failure="skip", timeout_ms=1,
            keep_ms=keep_ms,
        )  # fmt: skip
        key_rule, tenant_rule = self._arguments.key_rule, self._arguments.tenant_rule
        rules = Rules(payload=self._result, key=key_rule, tenant=tenant_rule, group=None, source="json")
        self.job = _Calls(name, self._policy, rules, on_unknown if callable(on_unknown) else None)
        self._sinks = sinks
        self._runner = self._make_runner()
        self._keeper = LeaseKeeper(store, clock, lease_ms, self._put_back, self._lease_lost)
        self._runs: dict[records.Hold, Execution] = {}  # executions of the calls in progress that have one
        self._is_named = False  # whether the name is known to belong to guarded calls on this store
        self._asking: dict[object, records.RecordKey] = {}  # the keys of calls whose claim is being made
        self.generation = forks.generation()
        forks.in_child(self._start_anew)

    def _make_runner(self) -> Runner:
        ledger: Ledger | None = getattr(self.store, "ledger", None)
        state: State | None = getattr(self.store, "state", None)
        self._reports = CallReports(self.name, self._sinks, ledger, self.clock, self._owner)
        self._is_noted = bool(self._sinks) or ledger is not None
        self._is_followed = bool(self._sinks) or self.context_parameter is not None or self.hooks.has_any
        backend = Backend(
            store=self.store,
            ledger=cast("Ledger", ledger),
            state=cast("State", state),
            commit=None,
            open_queue=_nothing,
        )
        return Runner(
            backend,
            _nothing,
            clock=self.clock,
            entropy=self._entropy,
            never=self.never,
            owner=self._owner,
            lease_ms=self._lease_ms,
            sinks=self._sinks,
            history="off",
            admission=Admission(cast("State", state), clock=self.clock, owner=self._owner, lease_ms=self._lease_ms),
            closer=cast("LateCloser", None),  # calls belong to no run
            settings={},
            reports=self._reports,
        )

    def _start_anew(self) -> None:
        """Take a new owner id in a forked child, and drop the parent's calls."""
        self._owner = owner_of_calls(self.store, self._entropy)
        self._runner = self._make_runner()
        self._asking, self._runs, self._is_named = {}, {}, False
        self.generation = forks.generation()

    # -- receive -----------------------------------------------------------------------------------------------------

    def claim(self, args: tuple[Any, ...], kwargs: dict[str, Any], late: int = 0) -> Begun | Completed | Running:
        """Claim the call's operation; Running when another call has it. `late`: how often the claim came too late so far.

        Raises:
            PayloadError: no key. ConflictError: the key was used with other arguments before.
            OutcomeUnknown: an earlier call's outcome is not known, and it is held for a person.
            TransientError: the probe could not answer for now.
        """
        if not self._is_named:
            self._take_name()
        key, fingerprint, given = self._arguments.identify(args, kwargs)
        now_ms = self._lease_from_ms()
        named = NamedRecord(self.store, key, self.names, now_ms) if len(self.names) > 1 else None
        key = key if named is None else named.key
        ask = Ask(
            key=key,
            fingerprint=fingerprint,
            owner=self._owner,
            lease_until_ms=until_ms(self.clock, now_ms, self._lease_ms),
            start=True,
            probes_now=True,
            expires_at_ms=now_ms + self._policy.keep_ms,
        )
        found: records.Answer | None = None
        begun: Begun | Completed | Running | None = None
        call = object()
        self._asking[call] = ask.key
        try:
            found = self._ask(ask, now_ms) if self._is_noted else self.store.claim((ask,), now_ms)[0]
            if isinstance(found, Conflict) and self._arguments.is_alike(given, fingerprint, found.fingerprint):
                ask = replace(ask, fingerprint=found.fingerprint)
                found = self._ask(ask, now_ms)
            if named is not None and isinstance(found, Claimed) and self._is_elsewhere(named, found, now_ms):
                found = None
            elif isinstance(found, Claimed):
                begun = self._begin(found, ask, now_ms, (args, kwargs))
                if begun is None:
                    late, found = self.given_back(found, late), None
                elif type(begun) is Running:
                    found, begun = begun, None
            self._asking.pop(call)
        except BaseException as error:
            if not isinstance(error, errors.OnefoldError) or is_of_a_signal(error):  # the claimed call will not run
                self.give_back(found if found is not None else self._claimed_unheard(ask, now_ms))
            elif isinstance(found, Claimed):
                self._keeper.remove(found.hold)
            self._asking.pop(call, None)
            raise
        if begun is not None:
            return begun  # there is no function call in between, after which a signal handler could raise
        if found is None:
            return self.claim(args, kwargs, late)
        return self._answered(ask, found, now_ms)

    def _is_elsewhere(self, named: NamedRecord, found: Claimed, now_ms: int) -> bool:
        """Whether the call is recorded under another name now; if so, or after an error, the claim is given back."""
        try:
            is_elsewhere = named.has_changed(now_ms)
        except errors.OnefoldError:
            self.give_back(found)
            raise
        if is_elsewhere:
            self.give_back(found)
        return is_elsewhere

    def _ask(self, ask: Ask, now_ms: int) -> records.Answer:
        def event_of(_: int, note: Note) -> Event:
            return Event(at_ms=now_ms, name=note.event, key=ask.key, actor=ask.owner, detail=note.detail)

        (found,), events, failed = self._runner.claims.claim((ask,), now_ms, (self._policy,), event_of)
        for event in events:
            self._sinks.emit(event)
        for error in failed.values():
            if isinstance(found, Claimed) and found.doubt:
                raise error
            self._reports.warn(error)
        return found

    def _take_name(self) -> None:
        if (state := getattr(self.store, "state", None)) is not None:
            take(state, self.names, None, self.clock.now_ms())
        self._keeper.appear()
        self._is_named = True

    def _answered(self, ask: Ask, found: records.Answer, now_ms: int) -> Completed | Running:
        """The answer to a call that could not claim its key; raises the error if there is one."""
        if self._is_noted and self._sinks and not isinstance(found, Running):
            self._emit_answer(ask.key, found, now_ms)
        match found:
            case Completed():
                return found
            case Running():
                if self.on_running == "wait" and records.Hold(ask.key, found.owner, found.fence) in inside.get():
                    raise once_reports.own_call(self.name, ask.key.key)
                return found
            case Conflict():
                raise errors.ConflictError(
                    f"{self.name} was called with key {ask.key.key!r} and other arguments than the first time.",
                    meaning=f"Fingerprint {ask.fingerprint[:12]}, first {found.fingerprint[:12]} (now {found.status})."
                    " Only the fingerprint of the first arguments is kept, and it does not show which one differs.",
                    todo="If this is another operation, give it another key; if it is the same, pass the same arguments.",
                )
            case Unreadable():
                raise errors.StorageError(found.what, meaning=found.meaning, todo=found.todo)
            case _:
                assert isinstance(found, Held)
                raise self._unknown(ask.key, now_ms)

    def _emit_answer(self, key: records.RecordKey, found: records.Answer, now_ms: int) -> None:
        """Emit to the sinks that a call was not made, and why."""
        decision = guard.answer(found, self._policy, now_ms, key.key)
        assert not isinstance(decision, guard.Go)
        for note in decision.notes:
            self._sinks.emit(Event(at_ms=now_ms, name=note.event, key=key, actor=self._owner, detail=note.detail))

    def _begin(self, found: Claimed, ask: Ask, now_ms: int, args: Args) -> Begun | Completed | Running | None:
        """Let the call run, or answer it if its claim shows the outcome of an earlier call.

        Running: a call of this process has the same hold; its record had disappeared from the store, and this claim has
        restored it. None: another process may hold the lease by now.
        """
        if self.clock.now_ms() >= now_ms + self._trusted_ms and found.hold not in self._keeper:
            return None
        if found.crashed or (found.doubt and found.found == "in_progress"):  # it ended in its run, or in its probe
            known = once_reports.taken_over(found, self._policy.crashes_max)
            _log.warning("%s %r: %s", self.name, found.hold.key.key, known)
        if not self._keeper.add(found, ask):
            return Running(until_ms=ask.lease_until_ms, owner=self._owner, fence=found.hold.fence)
        if found.started and not self._is_followed:
            return found
        run = self._execution(found, ask, now_ms, args)
        call = self._runner.prepare(run)
        if call is None:
            return self._not_called(run)
        self._runs[found.hold] = run
        if self.context_parameter is not None or self.hooks.has_any:
            self._runner.open_context(run, call.attempt)
        return None if self.is_late(run) else run

    def _execution(self, found: Claimed, ask: Ask | None, now_ms: int, args: Args | None = None) -> Execution:
        """The script of a claimed call, after its claim."""
        run = Execution(self.job, _NO_MESSAGE, Facts(key=found.hold.key), args)
        run.ask = ask
        run.found(found)
        run.advance(now_ms)
        return run

    def _not_called(self, run: Execution) -> Completed:
        """The answer to a call whose function is not called after all; raises the error if there is one."""
        self._keeper.remove(run.hold)
        verdict = self._settle(run)
        decision, key = run.decided(), run.hold.key
        now_ms = self.clock.now_ms()
        match decision.write:
            case Complete() if verdict is not None and verdict.written:
                return Completed(
                    result=decision.write.result, completed_at_ms=now_ms, hold=run.hold, outbox=[], message_id=None
                )
            case Unknown(parked=True):
                raise self._unknown(key, now_ms)
            case None | Complete() if verdict is not None:
                raise errors.LeaseLost(f"{self.name} {key.key!r} was taken over.", todo="Call again.")
            case _:
                detail = decision.notes[-1].detail if decision.notes else {}
                raise errors.TransientError(
                    f"{self.name} {key.key!r} was not called: {detail.get('summary') or detail.get('why') or 'not now'}",
                    todo="Call again later.",
                    retry_in_ms=getattr(decision.settle, "delay_ms", None),
                )

    def _claimed_unheard(self, ask: Ask, now_ms: int) -> Claimed | None:
        """This call's claim, read again after an exception interrupted it; None if it may be another thread's."""
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

    def with_context(self, begun: Begun, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The keyword arguments of a call, with its context if the function takes one and the caller gave none."""
        name = self.context_parameter
        if name is None or not isinstance(begun, Execution) or not self._arguments.lacks_context(args, kwargs):
            return kwargs
        return {**kwargs, name: begun.ctx}

    def within_hooks(self, begun: Begun, function: Callable[..., Any], *, is_async: bool = False) -> Callable[..., Any]:
        """The function within its hooks, to be called; for a coroutine function, a call returns an awaitable."""
        return partial(self.hooks.call_async if is_async else self.hooks.call, cast("Any", begun).ctx, function)

    # -- settle ------------------------------------------------------------------------------------------------------

    def finished(self, begun: Begun, value: object) -> None:
        """Write the record of a call that returned `value`.

        Raises:
            PayloadError: the result cannot be stored; the effect happened, and the outcome is parked for a person.
            LeaseLost: another call took the operation over; its result counts.
            OutcomeUnknown: the store could not be written for a while; the effect happened, but has no record.
        """
        self._keeper.end(begun.hold)
        try:
            self._record(begun, value)
        finally:
            self._over(begun.hold)  # only after the write, because until then the claim belongs to this call

    def _record(self, begun: Begun, value: object) -> None:
        try:
            result = self._result.encode_result(value)
        except (Exception, *ENDING) as raised:  # noqa: BLE001 - a result's own methods may raise anything
            error = once_reports.unencoded(raised)
            if isinstance(value, once_reports.LAZY):
                error = once_reports.lazy_result(self.name, value)
            self._end(begun, Unstorable(summary=kept_text(error)))
            raise once_reports.not_recorded(begun.hold.key, error) from error.__cause__
        refusal: errors.TransientError | None = None
        if type(begun) is Claimed:
            now_ms = self.clock.now_ms()
            try:
                if self.store.write(((begun.hold, completion(result, self._policy, now_ms, [])),), now_ms)[0]:
                    self._check_replay(value, result)
                    return
            except errors.TransientError as error:
                let_through(error)
                refusal = error  # try again for a while
            except errors.UsageError as error:
                let_through(error)  # it can never be written; the effect has happened, and a person must record that
                self._end(begun, Unstorable(summary=kept_text(error)))
                raise
        verdict = self._end(begun, Success(result=result))
        if verdict is None:
            why = f": {refusal.what}" if refusal is not None else "."
            raise errors.OutcomeUnknown(
                f"{self.name} {begun.hold.key.key!r} took effect, but its record could not be written{why}",
                meaning="When its lease ends, the next call with this key is treated as on_unknown says.",
                todo="Find out why the store fails, and whether the call is to be repeated.",
            ) from refusal
        if not verdict.written:
            raise errors.LeaseLost(
                f"{self.name} {begun.hold.key.key!r} finished, but its lease had been taken over.",
                meaning="The run that took over decides what is recorded; this result was dropped.",
                todo="Give the call a longer lease, or find out why this process could not renew it.",
            )
        if isinstance(begun, Execution) and isinstance(begun.decided().write, Unknown):  # as above
            raise self._unknown(begun.hold.key, self.clock.now_ms())
        self._check_replay(value, result)

    def _check_replay(self, value: object, result: bytes) -> None:
        replays = self._replays
        if replays is not None and not replays.is_over and type(value) not in replays.same:
            replays.look(value, self._result.decode_result(result))

    def failed(self, begun: Begun, error: BaseException) -> None:
        """Write the record of a call that raised: claimable at once, or unknown if the error means that.

        If the store cannot be written, that must not hide what the function raised; the key is free when the lease
        ends.
        """
        self._keeper.end(begun.hold)
        try:
            if isinstance(begun, Execution):
                begun.error = error
            interrupted = stems_from_signal(error, (errors.OnefoldError,))
            outcome = classify(
                error, now_ms=self.clock.now_ms(), unknown=self._unknowns, with_text=is_kept(), interrupted=interrupted
            )
            verdict = self._end(begun, outcome)
            if verdict is not None and not verdict.written:
                error.add_note(f"onefold: the lease of {self.name} {begun.hold.key.key!r} had been taken over.")
        finally:
            self._over(begun.hold)

    def _end(self, begun: Begun, outcome: Outcome) -> Verdict | None:
        """Let the script decide the call's outcome, and carry it out; None when it could not be written."""
        asked = self._keeper.ask_of(begun.hold)
        run = begun if isinstance(begun, Execution) else self._execution(begun, asked, self.clock.now_ms())
        if not isinstance(run.step, Commit):
            self._runner.answer(run, run.called(self.clock.now_ms()), outcome)
            run.advance(self.clock.now_ms())
        return self._settle(run)

    def _settle(self, run: Execution) -> Verdict | None:
        """Carry out what was decided, once; None when it could not be written."""
        if run.verdict is None:
            ((_, run.verdict),) = self._runner.settle([run])
        for _ in run.script:  # run to its end here: what a signal handler raises in a discarded generator is lost
            pass
        return run.verdict

    def is_late(self, found: Begun | Completed) -> bool:
        """Whether a call must not be made because another may hold its lease by now; to be checked right before it."""
        return type(found) is not Completed and not self._keeper.trusts(found.hold)

    def given_back(self, found: Begun | Completed, times: int) -> int:
        """Release a claim that came too late, to claim again; returns how often that was. Too often: TransientError."""
        self.give_back(found)
        if times + 1 == _LATE_MAX:
            raise once_reports.late(found.hold.key, self._lease_ms, _LATE_MAX)
        return times + 1

    def give_back(self, found: records.Answer | Execution | None) -> None:
        """Release a claim whose call did not start after all."""
        if isinstance(found, Claimed | Execution):
            self._over(found.hold)
            now_ms = self.clock.now_ms()
            release = decisions.not_started(NotStarted("the call did not start"), self._policy, now_ms).write
            assert release is not None
            with ignored(errors.TransientError):  # if this fails, the key is free when the lease ends
                self.store.write(((found.hold, release),), now_ms)

    def ended(self, begun: Begun, values: list[Any], error: BaseException, *, runs: bool) -> None:
        """Record a call that raised, or whose write a signal handler interrupted; again if that happens here too."""
        for is_last in (False, True):
            try:
                if values:
                    self.finished(begun, values[0])
                elif runs:
                    self.failed(begun, error)
                else:
                    self.give_back(begun)
            except BaseException as torn:
                if isinstance(torn, errors.OnefoldError) and not is_of_a_signal(torn):
                    return  # the first error counts
                if is_last:
                    raise
            else:
                return

    def _over(self, hold: records.Hold) -> None:
        self._keeper.remove(hold)
        run = self._runs.pop(hold, None) if self._runs else None
        if run is not None and run.ctx is not None:
            run.ctx.end()

    def _put_back(self, call: KeptCall) -> bool:
        """Restore a record whose renewal was refused, if it is gone from the store; returns whether it exists again."""
        run = self._runs.get(call.found.hold) or self._execution(call.found, call.ask, self.clock.now_ms())
        return self._runner.settler.put_back(run, self._lease_ms)

    def _lease_lost(self, hold: records.Hold) -> None:
        """Mark a lease as lost in the call's context, for the function to see: another call has the key."""
        if (run := self._runs.get(hold)) is not None:
            self._reports.lease_lost(run)

    # -- answers -----------------------------------------------------------------------------------------------------

    def stored(self, found: Completed) -> Any:
        """The result of the call that completed, as the function would have returned it."""
        try:
            return self._result.decode_result(found.result)
        except errors.PayloadError as error:
            raise once_reports.unfit(self.name, found.hold.key, error) from None

    def quote_key(self, error: BaseException, found: Begun | Completed | Running | None, call: Args) -> None:
        """Note that an error of a call quotes its key."""
        if not isinstance(error, errors.OnefoldError) or isinstance(error, errors.PayloadError):
            return  # an error about the payload has no key
        if isinstance(found, Claimed | Execution):
            quote_key(error, found.hold.key.key)
            return
        with ignored(errors.OnefoldError):  # the arguments may have been changed meanwhile; its own error counts
            quote_key(error, self._arguments.key_of(*call).key)

    def wait_from(self, found: Running, since_ms: int | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """The monotonic instant at which a duplicate began to wait for a running call.

        Args:
            since_ms: that instant, from an earlier check; None if it has not waited yet.

        Raises:
            TransientError: it does not wait (`on_running`), or has waited as long as allowed.
        """
        waits, now_ms = self.on_running == "wait", self.clock.monotonic_ms()
        if since_ms is None and self._sinks:
            self._emit_answer(self._arguments.key_of(args, kwargs), found, self.clock.now_ms())
        if waits and since_ms is None and owner_process.ended([found.owner]):
            left_ms = max(found.until_ms - self.clock.now_ms(), 0)
            text = "%s %r waits up to %s: the process of the call that had the key, owner %s, has ended. Its lease has not."
            key = self._arguments.key_of(args, kwargs).key
            _log.warning(text, self.name, key, duration.to_text(left_ms), found.owner)
        since_ms = now_ms if since_ms is None else since_ms
        if not waits or now_ms - since_ms >= self._wait_ms:
            waited_ms = self._wait_ms if waits else None
            own = found.owner == self._owner
            key = self._arguments.key_of(args, kwargs).key
            raise once_reports.running(self.name, key, found, self.clock.now_ms(), waited_ms=waited_ms, own=own)
        return since_ms

    def _unknown(self, key: records.RecordKey, now_ms: int) -> errors.OutcomeUnknown:
        return once_reports.held(self.name, self.store.read([key], now_ms)[0], key)


def _nothing(asked: object) -> Any:
    raise errors.InvariantBroken(f"A call has no queue and no message, but its code asked for {asked!r:.80}.")
