"""Bodies that are too large for a queue: in S3, with a pointer in the message.

    put, before the message is sent      a crash in between leaves an object that no message names
    get, when the message is received    if the object is gone, the message is delivered with its pointer as the body
    delete, after the message is deleted a crash in between leaves an object that no message names

So an object can outlive its message, never the other way round; a lifecycle rule of the bucket removes what is left
over (after more than the queue's and the dead-letter queue's retention together: 28 days at most).

Anyone who may send to the queue can write a pointer. So an object is read only if it is in the configured bucket and
prefix and its name has the form that `put` gives it, which cannot be guessed. And an object is deleted only if it was
put for the message's own queue, or for a queue that uses this queue as its dead-letter or held queue
(`QueueCatalogue.dead_letters_to`); objects of messages that were moved elsewhere are left to the lifecycle rule.

Never here: messages, queues. Invariant: no other object is read or deleted.

Sources: S3 API reference, PutObject, GetObject, DeleteObjects (up to 1,000 keys in one call).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from onefold import errors
from onefold.engines.aws.session import Session, aws_errors

if TYPE_CHECKING:
    from onefold.outside import Entropy

_NAME: Final = r"([A-Za-z0-9_-]{1,80}(?:\.fifo)?)/[0-9a-f]{32}"  # an object's name after the prefix
DELETED_AT_ONCE: Final = 1_000  # S3 API, DeleteObjects


class Payloads:
    """Bodies in one bucket.

    Args:
        session: gives the clients.
        bucket: its name.
        prefix: prefix of every object's key, without slashes around it; can be empty.
        entropy: makes the objects' names; two messages never share an object.
    """

    def __init__(self, session: Session, bucket: str, prefix: str = "", *, entropy: Entropy) -> None:
        self._session = session
        self.bucket = bucket
        self.prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._entropy = entropy

    def put(self, queue: str, body: str) -> str:
        """Store a body; returns its object's key.

        Raises:
            NotFoundError: the bucket does not exist. UsageError: not allowed. TransientError: S3 did not answer.
        """
        key = f"{self.prefix}{queue}/{self._entropy.token()}{self._entropy.token()}"
        with aws_errors("s3:PutObject", f"bucket {self.bucket}"):
            self._session.client("s3").put_object(Bucket=self.bucket, Key=key, Body=body.encode())
        return key

    def is_ours(self, bucket: str, key: str) -> bool:
        """Whether a pointer names an object that `put` may have made."""
        return bucket == self.bucket and self.queue_of(key) is not None

    def queue_of(self, key: str) -> str | None:
        """The queue for which an object was put; None if `put` cannot have made an object with that name."""
        found = re.fullmatch(_NAME, key[len(self.prefix) :]) if key.startswith(self.prefix) else None
        return None if found is None else found[1]

    def get(self, key: str) -> str | None:
        """A body; None if the object is gone or is not text.

        Raises:
            UsageError: not allowed, or the bucket is gone. TransientError: S3 did not answer.
        """
        client = self._session.client("s3")
        try:
            with aws_errors("s3:GetObject", f"bucket {self.bucket}"):
                try:
                    return bytes(client.get_object(Bucket=self.bucket, Key=key)["Body"].read()).decode()
                except client.exceptions.NoSuchKey:
                    return None
        except UnicodeDecodeError:
            return None

    def delete_of(self, queue: str, keys: Sequence[str], dead_letters_to: Callable[[str, str], bool]) -> None:
        """Delete the objects of a queue's messages, if they were stored for that queue.

        Args:
            dead_letters_to: returns whether the second queue is the dead-letter or held queue of the first.

        Raises:
            as `delete`.
        """
        owners = {key: self.queue_of(key) for key in keys}
        mine = [
            key
            for key, owner in owners.items()
            if owner is not None and (owner == queue or dead_letters_to(owner, queue))
        ]
        if mine:
            self.delete(mine)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; a missing one is not an error.

        Raises:
            UsageError: not allowed. TransientError: S3 did not answer, or kept some of them.
        """
        client = self._session.client("s3")
        kept: list[str] = []
        for start in range(0, len(keys), DELETED_AT_ONCE):
            objects = [{"Key": key} for key in keys[start : start + DELETED_AT_ONCE]]
            with aws_errors("s3:DeleteObject", f"bucket {self.bucket}"):
                answer = client.delete_objects(Bucket=self.bucket, Delete={"Objects": objects, "Quiet": True})
            kept += [one.get("Code", "") for one in answer.get("Errors", ())]
        if "AccessDenied" in kept:
            raise errors.UsageError(
                f"AWS does not allow s3:DeleteObject in bucket {self.bucket}.",
                meaning="The messages were deleted, their payloads were not.",
                todo=f"Add the action s3:DeleteObject on {self.bucket}/{self.prefix}* to the role's policy.",
            )
        if kept:
            raise errors.TransientError(
                f"S3 kept {len(kept)} of {len(keys)} payloads in bucket {self.bucket} ({kept[0]}).",
                meaning="Their messages are deleted; nothing reads these objects any more.",
                todo="A lifecycle rule of the bucket removes them.",
            )
