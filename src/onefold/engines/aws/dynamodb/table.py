"""The table: every call that onefold makes to it, the translation of its errors, and the retries that botocore does not do.

A conditional write of one item is a value, `Insert` or `Update`, which can be written in two ways with the same
meaning: a PartiQL statement for batches; and PutItem or UpdateItem for a single write, for emulators without batches of
statements, for what PartiQL does not accept, and for transactions. An `Insert` succeeds if no item exists. An `Update`
is applied if there is an item whose attributes equal `where` (so it never brings a deleted item back) and, if given,
the attribute of `differs` does not equal its value. Attribute names are always quoted or given by placeholder:
`status`, `owner`, `ttl` and others are reserved words.

botocore repeats a call that failed as a whole (`aws/session.py`). What failed inside a successful answer is repeated
here: a statement of a batch that was throttled or conflicted with a transaction, and keys and rows that were left
unprocessed. Each such round waits 50 ms x 2^n with jitter, six tries in all (about 1.5 s), shorter than any lease.

Never here: what an item means. Invariant: every write has an answer; one that failed may have been carried out.

Sources: DynamoDB API reference, PutItem, UpdateItem, TransactWriteItems, BatchExecuteStatement.
"""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any, Final

import botocore.exceptions
from msgspec import Struct

from onefold import errors
from onefold.engines.aws.dynamodb.items import Item, Layout, Value
from onefold.engines.aws.session import aws_errors, code_of, translated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from onefold.engines.aws.session import Session
    from onefold.outside import Clock, Entropy


class Insert(Struct, frozen=True, gc=False):
    """Create an item if none exists.

    Args:
        item: the item with its primary key.
    """

    item: Item


class Update(Struct, frozen=True, kw_only=True, gc=False):
    """Change an item that is as expected.

    Args:
        item_key: its primary key.
        sets: attributes and their new values.
        adds: number attributes and what to add to them; each must exist.
        removes: attributes to remove; one that does not exist is not an error.
        where: attributes and the values they must have.
        differs: an attribute and the value it must not have.
    """

    item_key: Item
    where: Mapping[str, Value]
    sets: Mapping[str, Value] = {}
    adds: Mapping[str, int] = {}
    removes: tuple[str, ...] = ()
    differs: tuple[str, Value] | None = None


Write = Insert | Update


def size_of(write: Write) -> int:
    """About how many bytes the values of a write have."""
    values = write.item if isinstance(write, Insert) else write.sets
    return sum(len(text) for value in values.values() for text in value.values() if isinstance(text, str))


def changed(item_key: Item, before: Item, after: Item) -> Update:
    """The update that changes an item from what was read to `after`; it is applied only if nobody has written since.

    Args:
        item_key: its primary key.
        before: the item as it was read, `stamp` included.
        after: the new value.
    """
    return Update(
        item_key=item_key,
        where={name: before[name] for name in ("fence", "owner", "status", "stamp") if name in before},
        sets={name: value for name, value in after.items() if name not in item_key and before.get(name) != value},
        removes=tuple(name for name in before if name not in after),
    )


def as_statement(write: Write, table: str) -> dict[str, Any]:
    """The write as one statement of BatchExecuteStatement.

    Developer guide, "PartiQL insert statements": an existing key is DuplicateItem. "PartiQL update statements": SET and
    REMOVE may be repeated, and a WHERE that is not true for the item, or without an item, is ConditionalCheckFailed.
    """
    if isinstance(write, Insert):
        names = ", ".join(f"'{name}': ?" for name in write.item)
        text = f'INSERT INTO "{table}" VALUE {{{names}}}'
        values = list(write.item.values())
    else:
        text, values = _update_statement(write, table)
    return {"Statement": text, "Parameters": values, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


def _update_statement(write: Update, table: str) -> tuple[str, list[Value]]:
    parts = [f'UPDATE "{table}"']
    parts += [f'SET "{name}" = ?' for name in write.sets]
    parts += [f'SET "{name}" = "{name}" {"+" if by >= 0 else "-"} {abs(by)}' for name, by in write.adds.items()]
    parts += [f'REMOVE "{name}"' for name in write.removes]
    conditions = [f'"{name}" = ?' for name in (*write.item_key, *write.where)]
    values = [*write.sets.values(), *write.item_key.values(), *write.where.values()]
    if write.differs is not None:
        name, value = write.differs
        conditions.append(f'"{name}" <> ?')
        values.append(value)
    return f"{' '.join(parts)} WHERE {' AND '.join(conditions)}", values


def as_request(write: Write, table: str) -> dict[str, Any]:
    """The write as arguments of PutItem or UpdateItem; the same as `Put` or `Update` of a transaction."""
    request: dict[str, Any] = {"TableName": table, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    if isinstance(write, Insert):
        return request | {"Item": write.item, "ConditionExpression": "attribute_not_exists(pk)"}
    names: dict[str, str] = {}
    values: dict[str, Value] = {}

    def name_of(name: str) -> str:
        names[f"#{name}"] = name
        return f"#{name}"

    def value_of(label: str, value: Value) -> str:
        values[f":{label}"] = value
        return f":{label}"

    sets = [f"{name_of(name)} = {value_of(name, value)}" for name, value in write.sets.items()]
    sets += [f"{name_of(name)} = {name_of(name)} + {value_of(name, {'N': str(by)})}" for name, by in write.adds.items()]
    expression = f"SET {', '.join(sets)}"
    if write.removes:
        expression += f" REMOVE {', '.join(map(name_of, write.removes))}"
    conditions = [f"{name_of(name)} = {value_of(f'w_{name}', value)}" for name, value in write.where.items()]
    if write.differs is not None:
        name, value = write.differs
        conditions.append(f"{name_of(name)} <> {value_of(f'd_{name}', value)}")
    return request | {
        "Key": write.item_key,
        "UpdateExpression": expression,
        "ConditionExpression": " AND ".join(conditions),
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
    }


def as_action(write: Write, table: str) -> dict[str, Any]:
    """The write as one action of TransactWriteItems."""
    return {"Put" if isinstance(write, Insert) else "Update": as_request(write, table)}


STATEMENTS_MAX: Final = 25  # API BatchExecuteStatement, Statements: at most 25
BATCH_BYTES_MAX: Final = 4 * 1024 * 1024  # ours: a batch of large results stays a small request
GETS_MAX: Final = 100  # API BatchGetItem: 100 items
PUTS_MAX: Final = 25  # API BatchWriteItem: 25 requests
TRIES: Final = 6
PAUSE_MS: Final = 50

_REFUSED: Final = frozenset({"ConditionalCheckFailed", "DuplicateItem"})


class ConditionFailed(Struct, frozen=True, gc=False):
    """A write whose condition did not hold.

    Args:
        item: the stored item, empty if there is none; None if the answer did not contain it.
    """

    item: Item | None


Answer = ConditionFailed | errors.OnefoldError | None
"""The answer to one write: None if it was applied."""


About = tuple[str | None, str] | tuple[int, str]  # what a rider is about; see `notes.py`


class Rider:
    """An item that is written along with moves, if there is room in their calls, and on which no answer depends.

    Args:
        write: the write; nothing else writes an item with its key.
        about: what it is about, for the code that made it.

    Attributes:
        written: whether it is stored now.
    """

    __slots__ = ("about", "write", "written")

    def __init__(self, write: Insert, about: About) -> None:
        self.write = write
        self.about = about
        self.written = False


class Table:
    """One table with the primary key `pk`, `sk`.

    Args:
        session: gives the client.
        name: the table's name.
        clock: for the pauses between tries.
        entropy: for their jitter, and for the ids of writes.
        batched: whether several writes go into one BatchExecuteStatement; otherwise there is one call for each.
        layout: layout of its items (`items.py`).
        first: called with the bare table before the first other call, and again if it raised (`schema.check_layout`).
    """

    def __init__(
        self,
        session: Session,
        name: str,
        clock: Clock,
        entropy: Entropy,
        *,
        batched: bool = True,
        layout: Layout = 1,
        first: Callable[[Table], None] | None = None,
    ) -> None:
        self.name = name
        self.layout: Layout = layout
        self.resource = f"arn:aws:dynamodb:{session.region}:*:table/{name}"
        self.clock = clock
        self.entropy = entropy
        self._session = session
        self._batched = batched
        self._never = threading.Event()
        self._first = first

    @property
    def client(self) -> Any:
        """boto3's client, shared by all threads; the first thread that asks for it calls `first` beforehand.

        Raises:
            UsageError: the table has another layout. NotFoundError, TransientError: as for `call`.
        """
        if self._first is not None:
            self._first(self.bare())  # if two threads do this at once, it does no harm
            self._first = None
        return self._session.client("dynamodb")

    def bare(self) -> Table:
        """The same table without `first`."""
        return Table(self._session, self.name, self.clock, self.entropy, batched=self._batched, layout=self.layout)

    def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Make one call about this table, by the client's method name.

        Raises:
            NotFoundError: the table does not exist.
            UsageError: not allowed, or refused.
            TransientError: it failed for now, after botocore's own tries.
        """
        action = "".join(part.title() for part in operation.split("_"))
        with aws_errors(f"dynamodb:{action}", self.resource):
            return dict(getattr(self.client, operation)(TableName=self.name, **arguments))

    # -- writes --------------------------------------------------------------------------------------------------------

    def write(self, writes: Sequence[Write], riders: Sequence[Write] = ()) -> list[Answer]:
        """Make conditional writes of different items; each succeeds or fails alone, and errors are answers.

        Args:
            writes: the writes to make.
            riders: writes that are sent along in the last call, and tried only once: nothing depends on them.

        Returns:
            The answers to the writes, then to the riders.
        """
        everything = [*writes, *riders]
        if not self._batched or len(everything) == 1:
            return self._one_by_one(everything)
        answers: list[Answer] = []
        for chunk in _chunks(everything):
            answers += self._with_retries(chunk, len(writes) - len(answers))
        return answers

    def _one_by_one(self, writes: Sequence[Write]) -> list[Answer]:
        answers: list[Answer] = []
        for write in writes:
            try:
                answers.append(self._single(write))
            except errors.OnefoldError as error:
                answers.append(error)
        return answers

    def _single(self, write: Write) -> ConditionFailed | None:
        operation, action = ("put_item", "PutItem") if isinstance(write, Insert) else ("update_item", "UpdateItem")
        request = as_request(write, self.name)
        for _ in self.tries():
            with aws_errors(f"dynamodb:{action}", self.resource):
                try:
                    getattr(self.client, operation)(**request)
                except botocore.exceptions.ClientError as error:
                    if code_of(error) == "ConditionalCheckFailedException":
                        return ConditionFailed(error.response.get("Item", {}))
                    if code_of(error) != "TransactionConflictException":  # SDKs do not repeat this one
                        raise
                else:
                    return None
        raise self._contended(f"dynamodb:{action}")

    def _with_retries(self, writes: Sequence[Write], needed: int) -> list[Answer]:
        """Write one batch; of the first `needed` statements, those that failed for now are tried again."""
        answers: list[Answer] = [None] * len(writes)
        left = list(range(len(writes)))
        for _ in self.tries():
            try:
                became = self._batch([writes[item_key] for item_key in left])
            except errors.OnefoldError as error:  # the whole call failed, after botocore's tries
                for item_key in left:
                    answers[item_key] = error
                break
            for item_key, answer in zip(left, became, strict=True):
                answers[item_key] = answer
            left = [p for p in left if p < needed and isinstance(answers[p], errors.TransientError)]
            if not left:
                break
        return answers

    def _batch(self, writes: Sequence[Write]) -> list[Answer]:
        statements = [as_statement(write, self.name) for write in writes]
        with aws_errors(_action_of(writes[0]), self.resource):
            try:
                responses = self.client.batch_execute_statement(Statements=statements)["Responses"]
            except botocore.exceptions.ClientError as error:
                if code_of(error) != "ValidationException":
                    raise
                responses = None  # the call was refused as a whole, before any of it was carried out
        if responses is None:
            return self._one_by_one(writes)
        return [self._statement(answer, write) for answer, write in zip(responses, writes, strict=True)]

    def _statement(self, response: Mapping[str, Any], write: Write) -> Answer:
        error = response.get("Error")
        if error is None:
            return None
        if error.get("Code") in _REFUSED:
            return ConditionFailed(error.get("Item") or response.get("Item"))
        # PartiQL is documented by examples; UpdateItem may accept what it refuses.
        if error.get("Code") == "ValidationError":
            return self._one_by_one([write])[0]

        failure = botocore.exceptions.ClientError({"Error": error}, "BatchExecuteStatement")
        return translated(failure, _action_of(write), self.resource)

    def put_all(self, items: Sequence[Item]) -> None:
        """Store items without a condition, 25 to a call; those that were left unprocessed are tried again.

        Raises:
            NotFoundError, UsageError, TransientError: as for `call`; some of the items may be stored.
        """
        for start in range(0, len(items), PUTS_MAX):
            chunk = [{"PutRequest": {"Item": item}} for item in items[start : start + PUTS_MAX]]
            self._drain({self.name: chunk}, "BatchWriteItem", self.client.batch_write_item, "UnprocessedItems")

    def delete_all(self, places: Sequence[Item]) -> None:
        """Delete items, 25 to a call; items that do not exist are ignored. Errors as for `put_all`."""
        for start in range(0, len(places), PUTS_MAX):
            chunk = [{"DeleteRequest": {"Key": place}} for place in places[start : start + PUTS_MAX]]
            self._drain({self.name: chunk}, "BatchWriteItem", self.client.batch_write_item, "UnprocessedItems")

    def transact(self, actions: Sequence[Mapping[str, Any]]) -> None:
        """Make changes to this table without conditions, all or none.

        Args:
            actions: actions of TransactWriteItems, without the table's name.
        """
        named = [{kind: {"TableName": self.name, **one} for kind, one in action.items()} for action in actions]
        with aws_errors("dynamodb:TransactWriteItems", self.resource):
            self.client.transact_write_items(TransactItems=named)

    def close(self) -> None:
        """Close the session; only if nothing but the table uses it."""
        self._session.close()

    # -- reads ---------------------------------------------------------------------------------------------------------

    def get_all(self, item_keys: Sequence[Item]) -> list[Item]:
        """The items with these different keys, strongly consistent, in any order; those that do not exist are left out."""
        found: list[Item] = []
        for start in range(0, len(item_keys), GETS_MAX):
            wanted = {self.name: {"Keys": list(item_keys[start : start + GETS_MAX]), "ConsistentRead": True}}
            for answer in self._drain(wanted, "BatchGetItem", self.client.batch_get_item, "UnprocessedKeys"):
                found += answer["Responses"].get(self.name, [])
        return found

    def get(self, item_key: Item) -> Item | None:
        """The item with this key, strongly consistent; None if there is none."""
        item: Item | None = self.call("get_item", Key=item_key, ConsistentRead=True).get("Item")
        return item

    def query(self, **arguments: Any) -> Iterator[Item]:
        """The items of one partition, strongly consistent, one page at a time, on demand."""
        return self._pages("query", None, arguments)

    def scan(self, pages_max: int | None, **arguments: Any) -> Iterator[Item]:
        """The items of the table in any order, strongly consistent, one page at a time, on demand.

        Raises:
            UsageError: the table has more than `pages_max` pages of 1 MB, if that is given.
        """
        return self._pages("scan", pages_max, arguments)

    def _pages(self, operation: str, pages_max: int | None, arguments: Mapping[str, Any]) -> Iterator[Item]:
        start: dict[str, Any] = {}
        for page in itertools.count(1):
            answer = self.call(operation, ConsistentRead=True, **arguments, **start)
            yield from answer["Items"]
            if not (last := answer.get("LastEvaluatedKey")):
                return
            if page == pages_max:
                raise errors.UsageError(
                    f"The table {self.name} has more than {pages_max} MB; this reads every record of it.",
                    meaning="DynamoDB finds records by tenant, job and key only; it would cost time and read units.",
                    todo="Ask for one operation by its tenant, job and key, or export the table and search there.",
                )
            start = {"ExclusiveStartKey": last}

    # -- retries -------------------------------------------------------------------------------------------------------

    def tries(self) -> Iterator[int]:
        """The numbers of the tries, with a pause before each except the first."""
        yield 0
        for number in range(1, TRIES):
            pause_ms = PAUSE_MS * 2 ** (number - 1)
            self.clock.wait(self._never, int(pause_ms * (0.5 + self.entropy.fraction())))
            yield number

    def _drain(
        self, wanted: Mapping[str, Any], action: str, call: Callable[..., Any], left: str
    ) -> list[Mapping[str, Any]]:
        answers = []
        for _ in self.tries():
            with aws_errors(f"dynamodb:{action}", self.resource):
                answer = call(RequestItems=wanted)
            answers.append(answer)
            wanted = answer.get(left) or {}
            if not wanted:
                return answers
        raise self._contended(f"dynamodb:{action}")

    def _contended(self, action: str) -> errors.TransientError:
        return errors.TransientError(
            f"{action} on table {self.name} was deferred {TRIES} times in a row.",
            meaning="The table is throttled, or a transaction holds the item.",
            todo="Try again in a moment; if it lasts, see the table's throttling metrics.",
        )


def _chunks(writes: Sequence[Write]) -> Iterator[Sequence[Write]]:
    """Consecutive writes in chunks that fit into one call."""
    start, size = 0, 0
    for item_key, write in enumerate(writes):
        size += size_of(write)
        if item_key - start == STATEMENTS_MAX or (size > BATCH_BYTES_MAX and item_key > start):
            yield writes[start:item_key]
            start, size = item_key, size_of(write)
    if start < len(writes):
        yield writes[start:]


def _action_of(write: Write) -> str:
    """The IAM action of a statement (IAM reference of DynamoDB: BatchExecuteStatement needs that of each statement)."""
    return "dynamodb:PartiQLInsert" if isinstance(write, Insert) else "dynamodb:PartiQLUpdate"
