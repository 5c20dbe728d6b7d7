"""The queues of one region that share a prefix: their URLs, ARNs and settings; creating and changing queues.

An app names queues without the prefix; AWS sees them with it. URLs and settings are looked up once and cached. They are
dropped from the cache when this process changes or drops the queue. A setting that another process changed is noticed when
SQS refuses a call because of it (`settings(fresh=True)`).

In SQS a queue's settings are attributes and a tag (`queue_attributes.py`). Creating a queue that exists never changes it.

Never here: messages, dropping. Invariant: a name has the same URL for the life of the process; a change that is refused
before the first write has changed nothing. If a later call of a change is refused, the earlier ones remain.

Sources: SQS API reference, the operation in each method.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from msgspec import structs

from onefold import errors
from onefold.contracts.settings import QueueSettings, check_target, check_targets, refuse_differences
from onefold.engines.aws import queue_attributes
from onefold.engines.aws.batches import cause_of
from onefold.engines.aws.session import Session, aws_errors

_ASKED_AT_ONCE: Final = 8  # threads that ask for the settings of many queues
_EXISTS: Final = frozenset({"QueueAlreadyExists", "QueueNameExists"})
# The codes of servers that lack an action (move tasks, dead-letter sources).
UNKNOWN_ACTION: Final = frozenset(
    {"InvalidAction", "UnknownOperation", "UnknownOperationException", "UnsupportedOperation", "NotImplemented",
     "AWS.SimpleQueueService.UnsupportedOperation"}
)  # fmt: skip
_PAGE: Final = 1_000  # SQS ListQueues, MaxResults: 1 to 1,000


class QueueCatalogue:
    """Queues by name. Safe to call from any thread.

    Args:
        session: gives the clients.
        prefix: put before every name on AWS.
        wait_s: the longest wait of a long poll in seconds, for the read time-out.
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
        """A queue's name in the app; a queue outside the prefix keeps its name."""
        if self.prefix and on_aws.startswith(self.prefix):
            return on_aws[len(self.prefix) :]
        return on_aws

    def name_of_arn(self, arn: str) -> str:
        """A queue's name in the app, from its ARN."""
        return self.local(arn.rpartition(":")[2])

    @staticmethod
    def name_of_url(url: str) -> str:
        """The last part of a queue's URL: its name on AWS."""
        return url.rstrip("/").rpartition("/")[2]

    def know(self, url: str) -> str:
        """Add a queue by its URL, even if onefold did not create it; returns its name in the app."""
        name = self.local(self.name_of_url(url))
        self._given[name] = url
        return name

    def resource(self, name: str) -> str:
        """A queue as errors mention it."""
        return f"queue {self.on_aws(name)} in {self._session.region}"

    @contextmanager
    def calling(self, action: str, name: str) -> Iterator[Any]:
        """The client, for calls of one action on one queue; AWS's errors are raised as ours.

        Raises:
            NotFoundError, UsageError, TransientError: as for `aws_errors`.
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
            NotFoundError: the queue does not exist.
        """
        if name not in self._arns:
            self.settings(name, fresh=True)
        return self._arns[name]

    def attributes(self, name: str, *names: str) -> dict[str, str]:
        """Attributes of a queue as SQS has them.

        Raises:
            NotFoundError: the queue does not exist.
        """
        url = self.url(name)
        with self.calling("GetQueueAttributes", name) as client:
            found: dict[str, str] = client.get_queue_attributes(QueueUrl=url, AttributeNames=list(names))["Attributes"]
        return found

    def settings(self, name: str, *, fresh: bool = False) -> QueueSettings:
        """A queue's settings without `held`, which sending and receiving do not need (see the method `held`).

        Args:
            fresh: ask SQS even if it was asked before.

        Raises:
            NotFoundError: the queue does not exist.
        """
        found = None if fresh else self._settings.get(name)
        if found is None:
            attributes = self.attributes(name, "All")
            self._arns[name] = attributes["QueueArn"]
            found = queue_attributes.read(name, attributes, self.name_of_arn)
            self._settings[name] = found
        return found

    def dead_letters_to(self, source: str, queue: str) -> bool:
        """Whether `queue` is the dead-letter or held queue of `source`: a message's attribute can claim anything."""
        try:
            return queue == self.settings(source).dead_letter or queue == self.held(source)
        except errors.OnefoldError:  # the queue does not exist, or must not be read
            return False

    def held(self, name: str, *, fresh: bool = False) -> str | None:
        """The name of a queue's held queue.

        Raises:
            NotFoundError: the queue does not exist. UsageError: sqs:ListQueueTags is not allowed.
        """
        if fresh or name not in self._held:
            url = self.url(name)
            with self.calling("ListQueueTags", name) as client:
                tags = client.list_queue_tags(QueueUrl=url).get("Tags") or {}
            held = tags.get(queue_attributes.HELD_TAG)
            self._held[name] = None if held is None else self.local(held)
        return self._held[name]

    def names(self) -> list[str]:
        """All queues with the prefix, sorted. Queues created less than a second ago may be missing."""
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
        """Note that the queue was changed or dropped: ask SQS again."""
        for kept in (self._urls, self._arns, self._settings, self._held):
            kept.pop(name, None)

    def sources(self, queue: str) -> list[str]:
        """The queues that name `queue` as their dead-letter queue.

        Raises:
            NotFoundError: the queue does not exist.
        """
        url = self.url(queue)
        found: list[str] = []
        ask: dict[str, Any] = {"QueueUrl": url, "MaxResults": 1_000}
        while True:
            try:
                with self.calling("ListDeadLetterSourceQueues", queue) as client:
                    answer = client.list_dead_letter_source_queues(**ask)
            except errors.OnefoldError as error:
                if cause_of(error) not in UNKNOWN_ACTION:
                    raise
                names = self.names()
                return [one for one in names if self.settings(one, fresh=True).dead_letter == queue]
            found += [self.local(self.name_of_url(one)) for one in answer.get("queueUrls", ())]
            if not answer.get("NextToken"):
                return sorted(found)
            ask["NextToken"] = answer["NextToken"]

    # -- creating and changing --------------------------------------------------------------------------------------

    def create(self, settings: QueueSettings, *, advised: bool = True) -> None:
        """Create a queue; if it exists with equal settings, do nothing. SQS allows a name again 60 s after a drop.

        Args:
            advised: also refuse what SQS only advises against (a dead-letter queue with short retention).

        Raises:
            ConflictError: it exists with other settings; names each difference.
            UsageError: SQS does not accept or cannot store a setting, or the call is not allowed.
            NotFoundError: its dead-letter or held queue does not exist.
        """
        queue_attributes.check(settings)
        name = settings.name
        if self.is_there(name):
            refuse_differences(self.current(name), settings)
            return
        check_targets(settings, self._target, advised=advised)
        wanted = queue_attributes.written(settings, self.arn)
        plain = queue_attributes.written(QueueSettings(name=name, fifo=settings.fifo), self.arn)
        attributes = {attribute: value for attribute, value in wanted.items() if value != plain[attribute]}
        if settings.fifo:
            attributes["FifoQueue"] = "true"
        try:
            with self.calling("CreateQueue", name) as client:
                client.create_queue(QueueName=self.prefix + name, Attributes=attributes, tags=self._tags(settings))
        except errors.UsageError as error:
            if cause_of(error) not in _EXISTS:
                raise
            refuse_differences(self.current(name), settings)  # somebody else has just created it
        self.forget(name)

    def _tags(self, settings: QueueSettings) -> dict[str, str]:
        return {} if settings.held is None else {queue_attributes.HELD_TAG: self.on_aws(settings.held)}

    def change(self, settings: QueueSettings, *, advised: bool = True) -> None:
        """Replace an existing queue's settings; SQS applies them within a minute, a retention within 15 minutes.

        Raises:
            UsageError: as for `create`; or the type would change, or another queue's dead letters would no longer fit.
            NotFoundError: the queue does not exist.
        """
        queue_attributes.check(settings)
        name = settings.name
        stored = self.current(name)
        if (settings.dead_letter, settings.held) != (stored.dead_letter, stored.held) or advised:
            check_targets(settings, self._target, advised=advised)
        if advised and settings.retention_ms < stored.retention_ms:
            for source in self.sources(name):
                check_target(self.settings(source), settings)
        had, wanted = self._written(stored), self._written(settings)
        changed = {attribute: value for attribute, value in wanted.items() if had.get(attribute) != value}
        url = self.url(name)
        try:
            if changed:
                with self.calling("SetQueueAttributes", name) as client:
                    client.set_queue_attributes(QueueUrl=url, Attributes=changed)
            if settings.held is None and stored.held is not None:
                with self.calling("UntagQueue", name) as client:
                    client.untag_queue(QueueUrl=url, TagKeys=[queue_attributes.HELD_TAG])
            elif settings.held != stored.held:
                with self.calling("TagQueue", name) as client:
                    client.tag_queue(QueueUrl=url, Tags=self._tags(settings))
        finally:
            self.forget(name)

    def _target(self, name: str) -> QueueSettings:
        return self.settings(name, fresh=True)

    def _written(self, settings: QueueSettings) -> dict[str, str]:
        """Attributes of settings whose other queues may no longer exist; equal names give equal text."""
        return queue_attributes.written(settings, self._arn_of)

    def _arn_of(self, name: str) -> str:
        try:
            return self.arn(name)
        except errors.NotFoundError:
            return f"(dropped) {name}"

    def every(self) -> list[QueueSettings]:
        """All queues with the prefix, by name; two calls for each."""

        def one(name: str) -> QueueSettings | None:
            try:
                return self.current(name)
            except errors.NotFoundError:
                return None  # dropped meanwhile

        names = self.names()
        with ThreadPoolExecutor(_ASKED_AT_ONCE, thread_name_prefix="onefold-settings") as pool:
            return [found for found in pool.map(one, names) if found is not None]

    def current(self, queue: str) -> QueueSettings:
        """One queue's settings as SQS has them now; without `held` if sqs:ListQueueTags is not allowed.

        Raises:
            NotFoundError: the queue does not exist.
        """
        found = self.settings(queue, fresh=True)
        try:
            return structs.replace(found, held=self.held(queue, fresh=True))
        except errors.NotFoundError:
            raise
        except errors.UsageError:
            return found
