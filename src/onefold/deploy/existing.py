"""Finds resources with contents: those that a template would make but that exist, and those that a stack would lose.

A queue, table or archive that left a stack was kept, under a fixed name. If it comes back, it is imported with its
contents, unless another stack has it: two apps with one prefix never take each other's queues. Before a stack is
destroyed, the contents of each such resource are counted.
Never here: what is done about it (`admin/deploying.py`). Invariant: nothing is changed here; a resource that cannot be
read is reported, not considered absent.

Sources: CloudFormation API, CreateChangeSet, ImportExistingResources (custom names, and a deletion policy on each resource);
DescribeStackResources, PhysicalResourceId; SQS, DynamoDB and EventBridge APIs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct

from onefold import errors
from onefold.deploy.apply import Translating
from onefold.deploy.changes import HOLDS
from onefold.engines.aws.dynamodb.items import MARKER

if TYPE_CHECKING:
    from onefold.engines.aws.session import Session

_NAMES: Final[Mapping[str, str]] = {
    "AWS::SQS::Queue": "QueueName",
    "AWS::DynamoDB::Table": "TableName",
    "AWS::Events::Archive": "ArchiveName",
}
_ABSENT: Final = frozenset(
    {"QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", "ResourceNotFoundException", "ValidationError"}
)
_COUNTS: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


class Holder(Struct, frozen=True, kw_only=True):
    """A resource of a template that has contents.

    Args:
        logical_id, type, name: the resource's. kept: whether it is kept when it leaves the stack.
        physical_id: a queue's URL, otherwise its name. count: how much it contains; None if not counted.
        stack: the stack that has it now; None if there is none, or it was not asked for.
    """

    logical_id: str
    type: str
    name: str
    kept: bool
    physical_id: str
    count: int | None = None
    stack: str | None = None

    @property
    def holds(self) -> str:
        """What it contains, for example `messages`."""
        return HOLDS[self.type]


class Looking:
    """Reads queues, tables and archives.

    Args:
        session: makes the clients. aws_errors: turns AWS's errors into onefold's.
    """

    def __init__(self, session: Session, aws_errors: Translating) -> None:
        self._session = session
        self._errors = aws_errors

    def there(self, template: Mapping[str, Any], deployed: Mapping[str, Any], *, counted: bool = False) -> list[Holder]:
        """Resources that a template would make and that exist although the deployed template lacks them, by logical id.

        Args:
            deployed: the template that the stack has now, empty if none. counted: count the contents of each.

        Raises:
            UsageError: not allowed. TransientError: AWS failed temporarily.
        """
        had = deployed.get("Resources", {})
        found = []
        for logical_id, resource in sorted(template.get("Resources", {}).items()):
            name = resource.get("Properties", {}).get(_NAMES.get(resource["Type"], ""))
            if logical_id in had or not isinstance(name, str):
                continue
            one = self._look(logical_id, resource, name, counted=counted)
            if one is not None:
                found.append(one)
        return found

    def layout(self, table: str) -> Literal[1, 2] | None:
        """The layout of a table's records; None if it is new: it does not exist, or nothing has been written to it.

        Raises:
            UsageError: not allowed. TransientError: AWS failed temporarily.
        """
        client = self._session.client("dynamodb")
        try:
            with self._errors("dynamodb:GetItem", f"table {table}"):
                marker = client.get_item(TableName=table, Key=MARKER, ConsistentRead=True).get("Item")
            if marker is not None:
                return 2 if "moving" not in marker and marker.get("layout") == {"N": "2"} else 1
            with self._errors("dynamodb:Scan", f"table {table}"):
                has_items = client.scan(TableName=table, Select="COUNT", Limit=1, ConsistentRead=True)["Count"]
        except errors.NotFoundError:
            return None
        return 1 if has_items else None

    def _look(self, logical_id: str, resource: Mapping[str, Any], name: str, *, counted: bool) -> Holder | None:
        from botocore.exceptions import ClientError

        look: Callable[[str], tuple[str, int | None]] = {
            "AWS::SQS::Queue": lambda one: self._queue(one, counted=counted),
            "AWS::DynamoDB::Table": self._table,
            "AWS::Events::Archive": self._archive,
        }[resource["Type"]]
        with self._errors(f"looking at {name}", name):
            try:
                physical_id, count = look(name)
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") in _ABSENT:
                    return None
                raise
        return Holder(
            logical_id=logical_id,
            type=resource["Type"],
            name=name,
            kept=str(resource.get("DeletionPolicy", "Delete")).startswith("Retain"),
            physical_id=physical_id,
            count=count,
            stack=None if counted else self._stack(physical_id),
        )

    def _queue(self, name: str, *, counted: bool) -> tuple[str, int | None]:
        client = self._session.client("sqs")
        url = client.get_queue_url(QueueName=name)["QueueUrl"]
        if not counted:
            return url, None
        found = client.get_queue_attributes(QueueUrl=url, AttributeNames=list(_COUNTS))["Attributes"]
        return url, sum(int(found.get(one, 0)) for one in _COUNTS)

    def _table(self, name: str) -> tuple[str, int | None]:
        client = self._session.client("dynamodb")
        count = int(client.describe_table(TableName=name)["Table"].get("ItemCount", 0))
        if count == 0:  # the count can be six hours old
            count = int(client.scan(TableName=name, Select="COUNT", Limit=100)["Count"])
        return name, count

    def _archive(self, name: str) -> tuple[str, int | None]:
        found = self._session.client("events").describe_archive(ArchiveName=name)
        return name, int(found.get("EventCount", 0))

    def _stack(self, physical_id: str) -> str | None:
        """The stack that has a resource; None if there is none."""
        from botocore.exceptions import ClientError

        with self._errors("cloudformation:DescribeStackResources", physical_id):
            try:
                found = self._session.client("cloudformation").describe_stack_resources(PhysicalResourceId=physical_id)
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") in _ABSENT:
                    return None
                raise
        return next((one["StackName"] for one in found.get("StackResources", ()) if _is_live(one)), None)


def _is_live(resource: Mapping[str, Any]) -> bool:
    return not str(resource.get("ResourceStatus", "")).startswith("DELETE")
