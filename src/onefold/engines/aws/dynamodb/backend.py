"""The DynamoDB record backend: records, the operator's view of them, history, shared values and level 4 on one table.

Level 4: a handler collects actions with `ctx.transact(...)`; nothing is sent before it returns. Then one
TransactWriteItems contains the record (on the condition that its hold is current), the handler's actions and the rows
of history. Each handler has its own transaction, and none stays open, so `commit` and `rollback` have nothing left to
do. The request's token is derived from the hold, so a request that is repeated after a lost answer is the same
transaction (AWS remembers the token for 10 minutes). Values (`Settlement.changes`) follow it one by one, since a change
whose version is no longer current must not undo the others.

Shared values (`DynamoState`) have all their names in the partition `~state`, sorted. A deleted name keeps its version
for a day (time to live), so that a name that is used again continues the count of its versions, and a writer that read
the old value cannot overwrite the new one. A name that is too long for a sort key is cut off there and distinguished by
its digest; the attribute `name` has all of it. A change is an UpdateItem on the condition that the version is current.
Each change writes its own `stamp`, as changes of records do: botocore repeats a call whose answer was lost, and if the
refusal of the second call shows this stamp, the first one was applied. Without the stamp the winner would believe that
another process had won.

Never here: queues, receipts, outbox sends. Invariants: no request is made before a call needs it; at level 4 the
record is completed if and only if every action was applied; a version of a value that was replaced is never current
again; of the changes of one version at most one is answered True, and none if its answer was lost and the value has
changed again since.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import botocore.exceptions
from boto3.dynamodb.types import TypeSerializer

from onefold import errors
from onefold.contracts import transitions
from onefold.contracts.commit import Settlement, Verdict
from onefold.contracts.state import Change, Versioned, check
from onefold.contracts.store import Complete, Hold, Outcome
from onefold.engines.aws.dynamodb import schema
from onefold.engines.aws.dynamodb.items import (
    SORT_KEY_BYTES_MAX,
    TTL_ATTRIBUTE,
    Item,
    Value,
    item_key_of,
    number,
    record_of,
    stamp_of,
    ttl_of,
)
from onefold.engines.aws.dynamodb.ledger import DynamoLedger
from onefold.engines.aws.dynamodb.notes import RecordNotes
from onefold.engines.aws.dynamodb.records import DynamoRecords, DynamoStore, as_update, check_size
from onefold.engines.aws.dynamodb.table import Table, as_action
from onefold.engines.aws.session import aws_errors, code_of, translated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onefold.engines.aws.dynamodb.items import Layout
    from onefold.engines.aws.session import Session
    from onefold.outside import Clock, Entropy


class DynamoBackend:
    """Everything that onefold keeps in a DynamoDB table.

    Args:
        session: gives the DynamoDB client; the caller closes it.
        table: its name.
        clock: for pauses between tries, and to decide when a deleted shared value may be forgotten.
        entropy: for the ids by which writes are recognised after a lost answer, and for jitter.
        batched: whether several records are written by one BatchExecuteStatement (the URL option `batch=no` turns it
            off, for emulators that do not have it).
        layout: the layout of the table's items (URL option `layout`).

    Attributes:
        store, records, ledger, state: the contracts Store, RecordAdmin, Ledger and State.
    """

    def __init__(
        self, session: Session, table: str, clock: Clock, entropy: Entropy, *, batched: bool = True, layout: Layout = 1
    ) -> None:
        self.table = Table(session, table, clock, entropy, batched=batched, layout=layout, first=schema.check_layout)
        self._notes = RecordNotes(self.table)
        self.store = DynamoStore(self.table, self._notes)
        self.ledger = DynamoLedger(self.table)
        self.store.ledger = self.ledger
        self.state = DynamoState(self.table)
        self.records = DynamoRecords(self.table, self._notes)
        self.store.state = self.state

    def create(self) -> None:
        """Create the table with time to live if it does not exist; errors as for `schema.create`."""
        schema.create(self.table.bare())

    def check(self) -> list[str]:
        """Warnings about the table; if it cannot be used, raises as `schema.check` and `schema.check_layout` do."""
        found = schema.check(self.table.bare())
        schema.check_layout(self.table.bare())  # a worker with the wrong layout ends here, before it takes a message
        return found

    def effects(self, limit_ms: int) -> DynamoEffects:
        """Level 4: handlers' own writes in one transaction with their record.

        Args:
            limit_ms: not used, because nothing is locked while a handler runs.
        """
        del limit_ms
        return DynamoEffects(self.table, self._notes, self.ledger, self.state)

    def appear(self) -> None:
        """Make the client, which takes longer than the first batch: in Lambda's init phase, before the first event."""
        self.table.bare().client  # noqa: B018 - the property makes it

    def close(self) -> None:
        """Write the counts that are still due; the session stays open. Idempotent."""
        with contextlib.suppress(errors.OnefoldError):  # missing counts are not worth an error at the end
            self._notes.flush()


ACTIONS_MAX: Final = 100  # API TransactWriteItems, TransactItems: 1 to 100
ROWS_ACTIONS_MAX: Final = 20  # ours: reserved for record and history
TOKEN_CHARS: Final = 36  # API TransactWriteItems, ClientRequestToken: 1 to 36
# Each kind of action, and the permission that it needs (IAM reference of DynamoDB: transactions themselves need none).
_KINDS: Final = {
    "Put": "PutItem",
    "Update": "UpdateItem",
    "Delete": "DeleteItem",
    "ConditionCheck": "ConditionCheckItem",
}
_MAPS: Final = ("Item", "Key", "ExpressionAttributeValues")
_TYPES: Final = frozenset({"S", "N", "B", "SS", "NS", "BS", "M", "L", "NULL", "BOOL"})
_PASSING: Final = frozenset({"TransactionConflict", "ProvisionedThroughputExceeded", "ThrottlingError"})


class Transact:
    """What one handler adds to the transaction of its record.

    Args:
        table: name of onefold's own table, to which handlers must not write.
    """

    def __init__(self, table: str) -> None:
        self._table = table
        self._serializer = TypeSerializer()
        self.actions: list[dict[str, Any]] = []

    def transact(self, *actions: Mapping[str, Any]) -> None:
        """Add actions in the form of TransactWriteItems: {"Put": {"TableName": ..., "Item": {...}}}, and so on.

        Args:
            actions: each with one of `Put`, `Update`, `Delete`, `ConditionCheck`. Values are plain Python (numbers as int or
                Decimal) or DynamoDB's own form ({"S": "text"}).

        Raises:
            UsageError: it is not such an action, a value has no DynamoDB form, there are more than 80 actions, or one
                writes to onefold's own table. None of these actions was added.
        """
        added = [self._action(action) for action in actions]
        if len(self.actions) + len(added) > ACTIONS_MAX - ROWS_ACTIONS_MAX:
            raise errors.UsageError(
                f"ctx.transact was given {len(self.actions) + len(added)} actions in one run.",
                meaning=f"DynamoDB allows {ACTIONS_MAX} in a transaction; {ROWS_ACTIONS_MAX} are kept for the record.",
                todo="Split the work into several jobs, or write what needs no transaction directly.",
            )
        self.actions += added

    def _action(self, action: Mapping[str, Any]) -> dict[str, Any]:
        if len(action) != 1 or next(iter(action)) not in _KINDS:
            raise errors.UsageError(
                f"ctx.transact was given an action with the names {sorted(action)}.",
                todo="Give each action one of Put, Update, Delete and ConditionCheck, as TransactWriteItems has them.",
            )
        ((kind, request),) = action.items()
        if request.get("TableName") == self._table:
            raise errors.UsageError(
                f"ctx.transact was given a {kind} for {self._table}, the table of onefold itself.",
                todo="Keep the job's own data in another table.",
            )
        given = {name: self._values(kind, request[name]) for name in _MAPS if name in request}
        return {kind: {**request, **given}}

    def _values(self, kind: str, values: Mapping[str, Any]) -> Item:
        try:
            return {name: self._value(value) for name, value in values.items()}
        except TypeError as error:
            raise errors.UsageError(
                f"ctx.transact was given a {kind} with a value that DynamoDB cannot hold: {error}",
                todo="Use text, bytes, int, Decimal (not float), bool, None, lists, dicts and sets.",
            ) from error

    def _value(self, value: Any) -> Any:
        if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in _TYPES:
            return value  # DynamoDB's own form
        return self._serializer.serialize(value)


class DynamoEffects:
    """The EffectTransaction contract: handlers of one thread, one after the other, each with a transaction of its own.

    Args:
        table, notes, ledger, state: the same backend's.
    """

    def __init__(self, table: Table, notes: RecordNotes, ledger: DynamoLedger, state: DynamoState) -> None:
        self._table = table
        self._notes = notes
        self._ledger = ledger
        self._state = state
        self._collected: Transact | None = None

    def open(self) -> Transact:
        """The collector of the current handler; the same object until the handler is finished or undone."""
        if self._collected is None:
            self._collected = Transact(self._table.name)
        return self._collected

    def finish(self, settlement: Settlement, now_ms: int) -> Verdict:
        """Write the record, the history and what the handler collected in one transaction.

        Raises:
            TransientError: throttled, unreachable, or another transaction held an item during all tries. It may have
                been carried out; repeating the call with the same settlement finds out.
            PermanentError: the condition of one of the handler's own actions did not hold; names the action.
            UsageError: the transaction is refused (too large, no permission, a missing table).
        """
        collected, self._collected = self.open(), None
        if settlement.write is None or not isinstance(settlement.write[1], Complete):
            raise errors.InvariantBroken(
                f"A handler's transaction was to end with {settlement.write}, not a completion."
            )
        hold, outcome = settlement.write
        check_size(hold, outcome)
        self._ledger.prepare(settlement.rows)
        token = _token(self._table, hold)
        actions = [
            as_action(as_update(self._table.layout, hold, outcome, now_ms, token), self._table.name),
            *collected.actions,
        ]
        items = self._ledger.items(settlement.rows)
        room = ACTIONS_MAX - len(actions)
        actions += [{"Put": {"TableName": self._table.name, "Item": item}} for item in items[:room]]
        written = self._send(actions, token, hold, outcome, now_ms)
        if written:
            self._notes.completed([hold.key.job], now_ms)
            with contextlib.suppress(errors.OnefoldError):  # the record is written: this run must not count as failed
                self._table.put_all(items[room:])
                self._state.put(settlement.changes)
        return Verdict(written, written)

    def undo(self) -> None:
        """Forget what the current handler has collected."""
        self._collected = None

    def commit(self) -> None:
        """Nothing to do: each `finish` was durable."""

    def rollback(self) -> None:
        """Forget what was collected and not finished."""
        self._collected = None

    # -- the call ------------------------------------------------------------------------------------------------------

    def _send(self, actions: Sequence[dict[str, Any]], token: str, hold: Hold, outcome: Outcome, now_ms: int) -> bool:
        request_token = token
        named = _permissions(actions)
        for _ in self._table.tries():
            with aws_errors(*named):
                try:
                    self._table.client.transact_write_items(TransactItems=actions, ClientRequestToken=request_token)
                except botocore.exceptions.ClientError as error:
                    if code_of(error) == "IdempotentParameterMismatchException":
                        verdict = self._was_written(hold, outcome, now_ms)
                        request_token = self._table.entropy.token()
                    elif code_of(error) == "TransactionCanceledException":
                        verdict = self._cancelled(error, actions, token)
                    else:
                        raise
                    if verdict is not None:
                        return verdict
                else:
                    return True
        raise errors.TransientError(
            f"The transaction of {hold.key.job} {hold.key.key!r} was cancelled by others at every try.",
            meaning="No part of it was written.",
            todo="Let fewer jobs write the same item at the same time.",
        )

    def _cancelled(
        self, error: botocore.exceptions.ClientError, actions: Sequence[dict[str, Any]], token: str
    ) -> bool | None:
        """What a cancelled transaction means: True or False for the record; None to try again.

        Raises:
            PermanentError, UsageError: an action of the handler is impossible.
        """
        reasons = error.response.get("CancellationReasons") or []
        codes = [str(reason.get("Code", "None")) for reason in reasons] or ["TransactionConflict"]
        if codes[0] == "ConditionalCheckFailed":
            item = reasons[0].get("Item") or {}
            return bool(item) and stamp_of(item) == token
        for index, code in enumerate(codes):
            if code == "ConditionalCheckFailed":
                raise _unmet(index, actions[index])
        for index, code in enumerate(codes):
            if code not in _PASSING and code != "None":
                said = str(reasons[index].get("Message", code))
                failure = botocore.exceptions.ClientError(
                    {"Error": {"Code": code, "Message": said}}, "TransactWriteItems"
                )
                raise translated(failure, "TransactWriteItems", _named(index, actions[index])) from error
        return None

    def _was_written(self, hold: Hold, outcome: Outcome, now_ms: int) -> bool | None:
        """Whether an earlier transaction of this hold was applied; None if the hold is current and nothing was written.

        Called if the token was used with other content in the last 10 minutes: by an earlier `finish`, or for a record
        that somebody has deleted by hand since.
        """
        item = self._table.get(item_key_of(hold.key, self._table.layout))
        record = record_of(item) if item else None
        after = transitions.write(record, hold, outcome, now_ms)
        return None if after is not None and after is not record else after is not None


def _token(table: Table, hold: Hold) -> str:
    """The request's token: the same for every try of one hold's transaction, and unique in this account and region."""
    parts = (table.name, hold.key.scope, hold.key.job, hold.key.key, hold.owner, str(hold.fence))
    return sha256("\x00".join(f"{len(part)}:{part}" for part in parts).encode()).hexdigest()[:TOKEN_CHARS]


def _permissions(actions: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """The permissions that the actions need, and on which tables."""
    wanted = {(_KINDS[kind], str(request.get("TableName"))) for action in actions for kind, request in action.items()}
    names = sorted({name for name, _ in wanted})
    tables = sorted({table for _, table in wanted})
    return " and ".join(f"dynamodb:{name}" for name in names), f"the tables {', '.join(tables)}"


def _named(number: int, action: Mapping[str, Any]) -> str:
    ((kind, request),) = action.items()
    return f"action {number} ({kind} in table {request.get('TableName')})"


def _unmet(number: int, action: Mapping[str, Any]) -> errors.PermanentError:
    ((_, request),) = action.items()
    return errors.PermanentError(
        f"The condition of {_named(number, action)} did not hold: {request.get('ConditionExpression')}.",
        meaning="No part of the transaction was written: neither the handler's own items nor its completion.",
        todo="If that condition may fail in the normal course, raise TransientError or return a result instead.",
    )


# Placeholders are needed: `value`, `name` and others are reserved words.
_NAMES = {"#version": "version", "#value": "value", "#name": "name", "#ttl": TTL_ATTRIBUTE, "#stamp": "stamp"}
_SETS = "SET #version = if_not_exists(#version, :zero) + :one, #name = :name, #stamp = :stamp"


def change(table: Table, item_key: Item, asked: Change) -> bool:
    """Make the change, unless its version is no longer current; returns whether it was applied.

    Args:
        item_key: the value's primary key.

    Raises:
        NotFoundError, UsageError, TransientError: as for `Table.call`.
    """
    stamp = table.entropy.token()
    values: dict[str, Value] = {
        ":zero": number(0),
        ":one": number(1),
        ":name": {"S": asked.name},
        ":stamp": {"S": stamp},
    }
    condition = "attribute_not_exists(#value)"
    if asked.expected:
        condition = "#version = :expected AND attribute_exists(#value)"
        values[":expected"] = number(asked.expected)
    if asked.value is None:
        expression = f"{_SETS}, #ttl = :ttl REMOVE #value"
        values[":ttl"] = ttl_of(table.clock.now_ms())
    else:
        expression = f"{_SETS}, #value = :value REMOVE #ttl"
        values[":value"] = {"S": asked.value.decode()}
    return _took(
        table,
        stamp,
        Key=item_key,
        UpdateExpression=expression,
        ConditionExpression=condition,
        ExpressionAttributeNames=_NAMES,
        ExpressionAttributeValues=values,
        ReturnValuesOnConditionCheckFailure="ALL_OLD",
    )


def _took(table: Table, stamp: str, **request: Any) -> bool:
    with aws_errors("dynamodb:UpdateItem", table.resource):
        try:
            table.client.update_item(TableName=table.name, **request)
        except botocore.exceptions.ClientError as error:
            if code_of(error) != "ConditionalCheckFailedException":
                raise
            return stamp_of(error.response.get("Item", {})) == stamp
    return True


PARTITION: Final = "~state"
_DIGEST_BYTES: Final = 65  # a mark and 64 hexadecimal characters
_CUT_BYTES: Final = SORT_KEY_BYTES_MAX - _DIGEST_BYTES


def _cut(name: str) -> str:
    """The beginning of a name that fits into a sort key together with a digest."""
    return name.encode()[:_CUT_BYTES].decode(errors="ignore")


def _item_key(name: str) -> Item:
    if len(name.encode()) > _CUT_BYTES:
        name = f"{_cut(name)}#{sha256(name.encode()).hexdigest()}"
    return {"pk": {"S": PARTITION}, "sk": {"S": name}}


class DynamoState:
    """The State contract on one table.

    Args:
        table: where the values are; its clock decides when a deleted name may be forgotten, its entropy makes stamps.
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    def get(self, names: Sequence[str]) -> list[Versioned | None]:
        """The current values, in order; None if absent. Strongly consistent, in one call for 100 names."""
        item_keys = [_item_key(name) for name in dict.fromkeys(names)]
        found = {item["sk"]["S"]: item for item in self._table.get_all(item_keys)}
        return [_versioned(found.get(_item_key(name)["sk"]["S"])) for name in names]

    def put(self, changes: Sequence[Change]) -> list[bool]:
        """Apply each change whose expected version is still current, one conditional write each.

        Raises:
            UsageError: a name or value is too long; nothing was changed.
            TransientError: throttled or unreachable; earlier changes were made.
        """
        for one in changes:
            check(one)
        return [
            self.get([one.name]) == [None]  # it deletes an absent value
            if one.value is None and one.expected == 0
            else change(self._table, _item_key(one.name), one)
            for one in changes
        ]

    def names(self, prefix: str) -> list[str]:
        """All names that begin with `prefix`, sorted. Reads every value, so it is meant for few and small ones."""
        arguments: dict[str, Any] = {
            "KeyConditionExpression": "pk = :pk",
            "FilterExpression": "attribute_exists(#value)",
            "ProjectionExpression": "#name",
            "ExpressionAttributeNames": {"#name": "name", "#value": "value"},
            "ExpressionAttributeValues": {":pk": {"S": PARTITION}},
        }
        if start := _cut(prefix):
            arguments["KeyConditionExpression"] += " AND begins_with(sk, :start)"
            arguments["ExpressionAttributeValues"][":start"] = {"S": start}
        found = (item["name"]["S"] for item in self._table.query(**arguments))
        return sorted(name for name in found if name.startswith(prefix))


def _versioned(item: Item | None) -> Versioned | None:
    if item is None or "value" not in item:
        return None
    return Versioned(int(item["version"]["N"]), item["value"]["S"].encode())
