# finds: DUP007 error, DUP007 error
"""The whole event, and a whole record: receipt handle and receive count are in the key."""
import json

import aws_lambda_powertools.utilities.idempotency as idem
from aws_lambda_powertools.utilities.data_classes import SQSEvent, event_source
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

store = idem.DynamoDBPersistenceLayer(table_name="idempotency")
config = idem.IdempotencyConfig(expires_after_seconds=86400)


@event_source(data_class=SQSEvent)
@idem.idempotent(persistence_store=store)
def handler(event: SQSEvent, context):
    for record in event.records:
        print(json.loads(record.body))


@idem.idempotent_function(data_keyword_argument="message", persistence_store=store, config=config)
def one(message: SQSRecord):
    print(message.body)


def other(event, context):
    config.register_lambda_context(context)
    for record in SQSEvent(event).records:
        one(message=record)
        print(record.json_body)
