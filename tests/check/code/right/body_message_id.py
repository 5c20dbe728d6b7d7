# finds: nothing
"""The body has a messageId of its own, which the producer made once."""
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig, idempotent_function

config = IdempotencyConfig(event_key_jmespath="powertools_json(body).messageId", expires_after_seconds=32 * 24 * 3600)
processor = BatchProcessor(event_type=EventType.SQS)
store = DynamoDBPersistenceLayer(table_name="t")


@idempotent_function(data_keyword_argument="record", config=config, persistence_store=store)
def one(record):
    print(record["body"])


def handler(event, context):
    config.register_lambda_context(context)
    return process_partial_response(event=event, record_handler=one, processor=processor, context=context)
