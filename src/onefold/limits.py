"""Numbers that AWS defines: limits of Amazon SQS, which the embedded queue has too, and defaults of Lambda.

Each has its unit and source. Never here: anything but constants, numbers that the user chooses. Sources name the page
of the AWS documentation or the member of the API model (as in botocore) that states the number.
Private: may change with any release.
"""

from __future__ import annotations

from typing import Final

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS

VISIBILITY_MS_DEFAULT: Final = 30 * SECOND_MS  # SQS CreateQueue, VisibilityTimeout: default 30 s
VISIBILITY_MS_MAX: Final = 12 * HOUR_MS  # same: 0 to 43,200 s; also the limit counted from the receive
RETENTION_MS_DEFAULT: Final = 4 * DAY_MS  # SQS CreateQueue, MessageRetentionPeriod: default 345,600 s
RETENTION_MS_MIN: Final = 60 * SECOND_MS  # same: 60 s
RETENTION_MS_MAX: Final = 14 * DAY_MS  # same: 1,209,600 s
DELAY_MS_MAX: Final = 15 * MINUTE_MS  # SQS CreateQueue, DelaySeconds: 0 to 900 s
MESSAGE_BYTES_MIN: Final = 1_024  # SQS CreateQueue, MaximumMessageSize: lower bound
MESSAGE_BYTES_MAX: Final = 1_048_576  # same: upper bound and default since 2025-08 (1 MiB)
BATCH_ENTRIES_MAX: Final = 10  # SQS SendMessageBatch, DeleteMessageBatch, ChangeMessageVisibilityBatch
IN_FLIGHT_MAX: Final = 120_000  # SQS developer guide, visibility timeout: about 120,000 per queue, standard and FIFO
DEDUP_WINDOW_MS: Final = 5 * MINUTE_MS  # SQS developer guide, FIFO exactly-once processing: fixed at 5 minutes
ATTRIBUTES_MAX: Final = 10  # SQS developer guide, message quotas: user attributes per message
ATTRIBUTE_NAME_CHARS_MAX: Final = 256  # SQS API, MessageAttributeValue
ID_CHARS_MAX: Final = 128  # SQS SendMessage: MessageGroupId, MessageDeduplicationId
QUEUE_NAME_CHARS_MAX: Final = 80  # SQS CreateQueue, QueueName, including the suffix `.fifo`
RECEIVES_MAX: Final = 1_000  # SQS developer guide, configure a dead-letter queue: maxReceiveCount 1 to 1,000
MOVE_PER_SECOND_MAX: Final = 500  # SQS StartMessageMoveTask, MaxNumberOfMessagesPerSecond

FUNCTION_TIMEOUT_MS_DEFAULT: Final = 3 * SECOND_MS  # Lambda developer guide, "Configure Lambda function timeout"
FUNCTION_MEMORY_MIB_DEFAULT: Final = 128  # Lambda developer guide, "Configure Lambda function memory": 128 to 10,240 MB
BATCH_SIZE_DEFAULT: Final = 10  # Lambda API, CreateEventSourceMapping: of an SQS event source mapping
