"""The state of an operation now, in one sentence, and what a person can do next.

Pure, from the same evidence as the timeline. The names are few and distinct, so that "waiting" never also means "lost" or
"never seen": done, running, waiting, retrying, held, dead, silent (a run whose lease or process has ended), gone,
unseen. Never here: the story (`timeline.py`), reading anything. Invariant: every operation has exactly one state, and
every state except done, running and waiting names a next step.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from onefold import redact
from onefold.contracts.admin import Peeked
from onefold.contracts.store import Record
from onefold.observe.timeline import Evidence, is_call
from onefold.observe.wording import age, cause, counted, pause

StateName = Literal["done", "running", "waiting", "retrying", "held", "dead", "silent", "gone", "unseen"]


class OperationState(Struct, frozen=True, kw_only=True):
    """The state of an operation.

    Args:
        state: one word.
        text: the sentence.
        todo: commands or advice, in order; empty if there is nothing to do.
    """

    state: StateName
    text: str
    todo: tuple[str, ...] = ()


def state_of(evidence: Evidence) -> OperationState:
    """The state's name, its sentence and the next steps."""
    record = evidence.record
    dead = [one for one in evidence.messages if one.queue in evidence.dead]
    live = [one for one in evidence.messages if one.queue not in evidence.dead and one.queue not in evidence.held]
    if record is not None and record.status == "completed":
        return _done(record, live, dead, evidence)
    if record is not None and record.parked:
        return _held(record, evidence)
    if record is not None and record.status == "in_progress":
        return _in_progress(record, live, dead, evidence)
    if live and evidence.paused_until_ms is not None:
        return _paused(live[0], evidence.paused_until_ms, evidence)
    if live:
        return _waiting(record, live[0], evidence)
    if dead:
        return _dead(dead[0], evidence)
    if record is None and evidence.rows and evidence.rows[-1].event in ("lease-lost", "record-gone"):
        return _lost(evidence)
    if evidence.not_asked and _may_wait(record, evidence):
        return _not_asked(record, evidence)
    return _gone(record, evidence)


def _done(record: Record, live: list[Peeked], dead: list[Peeked], evidence: Evidence) -> OperationState:
    text = f"Done at {evidence.say(record.updated_at_ms)}"
    by_hand = next((row for row in reversed(evidence.rows) if row.event == "settled" and row.detail.get("done")), None)
    if by_hand is not None and by_hand.at_ms >= (record.started_at_ms or 0):
        who = f" by {by_hand.actor.removeprefix('person:')}" if by_hand.actor else ""
        text = f"Settled manually as done at {evidence.say(by_hand.at_ms)}{who}"
    if record.attempts_total:
        text += f", with {counted(record.attempts_total, 'run')}"
    todo: tuple[str, ...] = ()
    if live:
        text += f". {counted(len(live), 'duplicate')} still waiting; answered from the record when delivered"
        if not evidence.is_declared:
            text += f" to a worker that declares the job {evidence.key.job}: this app does not"
            todo = (_renamed(evidence),)
    if record.outbox:
        text += f". {counted(len(record.outbox), 'message')} of its outbox not sent yet; the next delivery sends them"
    if dead:
        text += f". {counted(len(dead), 'message')} of this key in a dead-letter queue"
        todo += (f"onefold dlq show {dead[0].message_id}",)
    return OperationState(state="done", text=text + ".", todo=todo)


def _held(record: Record, evidence: Evidence) -> OperationState:
    why = f" {cause(record.failure.error, record.failure.summary)}" if record.failure is not None else ""
    settle, key, which = "onefold held settle", record.key.key, ""
    if evidence.is_one_of_many:
        tenant = f" --tenant {redact.shell_word(record.key.scope)}" if record.key.scope else ""
        which = f" --job {redact.shell_word(record.key.job)}{tenant}"
    if record.failure is not None and record.failure.took_effect:
        return OperationState(
            state="held",
            text=f"Held since {evidence.say(record.updated_at_ms)}: the effect happened, and its result could not be"
            f" recorded: what the run returned was not kept.{why}",
            todo=(
                "The effect happened, so do not run it again. With the result from the other system, run",
                redact.command(settle, key, f"--done --result JSON{which}"),
            ),
        )
    return OperationState(
        state="held",
        text=f"Held since {evidence.say(record.updated_at_ms)}: it is unknown whether the effect happened.{why}",
        todo=(
            "Find out from the other system whether it happened, then run one of",
            redact.command(settle, key, f"--done --result JSON{which}"),
            redact.command(settle, key, f"--not-done{which}"),
        ),
    )


def _in_progress(record: Record, live: list[Peeked], dead: list[Peeked], evidence: Evidence) -> OperationState:
    left_ms = record.lease_until_ms - evidence.now_ms
    started = record.started_fence == record.fence
    what = f"run {record.attempts}" if started else "a claim that has not started"
    since_ms = (record.started_at_ms if started else None) or record.updated_at_ms
    if evidence.owner_dead and dead and not live:
        has_ended = f"The process of {what}, owner {record.owner} (fence {record.fence}), has ended"
        return _dead_in_run(has_ended, dead[0], evidence)
    if evidence.owner_dead:
        return _ended(what, record, live, left_ms, evidence)
    if evidence.stopped_process is not None:
        return OperationState(
            state="silent",
            text=f"Silent: {what} by owner {record.owner} (fence {record.fence}) has not renewed its lease for "
            f"{age(-left_ms)}: its {paused_text(evidence.stopped_process)}.",
            todo=what_of_stopped(evidence.stopped_process),
        )
    if left_ms > 0:
        text = (
            f"Running: {what}, for {age(evidence.now_ms - since_ms)}, by owner {record.owner} (fence {record.fence}); "
        )
        text += f"its lease holds for {pause(left_ms)} unless renewed."
        if record.message_id is None and not evidence.owner_is_here:
            text += (
                " It is a call under @once, of no process known here: whether that has died shows when its lease ends."
            )
        timeout_ms = _passed_timeout_ms(record, evidence) if started else None
        if timeout_ms is None:
            return OperationState(state="running", text=text)
        return OperationState(
            state="running",
            text=f"{text} Its handler has passed its timeout of {pause(timeout_ms)} and has not ended; until it does, the "
            "run keeps its key and its message, and nothing else runs this key.",
            todo=(HANGS,),
        )
    if live:
        wait_ms = max(live[0].visible_at_ms - evidence.now_ms, 0)
        back = (
            f"visible again in {pause(wait_ms)}" if wait_ms else f"visible, {counted(live[0].receive_count, 'receive')}"
        )
        return OperationState(
            state="silent",
            text=f"Silent: {what} by owner {record.owner} has not renewed its lease for {age(-left_ms)}. "
            f"The next delivery takes it over; its message {live[0].message_id} is {back}.",
            todo=("Is a worker running? Start one: onefold worker <module>:<app>",),
        )
    if dead:
        has_not = f"{what[0].upper()}{what[1:]} by owner {record.owner} has not renewed its lease for {age(-left_ms)}"
        return _dead_in_run(has_not, dead[0], evidence)
    if evidence.not_asked and record.message_id is not None:
        return OperationState(
            state="silent",
            text=f"Silent: {what} by owner {record.owner} has not renewed its lease for {age(-left_ms)}. {_COMES_BACK} "
            f"{evidence.not_asked}",
            todo=("Is a worker running? Start one: onefold worker <module>:<app>",),
        )
    return OperationState(
        state="silent",
        text=f"Silent: {what} by owner {record.owner} has not renewed its lease for {age(-left_ms)}, and no message is left "
        "that would take it over (a call under @once, or its message was removed or has expired).",
        todo=(_repeat(record),),
    )


def _passed_timeout_ms(record: Record, evidence: Evidence) -> int | None:
    """The timeout that the current run has passed; None if it has passed none, or if that is not known."""
    policy, since_ms = evidence.policy, record.started_at_ms or record.updated_at_ms
    if policy is not None and not policy.is_call:
        return policy.timeout_ms if evidence.now_ms - since_ms >= policy.timeout_ms else None
    rows = [row for row in evidence.rows if row.event == "overrun" and row.at_ms >= since_ms]
    return int(rows[-1].detail.get("timeout_ms") or 0) if rows else None


def _repeat(record: Record) -> str:
    """How to run the operation again if nothing takes it over."""
    who = ("Call", "function") if record.message_id is None else ("Send", "job")
    return f"{who[0]} it again with the same key; the on_unknown policy of the {who[1]} decides what happens then."


def paused_text(process: int) -> str:
    """The text for a run whose process is stopped."""
    return f"process {process} is stopped and will finish it once resumed; nothing else runs this key until then"


def what_of_stopped(process: int) -> tuple[str, ...]:
    """What a person can do about a stopped process."""
    return (
        f"Let it go on: kill -CONT {process} (or unpause its container, resume its machine, leave the debugger).",
        f"Or end it: kill -KILL {process}; the on_unknown policy then decides what happens.",
    )


HANGS = "If it hangs, end the worker process that runs it; the job's on_unknown policy decides what then happens."

_COMES_BACK = "Its message is visible again when its visibility timeout is over, and a worker then takes it over."


def _ended(what: str, record: Record, live: list[Peeked], left_ms: int, evidence: Evidence) -> OperationState:
    """A run whose process is known to have ended, whatever its lease says."""
    text = f"Silent: the process of {what}, owner {record.owner} (fence {record.fence}), has ended"
    if live:
        return OperationState(
            state="silent",
            text=f"{text}; a worker on this machine frees its message {live[0].message_id} and takes it over.",
            todo=("Is a worker running? Start one: onefold worker <module>:<app>",),
        )
    if evidence.not_asked and record.message_id is not None:
        return OperationState(
            state="silent",
            text=f"{text}. {_COMES_BACK} {evidence.not_asked}",
            todo=("Is a worker running? Start one: onefold worker <module>:<app>",),
        )
    wait = (
        " A program that begins to call, or a worker on this machine, frees it at once; any other call with this key "
        f"waits for its lease to end, in {pause(left_ms)}."
        if left_ms > 0
        else ""
    )
    return OperationState(
        state="silent",
        text=f"{text}, and no message is left that would take it over.{wait}",
        todo=(_repeat(record),),
    )


def _waiting(record: Record | None, message: Peeked, evidence: Evidence) -> OperationState:
    wait_ms = message.visible_at_ms - evidence.now_ms
    where = f"message {message.message_id} on {message.queue}"
    receives = f" ({counted(message.receive_count, 'receive')} so far)" if message.receive_count else ""
    if not evidence.is_declared:
        return OperationState(
            state="waiting",
            text=f"Waiting for a worker that declares the job {evidence.key.job}: this app does not; {where}{receives}.",
            todo=(_renamed(evidence),),
        )
    if not evidence.is_received:
        return OperationState(
            state="waiting",
            text=f"Waiting, and no worker of this app receives it: the app declares the job on another queue; {where}.",
            todo=(QUEUE_RENAMED,),
        )
    if record is not None and record.status in ("failed", "unknown") and wait_ms > 0:
        return OperationState(
            state="retrying",
            text=f"Retrying: {counted(record.attempts, 'run')} failed, the next in {pause(wait_ms)}, {where}.",
        )
    if message.state == "delayed":
        return OperationState(
            state="waiting",
            text=f"Waiting: not before {evidence.say(message.visible_at_ms)}, in {pause(wait_ms)}; {where}.",
        )
    if message.state == "in_flight":
        return OperationState(
            state="waiting",
            text=f"Waiting: received, and hidden for another {pause(wait_ms)} unless settled or extended; "
            f"{where}{receives}.",
        )
    since_ms = max(evidence.now_ms - message.visible_at_ms, 0)
    return OperationState(
        state="waiting",
        text=f"Waiting for a worker for {age(since_ms)}; {where}{receives}.",
        todo=("Is a worker running? See `onefold status`.",) if since_ms >= _LONG_MS else (),
    )


def _renamed(evidence: Evidence) -> str:
    name = evidence.key.job
    todo = f"If the job was renamed, declare aliases=[{name!r}] or give it this name again."
    return f"{todo} Else start a worker whose app declares it."


QUEUE_RENAMED = (
    "If the queue was renamed, give it the old name again, or run a worker of the earlier release until it is empty."
)

_LONG_MS = 60_000  # a visible message that was not received for this long is suspicious


def _paused(message: Peeked, until_ms: int, evidence: Evidence) -> OperationState:
    job = evidence.key.job
    return OperationState(
        state="waiting",
        text=f"Waiting: job {job} is paused by its circuit breaker, next try in {age(until_ms - evidence.now_ms)}; "
        f"message {message.message_id} on {message.queue}.",
        todo=("Fix what it depends on. To try at once:", f"onefold resume {job}"),
    )


def _dead(message: Peeked, evidence: Evidence) -> OperationState:
    reason = message.reason
    why = f" ({reason.kind}) {cause(reason.error, reason.summary)}" if reason is not None else ""
    owner = f" (owner: {reason.owner})" if reason is not None and reason.owner else ""
    way_back = evidence.way_back(message)
    edit = f"onefold dlq edit {message.message_id} --set field=value   (where the payload is wrong)"
    todo = (edit, *both(way_back))
    if way_back.startswith("onefold map"):
        todo = (way_back,)
    elif reason is not None and reason.kind in ("malformed", "conflict"):  # without a change it would come back
        todo = (edit,)
    return OperationState(
        state="dead",
        text=f"In the dead-letter queue {message.queue}, expires in {age(message.expires_at_ms - evidence.now_ms)}."
        f"{why}{owner}",
        todo=(f"onefold dlq show {message.message_id}", *todo),
    )


def _dead_in_run(what: str, message: Peeked, evidence: Evidence) -> OperationState:
    """The state of a run that was not ended and whose message was dead-lettered, as it was received too often."""
    return OperationState(
        state="dead",
        text=f"{what}, and the outcome of that run is unknown. Its message is in the dead-letter queue {message.queue}, "
        f"from which no worker takes it over, and expires in {age(message.expires_at_ms - evidence.now_ms)}.",
        todo=(f"onefold dlq show {message.message_id}", *both(evidence.way_back(message))),
    )


def both(redrive: str) -> tuple[str, ...]:
    """A redrive as next steps: first a dry run; other advice unchanged."""
    return (f"{redrive} --dry-run", redrive) if redrive.startswith("onefold dlq redrive") else (redrive,)


def _may_wait(record: Record | None, evidence: Evidence) -> bool:
    """Whether a message may wait in a queue that was not read: one was sent, and no event reports its deletion."""
    if is_call(evidence) or any(row.event in ("removed", "purge") for row in evidence.rows):
        return False
    return record.message_id is not None if record is not None else bool(evidence.rows)


def _not_asked(record: Record | None, evidence: Evidence) -> OperationState:
    failed = record is not None and record.status == "failed"
    said = f"its record says {record.status}" if record is not None else "nothing is recorded under its key yet"
    return OperationState(
        state="retrying" if failed else "waiting",
        text=f"Not done: {said}. {evidence.not_asked}",
        todo=("Is a worker running? See `onefold status`.",),
    )


def _again(record: Record | None, evidence: Evidence) -> str:
    """How to send an operation again whose message is gone."""
    if record is None or evidence.is_blocked is False:
        return "Send it again with the same key; nothing prevents it."
    until = f" until {evidence.say(record.expires_at_ms)}" if record.expires_at_ms is not None else ""
    blocked = f"the key is known{until}, when its record ends, and sending it adds nothing. Send it under another key"
    if evidence.is_blocked:
        return f"Its job has unique=True, and on these queues a send cannot see that the message is gone: {blocked}."
    return f"Send it again with the same key. If its job has unique=True, {blocked}."


def _lost(evidence: Evidence) -> OperationState:
    """The state of an operation with a run that is known to have begun, but without a record."""
    text = (
        "Unknown: a run lost its lease or its record, and no record of this key is left (flushed, evicted, deleted, restored"
        " from a backup or expired). It may have taken effect; the next call or message with this key runs it."
    )
    return OperationState(
        state="gone",
        text=text if is_call(evidence) else f"{text} {evidence.not_asked}".rstrip(),
        todo=("Find out from the other system whether the effect happened before you call or send it again.",),
    )


def _gone(record: Record | None, evidence: Evidence) -> OperationState:
    ended = next((row for row in reversed(evidence.rows) if row.event in ("removed", "purge")), None)
    if record is None and not evidence.rows:
        return OperationState(
            state="unseen",
            text="No message, no record and no history of this key."
            if not evidence.not_asked
            else f"No record and no history of this key. {evidence.not_asked}",
            todo=("See below for what that can mean.",),
        )
    if record is not None and record.message_id is None and ended is None:  # a call under @once
        failure, why = record.failure, ""
        if failure is not None:
            why = f" ({cause(failure.error, failure.summary)})"
        if record.status == "unknown":
            text = (
                f"Unknown: the outcome of the last call was not recorded{why}; it may have taken effect. The next call"
            )
            text += " with this key runs it again, or asks its probe."
            return OperationState(state="gone", text=text, todo=())
        words = (
            f"The last call failed{why}"
            if record.status == "failed"
            else f"Not done; the record says {record.status}{why}"
        )
        return OperationState(state="gone", text=f"{words}; the next call with this key runs it.", todo=())
    if record is None and is_call(evidence):
        text = "No record of this key is left (expired, deleted, flushed); the next call with this key runs it."
        return OperationState(state="gone", text=text, todo=())
    who = ""
    if ended is not None:
        by = f"It was removed by {(ended.actor or 'somebody').removeprefix('person:')}"
        if ended.detail.get("by") == "cancel":
            by = f"A program (owner {ended.actor}) cancelled it"
        who = f" {by} at {evidence.say(ended.at_ms)}."
    status = f"its record says {record.status}" if record is not None else "nothing is recorded under its key"
    return OperationState(
        state="gone",
        text=f"Not done, and no message is left: {status}.{who}",
        todo=(_again(record, evidence),),
    )
