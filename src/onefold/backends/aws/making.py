"""Queues on SQS made and changed: their settings written, read back, compared.

What SQS holds of a queue is attributes and a tag (`queue_attributes.py`). A queue that exists is never changed by making it
again.
Never here: messages, looking, dropping. Invariant: what is refused before the first write has changed nothing. Where a later
call of a change is refused, its earlier ones are made; what was remembered of the queue is forgotten.

Sources: SQS API reference, the operation in each method.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from msgspec import structs

from onefold import errors
from onefold.backends.aws import queue_attributes
from onefold.backends.aws.batches import cause_of
from onefold.backends.aws.catalogue import Catalogue
from onefold.contracts.settings import QueueSettings, check_target, check_targets, refuse_differences

_ASKED_AT_ONCE: Final = 8  # threads for the settings of many queues
_EXISTS: Final = frozenset({"QueueAlreadyExists", "QueueNameExists"})


class Maker:
    """Makes and changes the queues of a catalogue. Safe to call from any thread.

    Args:
        sources: the queues whose dead letters go to a queue.
        forget: is told which queue was made or changed.
    """

    def __init__(
        self, catalogue: Catalogue, *, sources: Callable[[str], list[str]], forget: Callable[[str], None]
    ) -> None:
        self._catalogue = catalogue
        self._sources = sources
        self._forget = forget

    def create(self, settings: QueueSettings, *, advised: bool = True) -> None:
        """Create a queue; again with equal settings does nothing. SQS lets a name be used again 60 s after a drop.

        Args:
            advised: refuse too what SQS only advises against (a dead-letter queue with short retention).

        Raises:
            ConflictError: it exists with other settings; names each difference.
            UsageError: a setting SQS does not take or has no place for; not allowed.
            NotFoundError: its dead-letter or held queue does not exist.
        """
        queue_attributes.check(settings)
        name = settings.name
        if self._catalogue.is_there(name):
            refuse_differences(self.setting(name), settings)
            return
        check_targets(settings, self._target, advised=advised)
        wanted = queue_attributes.written(settings, self._catalogue.arn)
        plain = queue_attributes.written(QueueSettings(name=name, fifo=settings.fifo), self._catalogue.arn)
        attributes = {attribute: value for attribute, value in wanted.items() if value != plain[attribute]}
        if settings.fifo:
            attributes["FifoQueue"] = "true"
        try:
            with self._catalogue.calling("CreateQueue", name) as client:
                client.create_queue(
                    QueueName=self._catalogue.prefix + name, Attributes=attributes, tags=self._tags(settings)
                )
        except errors.UsageError as error:
            if cause_of(error) not in _EXISTS:
                raise
            refuse_differences(self.setting(name), settings)  # somebody else made it just now
        self._forget(name)

    def _tags(self, settings: QueueSettings) -> dict[str, str]:
        return {} if settings.held is None else {queue_attributes.HELD_TAG: self._catalogue.on_aws(settings.held)}

    def change(self, settings: QueueSettings, *, advised: bool = True) -> None:
        """Replace an existing queue's settings; SQS takes up to a minute, for retention up to 15.

        Raises:
            UsageError: as for `create`; another type; a source's dead letters would not fit any more.
            NotFoundError: no such queue.
        """
        queue_attributes.check(settings)
        name = settings.name
        stored = self.setting(name)
        if (settings.dead_letter, settings.held) != (stored.dead_letter, stored.held) or advised:
            check_targets(settings, self._target, advised=advised)
        if advised and settings.retention_ms < stored.retention_ms:
            for source in self._sources(name):
                check_target(self._catalogue.settings(source), settings)
        had, wanted = self._written(stored), self._written(settings)
        changed = {attribute: value for attribute, value in wanted.items() if had.get(attribute) != value}
        url = self._catalogue.url(name)
        try:
            if changed:
                with self._catalogue.calling("SetQueueAttributes", name) as client:
                    client.set_queue_attributes(QueueUrl=url, Attributes=changed)
            if settings.held is None and stored.held is not None:
                with self._catalogue.calling("UntagQueue", name) as client:
                    client.untag_queue(QueueUrl=url, TagKeys=[queue_attributes.HELD_TAG])
            elif settings.held != stored.held:
                with self._catalogue.calling("TagQueue", name) as client:
                    client.tag_queue(QueueUrl=url, Tags=self._tags(settings))
        finally:
            self._forget(name)

    def _target(self, name: str) -> QueueSettings:
        return self._catalogue.settings(name, fresh=True)

    def _written(self, settings: QueueSettings) -> dict[str, str]:
        """Attributes of settings whose other queues need not exist any more; equal names give equal text."""
        return queue_attributes.written(settings, self._arn_of)

    def _arn_of(self, name: str) -> str:
        try:
            return self._catalogue.arn(name)
        except errors.NotFoundError:
            return f"(dropped) {name}"

    def settings(self) -> list[QueueSettings]:
        """All queues with the prefix, by name; two calls for each."""

        def one(name: str) -> QueueSettings | None:
            try:
                return self.setting(name)
            except errors.NotFoundError:
                return None  # dropped meanwhile

        names = self._catalogue.names()
        with ThreadPoolExecutor(_ASKED_AT_ONCE, thread_name_prefix="onefold-settings") as pool:
            return [found for found in pool.map(one, names) if found is not None]

    def setting(self, queue: str) -> QueueSettings:
        """One queue, as SQS has it now; without `held` where sqs:ListQueueTags is not allowed.

        Raises:
            NotFoundError: no such queue.
        """
        found = self._catalogue.settings(queue, fresh=True)
        try:
            return structs.replace(found, held=self._catalogue.held(queue, fresh=True))
        except errors.NotFoundError:
            raise
        except errors.UsageError:
            return found
