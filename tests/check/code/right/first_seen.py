# finds: nothing
"""A record of what was seen, written at the end; a get that reads, and an upsert."""
import json
import boto3

table = boto3.resource("dynamodb").Table("devices")


def greet(device):
    raise NotImplementedError  # stands for an effect that is written elsewhere and can fail


def handler(event, context):
    for record in event["Records"]:
        device = json.loads(record["body"])
        known = table.get_item(Key={"pk": device["id"]})
        if "Item" not in known:
            greet(device)
        table.put_item(Item={"pk": device["id"], "seen": device["at"]})
