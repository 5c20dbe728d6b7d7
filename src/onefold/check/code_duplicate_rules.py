"""Rules DUP of application code: answers, keys and records that make finished work run again.

Sources: AWS Lambda developer guide, "Implementing partial batch responses"; Powertools for AWS Lambda (Python), idempotency;
AWS Step Functions API, StartExecution (a name starts one execution in 90 days); Amazon SQS, MessageDeduplicationId;
botocore, Config. Each rule is a pure function of what was read.
Never here: reading code. Invariant: what is unknown is not a finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from onefold.check import duplicate_rules
from onefold.check.code_facts import Argument, Code, CodeCall, Durable, Key
from onefold.check.findings import Finding, Fix, Related, Severity
from onefold.check.joined import Joined

IN_WORDS: Final = {
    "message-id": "the message's id",
    "receipt-handle": "the receipt handle",
    "receive-count": "the receive count",
    "request-id": "the invocation's id",
    "random": "a random value",
    "time": "the time",
}
SEND_S: Final = 1.0  # ours: a send that takes longer is not rare
_EACH_DELIVERY: Final = frozenset({"receipt-handle", "receive-count", "request-id", "random", "time"})


def no_partial_answer(joined: Joined) -> Iterator[Finding]:
    """DUP004. Not if the handler is known to report failures anyway (DUP006), or to raise none (LOS016)."""
    others = {one.name for one, handler in joined.mapped() if handler.answer == "reports" or handler.swallowed}
    for finding in duplicate_rules.no_partial_answer(joined.model):
        if finding.resource not in others:
            yield finding


def never_answers(joined: Joined) -> Iterator[Finding]:
    """DUP005."""
    for mapping, handler in joined.mapped():
        batch_size = mapping.batch_size.value
        is_asked = mapping.reports_failures is True and batch_size is not None and batch_size > 1
        if not is_asked or handler.answer != "never" or not handler.acts:
            continue
        hides = bool(handler.swallowed)
        yield Finding(
            rule="DUP005",
            severity="error" if hides else "warning",
            message=f"{mapping.name} has ReportBatchItemFailures, but {handler.name} never returns batchItemFailures: "
            + (
                "a message whose exception it catches counts as processed and is deleted."
                if hides
                else f"one failed message brings back the whole batch of up to {batch_size}."
            ),
            source=mapping.source,
            resource=mapping.name,
            property_path=f"{mapping.facts.location.path}.FunctionResponseTypes",
            arithmetic=("without batchItemFailures in the response, Lambda treats the whole batch as processed",),
            related=(Related(handler.source, handler.name, "returns no batchItemFailures"),),
            fix=Fix(
                'Return {"batchItemFailures": [{"itemIdentifier": ...}]} with the ids of failed messages.', "unsafe"
            ),
        )


def nobody_reads_answer(joined: Joined) -> Iterator[Finding]:
    """DUP006."""
    for mapping, handler in joined.mapped():
        batch_size = mapping.batch_size.value
        if mapping.reports_failures is not False or handler.answer != "reports" or batch_size is None:
            continue
        if handler.is_powertools and batch_size == 1:
            continue  # it raises when every message of a batch has failed
        yield Finding(
            rule="DUP006",
            severity="error",
            message=f"{handler.name} returns the ids of failed messages, but {mapping.name} does not have"
            " ReportBatchItemFailures: Lambda ignores them and deletes the failed messages with the rest of the batch.",
            source=mapping.source,
            resource=mapping.name,
            property_path=f"{mapping.facts.location.path}.FunctionResponseTypes",
            arithmetic=("without ReportBatchItemFailures, a batch whose handler returns counts as processed",),
            related=(Related(handler.source, handler.name, "returns batchItemFailures"),),
            fix=Fix(
                "Add FunctionResponseTypes: [ReportBatchItemFailures].",
                "safe",
                duplicate_rules.report_failures(joined.model, mapping),
            ),
        )


def key_of_a_delivery(code: Code) -> Iterator[Finding]:
    """DUP007."""
    keys = {one.source: one for one in code.keys}
    for handler in code.handlers:  # a record of its own keeps a second delivery from the partner
        keys |= {one.source: one for one in handler.keys if not (one.is_for_partner and handler.is_guarded)}
    for key in keys.values():
        if key.is_whole:
            yield _key(
                key, "error", "which includes the receipt handle and the receive count: no two deliveries are equal."
            )
        elif worst := sorted(key.origins & _EACH_DELIVERY):
            yield _key(key, "error", f"which contains {IN_WORDS[worst[0]]}: each delivery has a different one.")
        elif "message-id" in key.origins:
            why = (
                "the message's id: a message that is sent twice, or redriven from a dead-letter queue, gets a new one."
            )
            yield _key(key, "warning", why)


def _key(key: Key, severity: Severity, why: str) -> Finding:
    return Finding(
        rule="DUP007",
        severity=severity,
        message=f"{key.what} in {key.name} is {key.text}, {why}",
        source=key.source,
        resource=key.name,
        property_path="key",
        arithmetic=("same work, different key: the work is done again",),
        fix=Fix("Derive the key from the work itself, for example from the order id in the body.", "unsafe"),
    )


def records_expire_early(joined: Joined) -> Iterator[Finding]:
    """DUP008."""
    for mapping, handler in joined.mapped():
        queue = mapping.queue
        if queue is None or queue.retention_s.value is None:
            continue
        dead = queue.dead_letters
        source_s, dead_s = queue.retention_s.value, dead.retention_s.value if dead is not None else 0
        if dead_s is None:
            continue
        needed_s = source_s + dead_s
        for one in handler.idempotency:
            if one.life_s is None or one.life_s >= needed_s:
                continue
            soon = queue.visibility_s.value is not None and one.life_s <= queue.visibility_s.value
            related = [Related(queue.retention_s.source, queue.name, f"MessageRetentionPeriod: {source_s:,} s")]
            if dead is not None:
                related.append(Related(dead.retention_s.source, dead.name, f"MessageRetentionPeriod: {dead_s:,} s"))
            yield Finding(
                rule="DUP008",
                severity="error" if soon else "warning",
                message=f"{one.name} keeps its idempotency records for {one.life_s:,} s, but {queue.name} can"
                f" deliver a message again for {needed_s:,} s: after that the work is done again.",
                source=one.life,
                resource=one.name,
                property_path="expires_after_seconds",
                arithmetic=(
                    f"{source_s:,} s in {queue.name} + {dead_s:,} s in its dead-letter queue = {needed_s:,} s",
                    f"expires_after_seconds is {one.life_s:,} s" + (" (the default)" if one.is_default_life else ""),
                ),
                related=tuple(related),
                fix=Fix(f"Set expires_after_seconds of IdempotencyConfig to {needed_s} or more.", "safe"),
            )


def claim_is_never_released(code: Code) -> Iterator[Finding]:
    """DUP009."""
    for claim in (one for handler in code.handlers for one in handler.claims):
        yield Finding(
            rule="DUP009",
            severity="error",
            message=f"{claim.name} records a message as processed before it does the work: if"
            f" {claim.effect_text} fails, the next delivery finds the record and skips the message: the work is never done.",
            source=claim.source,
            resource=claim.name,
            property_path="claim",
            arithmetic=("claim, failure, next delivery: treated as a duplicate and deleted",),
            related=(
                Related(claim.effect, claim.name, "if this fails"),
                Related(claim.skip, claim.name, "the next delivery is skipped here"),
            ),
            fix=Fix(
                "Delete the record when the work fails, or give it a state and an expiry that a retry checks.",
                "unsafe",
            ),
        )


def idempotency_without_context(code: Code) -> Iterator[Finding]:
    """DUP010."""
    for handler in code.handlers:
        for one in handler.idempotency:
            if one.has_context or handler.registers_context:
                continue
            yield Finding(
                rule="DUP010",
                severity="warning",
                message=f"{one.name} uses idempotency without the Lambda context: a run that times out leaves a"
                " record that stays in progress, and every retry is refused until the record expires.",
                source=one.source,
                resource=one.name,
                property_path="register_lambda_context",
                arithmetic=(
                    f"the record expires after {one.life_s:,} s"
                    if one.life_s is not None
                    else "the record expires later",
                ),
                related=(Related(handler.source, handler.name, "registers no Lambda context"),),
                fix=Fix("Call config.register_lambda_context(context) at the start of the handler.", "unsafe"),
            )
        for race in handler.races:
            yield Finding(
                rule="DUP010",
                severity="warning",
                message=f"{race.name} checks for a record and writes it later without a condition: two"
                " concurrent deliveries both find no record, and both do the work.",
                source=race.source,
                resource=race.name,
                property_path="ConditionExpression",
                related=(Related(race.check, race.name, "both deliveries find no record here"),),
                fix=Fix('Write the record first, with ConditionExpression="attribute_not_exists(...)".', "unsafe"),
                is_preview=True,
            )


def lock_ends_by_ttl(code: Code) -> Iterator[Finding]:
    """DUP012, the part of application code."""
    for lock in (one for handler in code.handlers for one in handler.locks):
        if lock.seconds > 6 * 3_600:
            continue
        yield Finding(
            rule="DUP012",
            severity="warning",
            message=f"{lock.name} relies on the TTL attribute {lock.attribute} to release a lock after"
            f" {lock.seconds:,} s. DynamoDB deletes expired items within a few days, and until then the lock is held.",
            source=lock.source,
            resource=lock.name,
            property_path=lock.attribute,
            arithmetic=(f"intended: {lock.seconds:,} s; actual: up to a few days",),
            fix=Fix(
                f"Compare the time in the condition: attribute_not_exists(...) OR {lock.attribute} < :now.", "unsafe"
            ),
            is_preview=True,
        )


def random_deduplication(code: Code) -> Iterator[Finding]:
    """DUP013."""
    for call in code.unguarded_calls:
        given = call.arguments.get("MessageDeduplicationId")
        if call.operation != "send_message" or given is None or not (found := sorted(given.origins & _EACH_DELIVERY)):
            continue
        yield Finding(
            rule="DUP013",
            severity="warning",
            message=f"{call.name} sends with a deduplication id that contains {IN_WORDS[found[0]]}: when its"
            " own message is delivered again, the queue accepts the second send as a new message.",
            source=given.source,
            resource=call.name,
            property_path="MessageDeduplicationId",
            arithmetic=(f"{given.text} is different in each delivery",),
            fix=Fix("Derive it from the work itself.", "unsafe"),
        )


def content_that_changes(joined: Joined) -> Iterator[Finding]:
    """DUP013, for queues that deduplicate by content."""
    for mapping, handler in joined.mapped():
        if handler.is_guarded:
            continue
        for call in handler.calls:
            body = call.arguments.get("MessageBody")
            queue = joined.queue_of(call, mapping)
            if (
                call.operation != "send_message"
                or queue is None
                or body is None
                or not call.lacks("MessageDeduplicationId")
            ):
                continue
            found = sorted(body.origins & {"time", "random", "request-id"})
            if not found or queue.facts.attributes.get("ContentBasedDeduplication") != "true":
                continue
            yield Finding(
                rule="DUP013",
                severity="warning",
                message=f"{queue.name} deduplicates by content, but {call.name} sends a body that contains"
                f" {IN_WORDS[found[0]]}: when the same work is sent again, the queue accepts it as a new message.",
                source=body.source,
                resource=call.name,
                property_path="MessageBody",
                related=(Related(queue.source, queue.name, "ContentBasedDeduplication"),),
                fix=Fix("Pass a MessageDeduplicationId derived from the work itself.", "unsafe"),
            )


def executions_without_name(code: Code) -> Iterator[Finding]:
    """DUP014."""
    for call in code.unguarded_calls:
        if (call.service, call.operation) != ("stepfunctions", "start_execution"):
            continue
        name = call.arguments.get("name")
        if name is None and call.lacks("name"):
            yield _execution(
                call, None, "error", "without a name: each delivery of a message starts another execution."
            )
        elif name is not None and (found := sorted(name.origins & _EACH_DELIVERY)):
            why = (
                f"with a name that contains {IN_WORDS[found[0]]}: each delivery of a message starts another execution."
            )
            yield _execution(call, name, "error", why)
        elif name is not None and "message-id" in name.origins:
            why = "named by the message's id: a message that is sent twice, or redriven, starts another execution."
            yield _execution(call, name, "warning", why)


def _execution(call: CodeCall, name: Argument | None, severity: Severity, why: str) -> Finding:
    return Finding(
        rule="DUP014",
        severity=severity,
        message=f"{call.name} starts an execution {why}",
        source=call.source if name is None else name.source,
        resource=call.name,
        property_path="name",
        arithmetic=("StartExecution with a name used in the last 90 days does not start another execution",),
        fix=Fix("Pass a name derived from the work itself, at most 80 characters.", "unsafe"),
    )


def durable_and_idempotent(code: Code) -> Iterator[Finding]:
    """DUP016."""
    for handler in code.handlers:
        durable = handler.durable
        if durable is None:
            continue
        yield from _steps(durable)
        if durable.idempotent is None:
            continue
        if durable.is_outside:
            severity: Severity = "error"
            why = (
                "applies idempotency outside its durable execution: when the execution resumes, it finds its own record in"
                " progress, is refused, and never completes."
            )
        elif durable.waits:
            severity = "warning"
            why = (
                "is durable and waits, but its idempotency record is in progress only until the first invocation ends: a"
                " duplicate that arrives later starts a second execution."
            )
        else:
            continue
        yield Finding(
            rule="DUP016",
            severity=severity,
            message=f"{handler.name} {why}",
            source=durable.idempotent,
            resource=handler.name,
            property_path="idempotent",
            related=(Related(durable.source, handler.name, "durable execution"),),
            fix=Fix("Apply idempotency inside each step instead, with a key derived from its work.", "unsafe"),
        )


def _steps(durable: Durable) -> Iterator[Finding]:
    for step in durable.steps:
        yield Finding(
            rule="DUP016",
            severity="warning",
            message=f"A step of {step.name} can run more than once, and {step.effect_text} passes no"
            " idempotency key: if the step's result is not stored, the effect happens again.",
            source=step.source,
            resource=step.name,
            property_path="step",
            related=(Related(step.effect, step.name, "happens again"),),
            fix=Fix("Pass an idempotency key derived from the step's work.", "unsafe"),
            is_preview=True,
        )


def slow_invocations(joined: Joined) -> Iterator[Finding]:
    """DUP018."""
    for mapping, handler in joined.mapped():
        for call in handler.calls:
            kind = call.arguments.get("InvocationType")
            if (call.service, call.operation) != ("lambda", "invoke") or not call.is_complete:
                continue
            if kind is not None and kind.constant != "RequestResponse":
                continue
            target = joined.function_called(call, mapping)
            timeout_s = None if target is None else target.timeout_s.value
            if target is None or timeout_s is None or call.read_timeout_s is None or call.attempts is None:
                continue
            if call.attempts < 2 or call.read_timeout_s >= timeout_s:
                continue
            yield Finding(
                rule="DUP018",
                severity="warning",
                message=f"{call.name} waits {call.read_timeout_s:g} s for {target.name}, which can run for"
                f" {timeout_s} s: the SDK times out and invokes it again while the first invocation still runs.",
                source=call.source,
                resource=call.name,
                property_path="read_timeout",
                arithmetic=(
                    f"read timeout {call.read_timeout_s:g} s < function timeout {timeout_s} s",
                    f"up to {call.attempts} attempts of the SDK",
                ),
                related=(Related(target.timeout_s.source, target.name, f"Timeout: {timeout_s} s"),),
                fix=Fix(
                    f'Give the client Config(read_timeout={timeout_s + 5}, retries={{"total_max_attempts": 1}}),'
                    " or invoke the function asynchronously.",
                    "unsafe",
                ),
            )


def impatient_sends(code: Code) -> Iterator[Finding]:
    """DUP018, for sends to SQS."""
    for call in code.calls:
        if not call.is_send or call.read_timeout_s is None or call.attempts is None:
            continue
        if call.read_timeout_s > SEND_S or call.attempts < 2 or not call.lacks("MessageDeduplicationId"):
            continue
        yield Finding(
            rule="DUP018",
            severity="warning",
            message=f"{call.name} waits {call.read_timeout_s:g} s for the response to a send, and the SDK sends"
            " again if none arrives: a standard queue then has the message twice.",
            source=call.source,
            resource=call.name,
            property_path="read_timeout",
            arithmetic=(f"read timeout {call.read_timeout_s:g} s, up to {call.attempts} attempts",),
            fix=Fix("Raise the read timeout: Config(read_timeout=10), or the default of 60 s.", "unsafe"),
            is_preview=True,
        )
