"""The queues of one region that share a prefix: their URLs, ARNs and settings, looked up once and kept.

An app names queues without the prefix; AWS sees them with it. What is kept here is forgotten when this process changes or
drops the queue; another's change of a setting is seen when it leads to a refusal (`settings(fresh=True)`).

Never here: messages, changes. Invariant: one name stands for one URL as long as the process lives.

Sources: SQS API reference, GetQueueUrl, GetQueueAttributes, ListQueues, ListQueueTags.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from onefold import errors
from onefold.backends.aws import queue_attributes
from onefold.backends.aws.session import Session, aws_errors
from onefold.contracts.settings import QueueSettings

_PAGE = 1_000  # SQS ListQueues, MaxResults: 1 to 1,000


class Catalogue:
    """Names of queues, and what they stand for.

    Args:
        session: clients.
        prefix: put before every name on AWS.
        wait_s: the longest wait of a long poll, for the read time-out.
    """

    def __init__(self, session: Session, prefix: str = "", *, wait_s: int = 0) -> None:
        self._session = session
        self._wait_s = wait_s
        self.prefix = prefix
        self._given: dict[str, str] = {}
        self._urls: dict[str, str] = {}
        self._arns: dict[str, str] = {}
        self._settings: dict[str, QueueSettings] = {}
        self._held: dict[str, str | None] = {}

    @property
    def client(self) -> Any:
        """The SQS client."""
        return self._session.client("sqs", waits_s=self._wait_s)

    def on_aws(self, name: str) -> str:
        """A queue's name on AWS."""
        return self.name_of_url(self._given[name]) if name in self._given else self.prefix + name

    def local(self, on_aws: str) -> str:
        """A queue's name here; one outside the prefix keeps its own."""
        if self.prefix and on_aws.startswith(self.prefix):
            return on_aws[len(self.prefix) :]
        return on_aws

    def name_of_arn(self, arn: str) -> str:
        """The same from an ARN."""
        return self.local(arn.rpartition(":")[2])

    @staticmethod
    def name_of_url(url: str) -> str:
        """The last part of a queue's URL: its name on AWS."""
        return url.rstrip("/").rpartition("/")[2]

    def know(self, url: str) -> str:
        """Take a queue by its URL, whoever made it; its name here."""
        name = self.local(self.name_of_url(url))
        self._given[name] = url
        return name

    def resource(self, name: str) -> str:
        """A queue as errors name it."""
        return f"queue {self.on_aws(name)} in {self._session.region}"

    @contextmanager
    def calling(self, action: str, name: str) -> Iterator[Any]:
        """The client, for calls of one action on one queue; AWS's errors become ours.

        Raises:
            NotFoundError, UsageError, TransientError: as `aws_errors`.
        """
        with aws_errors(f"sqs:{action}", self.resource(name)):
            yield self.client

    def url(self, name: str) -> str:
        """A queue's URL.

        Raises:
            NotFoundError: no such queue in this region and account.
        """
        found = self._given.get(name) or self._urls.get(name)
        if found is None:
            with self.calling("GetQueueUrl", name) as client:
                found = client.get_queue_url(QueueName=self.prefix + name)["QueueUrl"]
            self._urls[name] = found
        return found

    def arn(self, name: str) -> str:
        """A queue's ARN.

        Raises:
            NotFoundError: no such queue.
        """
        if name not in self._arns:
            self.settings(name, fresh=True)
        return self._arns[name]

    def attributes(self, name: str, *names: str) -> dict[str, str]:
        """Attributes of a queue as SQS tells them.

        Raises:
            NotFoundError: no such queue.
        """
        url = self.url(name)
        with self.calling("GetQueueAttributes", name) as client:
            found: dict[str, str] = client.get_queue_attributes(QueueUrl=url, AttributeNames=list(names))["Attributes"]
        return found

    def settings(self, name: str, *, fresh: bool = False) -> QueueSettings:
        """A queue's settings without `held`, which only `held` tells: sending and receiving do not need it.

        Args:
            fresh: ask SQS, also when it was asked before.

        Raises:
            NotFoundError: no such queue.
        """
        found = None if fresh else self._settings.get(name)
        if found is None:
            attributes = self.attributes(name, "All")
            self._arns[name] = attributes["QueueArn"]
            found = queue_attributes.read(name, attributes, self.name_of_arn)
            self._settings[name] = found
        return found

    def buries_in(self, source: str, queue: str) -> bool:
        """Whether `queue` is a queue's dead-letter or held queue: anyone may write an attribute that names another."""
        try:
            return queue == self.settings(source).dead_letter or queue == self.held(source)
        except errors.OnefoldError:  # no such queue, or none that may be looked at
            return False

    def held(self, name: str, *, fresh: bool = False) -> str | None:
        """The name of a queue's held queue.

        Raises:
            NotFoundError: no such queue. UsageError: sqs:ListQueueTags is not allowed.
        """
        if fresh or name not in self._held:
            url = self.url(name)
            with self.calling("ListQueueTags", name) as client:
                tags = client.list_queue_tags(QueueUrl=url).get("Tags") or {}
            held = tags.get(queue_attributes.HELD_TAG)
            self._held[name] = None if held is None else self.local(held)
        return self._held[name]

    def names(self) -> list[str]:
        """All queues with the prefix, sorted. Those that were made less than a second ago may be missing."""
        found: list[str] = []
        ask: dict[str, Any] = {"MaxResults": _PAGE}
        if self.prefix:
            ask["QueueNamePrefix"] = self.prefix
        while True:
            with aws_errors("sqs:ListQueues", f"the queues of {self._session.region}"):
                answer = self.client.list_queues(**ask)
            for url in answer.get("QueueUrls", ()):
                name = self.local(self.name_of_url(url))
                self._urls.setdefault(name, url)
                found.append(name)
            if not answer.get("NextToken"):
                return sorted(set(found))
            ask["NextToken"] = answer["NextToken"]

    def is_there(self, name: str) -> bool:
        """Whether the queue exists now."""
        self.forget(name)
        try:
            self.url(name)
        except errors.NotFoundError:
            return False
        return True

    def forget(self, name: str) -> None:
        """The queue was changed or dropped: ask again."""
        for kept in (self._urls, self._arns, self._settings, self._held):
            kept.pop(name, None)
