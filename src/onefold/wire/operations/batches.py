"""What the three batch operations share: rules that refuse a batch as a whole.

Never here: entries' contents. Invariant: asked before anything of a batch is done.

Source: SQS API reference, SendMessageBatch, DeleteMessageBatch, ChangeMessageVisibilityBatch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from onefold import limits
from onefold.wire import errors

_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")


def check_entries(entries: Sequence[Any]) -> None:
    """Refuse a batch of more than 10 entries, with a bad id, or with one id twice.

    Raises:
        AwsError: TooManyEntriesInBatchRequest, InvalidBatchEntryId, BatchEntryIdsNotDistinct.
    """
    if len(entries) > limits.BATCH_ENTRIES_MAX:
        raise errors.too_many_entries(len(entries))
    seen: set[str] = set()
    for entry in entries:
        entry_id: str = entry.Id
        if entry_id in seen:
            raise errors.batch_entry_ids_not_distinct(entry_id)
        if not _ID.fullmatch(entry_id):
            raise errors.invalid_batch_entry_id()
        seen.add(entry_id)
