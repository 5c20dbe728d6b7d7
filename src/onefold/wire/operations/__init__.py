"""All operations of SQS, by name: `await OPERATIONS[name](desk, ask, caller)`.

An operation takes the desk, the ask as the model's struct, and the caller; it answers a plain dict in the model's names, or
None where a success says nothing. It raises `AwsError`, or an error of onefold that the wire translates.
Never here: protocols. Invariant: exactly the operations of botocore's model.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from onefold.wire.desk import Caller, Desk
from onefold.wire.operations import labels, moves, queues, receiving, sending

Operation = Callable[[Desk, Any, Caller], Awaitable[dict[str, Any] | None]]

OPERATIONS: Final[Mapping[str, Operation]] = {
    "AddPermission": labels.add_permission,
    "CancelMessageMoveTask": moves.cancel_message_move_task,
    "ChangeMessageVisibility": receiving.change_message_visibility,
    "ChangeMessageVisibilityBatch": receiving.change_message_visibility_batch,
    "CreateQueue": queues.create_queue,
    "DeleteMessage": receiving.delete_message,
    "DeleteMessageBatch": receiving.delete_message_batch,
    "DeleteQueue": queues.delete_queue,
    "GetQueueAttributes": queues.get_queue_attributes,
    "GetQueueUrl": queues.get_queue_url,
    "ListDeadLetterSourceQueues": queues.list_dead_letter_source_queues,
    "ListMessageMoveTasks": moves.list_message_move_tasks,
    "ListQueueTags": labels.list_queue_tags,
    "ListQueues": queues.list_queues,
    "PurgeQueue": queues.purge_queue,
    "ReceiveMessage": receiving.receive_message,
    "RemovePermission": labels.remove_permission,
    "SendMessage": sending.send_message,
    "SendMessageBatch": sending.send_message_batch,
    "SetQueueAttributes": queues.set_queue_attributes,
    "StartMessageMoveTask": moves.start_message_move_task,
    "TagQueue": labels.tag_queue,
    "UntagQueue": labels.untag_queue,
}
