# finds: DUP010 warning
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, idempotent_function
import json

store = DynamoDBPersistenceLayer(table_name="idempotency")


@idempotent_function(data_keyword_argument="order", persistence_store=store)
def ship(order: dict):
    print(order)


def handler(event, context):
    for record in event["Records"]:
        ship(order=json.loads(record["body"]))
