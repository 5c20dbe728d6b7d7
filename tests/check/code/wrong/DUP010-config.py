# finds: DUP010 warning
"""A configuration, and no context in it."""
from aws_lambda_powertools.utilities import idempotency
from aws_lambda_powertools.utilities.batch import SqsFifoPartialProcessor, process_partial_response

config = idempotency.IdempotencyConfig(event_key_jmespath="powertools_json(body).id", expires_after_seconds=2_764_800)
processor = SqsFifoPartialProcessor()


@idempotency.idempotent_function(
    data_keyword_argument="record",
    persistence_store=idempotency.DynamoDBPersistenceLayer(table_name="idempotency"),
    config=config,
)
def record_handler(record):
    print(record["body"])


def lambda_handler(event, context):
    return process_partial_response(event=event, record_handler=record_handler, processor=processor, context=context)
