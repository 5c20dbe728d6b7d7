# finds: DUP010 warning preview
"""Looked for, done, written: two deliveries at once both find nothing."""
import json
import boto3

table = boto3.resource("dynamodb").Table("processed")


def ship(order):
    raise NotImplementedError  # stands for an effect that is written elsewhere and can fail


def handler(event, context):
    for record in event["Records"]:
        order = json.loads(record["body"])
        found = table.get_item(Key={"pk": order["id"]})
        if "Item" in found:
            continue
        ship(order)
        table.put_item(Item={"pk": order["id"]})
