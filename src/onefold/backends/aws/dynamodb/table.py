"""The table: every call that onefold makes to it, its errors as ours, and the retries that botocore does not do.

botocore repeats a call that failed as a whole (`aws/session.py`). What comes back inside a good answer is repeated here: a
statement of a batch that was throttled or met a transaction, keys and rows that were left unprocessed. Each such round
waits 50 ms x 2^n with jitter, six tries in all (about 1.5 s), shorter than any lease.

Never here: what an item means. Invariant: every write is answered; one whose answer is an error may have been carried out.
"""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any, Final

import botocore.exceptions
from msgspec import Struct

from onefold import errors
from onefold.backends.aws.dynamodb.items import Item, Layout
from onefold.backends.aws.dynamodb.writes import Insert, as_statement, size_of
from onefold.backends.aws.session import aws_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from onefold.backends.aws.dynamodb.writes import Write
    from onefold.backends.aws.session import Session
    from onefold.outside import Clock, Entropy

STATEMENTS_MAX: Final = 25  # API BatchExecuteStatement, Statements: at most 25
BATCH_BYTES_MAX: Final = 4 * 1024 * 1024  # ours: a batch of large results stays a small request
GETS_MAX: Final = 100  # API BatchGetItem: 100 items
PUTS_MAX: Final = 25  # API BatchWriteItem: 25 requests
TRIES: Final = 6
PAUSE_MS: Final = 50

_REFUSED: Final = frozenset({"ConditionalCheckFailed", "DuplicateItem"})


class Refused(Struct, frozen=True, gc=False):
    """A write whose condition did not hold.

    Args:
        item: what stands there, empty where nothing does; None when the answer did not say.
    """

    item: Item | None


Answer = Refused | errors.OnefoldError | None
"""Of one write: None when it took."""


class Table:
    """One table with the primary key `pk`, `sk`.

    Args:
        session: whose client is used.
        name: of the table.
        clock: for the pauses between tries.
        entropy: for their jitter, and for the ids of writes.
        batched: whether several writes go in one BatchExecuteStatement; one call each otherwise.
        layout: of its items (`items.py`).
        first: called with the bare table before the first call of all, and again when it raised (`marker.py`).
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
        """boto3's client, shared by all threads; the first one to ask for it calls `first` before.

        Raises:
            UsageError: the table has another layout. NotFoundError, TransientError: as `call`.
        """
        if self._first is not None:
            self._first(self.bare())  # by two threads at once: harmless
            self._first = None
        return self._session.client("dynamodb")

    def bare(self) -> Table:
        """The same table without `first`."""
        return Table(self._session, self.name, self.clock, self.entropy, batched=self._batched, layout=self.layout)

    def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """One call about this table, by the client's method name.

        Raises:
            NotFoundError: the table does not exist.
            UsageError: not allowed, or refused.
            TransientError: failed for now, after botocore's own tries.
        """
        action = "".join(part.title() for part in operation.split("_"))
        with aws_errors(f"dynamodb:{action}", self.resource):
            return dict(getattr(self.client, operation)(TableName=self.name, **arguments))

    # -- writes --------------------------------------------------------------------------------------------------------

    def write(self, writes: Sequence[Write], riders: Sequence[Write] = ()) -> list[Answer]:
        """Make conditional writes of different items; each stands or falls alone. Raises nothing of its own.

        Args:
            writes: to be made.
            riders: go along in the last call, and are tried once: nobody waits for them.

        Returns:
            The answers to the writes, then to the riders.
        """
        everything = [*writes, *riders]
        if not self._batched or len(everything) == 1:
            return self._one_by_one(everything)
        answers: list[Answer] = []
        for chunk in _chunks(everything):
            answers += self._patiently(chunk, len(writes) - len(answers))
        return answers

    def _one_by_one(self, writes: Sequence[Write]) -> list[Answer]:
        answers: list[Answer] = []
        for write in writes:
            try:
                answers.append(self._single(write))
            except errors.OnefoldError as error:
                answers.append(error)
        return answers

    def _single(self, write: Write) -> Refused | None:
        from onefold.backends.aws.dynamodb.requests import as_request  # here and below: batches need none of it
        from onefold.backends.aws.refusals import code_of

        operation, action = ("put_item", "PutItem") if isinstance(write, Insert) else ("update_item", "UpdateItem")
        request = as_request(write, self.name)
        for _ in self.tries():
            with aws_errors(f"dynamodb:{action}", self.resource):
                try:
                    getattr(self.client, operation)(**request)
                except botocore.exceptions.ClientError as error:
                    if code_of(error) == "ConditionalCheckFailedException":
                        return Refused(error.response.get("Item", {}))
                    if code_of(error) != "TransactionConflictException":  # which SDKs do not repeat
                        raise
                else:
                    return None
        raise self._contended(f"dynamodb:{action}")

    def _patiently(self, writes: Sequence[Write], needed: int) -> list[Answer]:
        """One batch; again those of its statements that may pass later, among the first `needed`."""
        answers: list[Answer] = [None] * len(writes)
        left = list(range(len(writes)))
        for _ in self.tries():
            try:
                became = self._batch([writes[place] for place in left])
            except errors.OnefoldError as error:  # the call as a whole, which botocore has repeated
                for place in left:
                    answers[place] = error
                break
            for place, answer in zip(left, became, strict=True):
                answers[place] = answer
            left = [p for p in left if p < needed and isinstance(answers[p], errors.TransientError)]
            if not left:
                break
        return answers

    def _batch(self, writes: Sequence[Write]) -> list[Answer]:
        statements = [as_statement(write, self.name) for write in writes]
        with aws_errors(_action_of(writes[0]), self.resource):
            responses = self.client.batch_execute_statement(Statements=statements)["Responses"]
        return [self._statement(answer, write) for answer, write in zip(responses, writes, strict=True)]

    def _statement(self, response: Mapping[str, Any], write: Write) -> Answer:
        error = response.get("Error")
        if error is None:
            return None
        if error.get("Code") in _REFUSED:
            return Refused(error.get("Item") or response.get("Item"))
        if (
            error.get("Code") == "ValidationError"
        ):  # PartiQL is known by examples; what it does not take, UpdateItem may
            return self._one_by_one([write])[0]
        from onefold.backends.aws.refusals import translated

        failure = botocore.exceptions.ClientError({"Error": error}, "BatchExecuteStatement")
        return translated(failure, _action_of(write), self.resource)

    def put_all(self, items: Sequence[Item]) -> None:
        """Store items without a condition, 25 to a call; again what was left unprocessed.

        Raises:
            NotFoundError, UsageError, TransientError: as `call`; some of the items may be stored.
        """
        for start in range(0, len(items), PUTS_MAX):
            chunk = [{"PutRequest": {"Item": item}} for item in items[start : start + PUTS_MAX]]
            self._drain({self.name: chunk}, "BatchWriteItem", self.client.batch_write_item, "UnprocessedItems")

    # -- reads ---------------------------------------------------------------------------------------------------------

    def get_all(self, places: Sequence[Item]) -> list[Item]:
        """The items at these different places as they stand, in any order; nothing where none is."""
        found: list[Item] = []
        for start in range(0, len(places), GETS_MAX):
            wanted = {self.name: {"Keys": list(places[start : start + GETS_MAX]), "ConsistentRead": True}}
            for answer in self._drain(wanted, "BatchGetItem", self.client.batch_get_item, "UnprocessedKeys"):
                found += answer["Responses"].get(self.name, [])
        return found

    def get(self, place: Item) -> Item | None:
        """The item at one place as it stands."""
        item: Item | None = self.call("get_item", Key=place, ConsistentRead=True).get("Item")
        return item

    def query(self, **arguments: Any) -> Iterator[Item]:
        """The items of one partition, strongly consistent, page by page as they are taken."""
        return self._pages("query", None, arguments)

    def scan(self, pages_max: int | None, **arguments: Any) -> Iterator[Item]:
        """The items of the table in any order, strongly consistent, page by page as they are taken.

        Raises:
            UsageError: the table has more than `pages_max` pages of 1 MB, where that is given.
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
                    f"The table {self.name} has more than {pages_max} MB; this looks at every record of it.",
                    meaning="DynamoDB finds records by tenant, job and key only; it would cost time and read units.",
                    todo="Ask for one operation by its tenant, job and key, or export the table and search there.",
                )
            start = {"ExclusiveStartKey": last}

    # -- patience ------------------------------------------------------------------------------------------------------

    def tries(self) -> Iterator[int]:
        """The numbers of the tries, with a pause before each but the first."""
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
            f"{action} on table {self.name} was put off {TRIES} times in a row.",
            meaning="The table is throttled, or a transaction holds the item.",
            todo="Try again in a moment; if it lasts, see the table's throttling metrics.",
        )


def _chunks(writes: Sequence[Write]) -> Iterator[Sequence[Write]]:
    """Runs of writes that fit into one call."""
    start, size = 0, 0
    for place, write in enumerate(writes):
        size += size_of(write)
        if place - start == STATEMENTS_MAX or (size > BATCH_BYTES_MAX and place > start):
            yield writes[start:place]
            start, size = place, size_of(write)
    if start < len(writes):
        yield writes[start:]


def _action_of(write: Write) -> str:
    """The IAM action of a statement (IAM reference of DynamoDB: BatchExecuteStatement needs the one of each statement)."""
    return "dynamodb:PartiQLInsert" if isinstance(write, Insert) else "dynamodb:PartiQLUpdate"
