# finds: nothing
from aws_lambda_powertools.utilities.batch import (
    AsyncBatchProcessor,
    EventType,
    SqsFifoPartialProcessor,
    async_process_partial_response,
    process_partial_response,
)
from aws_lambda_powertools.utilities.parser.models import SqsRecordModel

fifo = SqsFifoPartialProcessor(skip_group_on_error=True)
parsed = AsyncBatchProcessor(event_type=EventType.SQS, model=SqsRecordModel)


def one(record):
    raise ValueError(record["body"])


async def other(record: SqsRecordModel):
    print(record.messageId, record.body)


def fifo_handler(event, context):
    return process_partial_response(event, one, fifo, context)


def async_handler(event, context):
    return async_process_partial_response(event=event, record_handler=other, processor=parsed, context=context)
