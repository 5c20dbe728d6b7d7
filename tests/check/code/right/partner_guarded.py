# finds: nothing
"""A random key for the partner, inside of a record of one's own; and a token that AWS asks for in a script."""
import json
import uuid

import boto3
import stripe
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig, idempotent_function

config = IdempotencyConfig(event_key_jmespath="id", expires_after_seconds=30 * 86400)
store = DynamoDBPersistenceLayer(table_name="t")


@idempotent_function(data_keyword_argument="order", config=config, persistence_store=store)
def charge(order):
    stripe.Charge.create(amount=order["amount"], idempotency_key=str(uuid.uuid4()))


def handler(event, context):
    config.register_lambda_context(context)
    for record in event["Records"]:
        charge(order=json.loads(record["body"]))


def script():
    boto3.client("secretsmanager").rotate_secret(SecretId="x", ClientRequestToken=str(uuid.uuid4()))
