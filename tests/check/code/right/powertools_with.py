# finds: nothing
"""The processor as a context manager, the form of version 1."""
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, batch_processor

processor = BatchProcessor(event_type=EventType.SQS)


def work(record):
    print(record.body)


@batch_processor(record_handler=work, processor=processor)
def handler(event, context):
    return processor.response()


def other(event, context):
    batch = event["Records"]
    with processor(records=batch, handler=work):
        for status, cause, record in processor.process():
            print(status, cause)
    return processor.response()
