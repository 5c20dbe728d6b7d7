# finds: nothing
"""`messageId` is a field of the payload here: a chat, and an API Gateway event."""
import json

from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig, idempotent
from aws_lambda_powertools.utilities.idempotency import idempotent_function

store = DynamoDBPersistenceLayer(table_name="idempotency")
api = IdempotencyConfig(event_key_jmespath="messageId")
chat = IdempotencyConfig(event_key_jmespath="messageId")


@idempotent(persistence_store=store, config=api)
def post_message(event, context):
    return {"statusCode": 200, "body": json.dumps(event["text"])}


@idempotent_function(data_keyword_argument="message", config=chat, persistence_store=store)
def deliver(message):
    return message["text"]


def handler(event, context):
    chat.register_lambda_context(context)
    for record in event["Records"]:
        deliver(message=json.loads(record["body"]))
