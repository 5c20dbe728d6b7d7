# finds: nothing
"""A claim with an end that a retry checks."""
import json
import time
import boto3

client = boto3.client("dynamodb")


def claim(key):
    now = int(time.time())
    try:
        client.put_item(
            TableName="locks",
            Item={"pk": {"S": key}, "expires_at": {"N": str(now + 60)}},
            ConditionExpression="attribute_not_exists(pk) OR expires_at < :now",
            ExpressionAttributeValues={":now": {"N": str(now)}},
        )
        return True
    except client.exceptions.ConditionalCheckFailedException:
        return False


def work(order):
    raise NotImplementedError  # stands for an effect that is written elsewhere and can fail


def handler(event, context):
    for record in event["Records"]:
        order = json.loads(record["body"])
        if not claim(order["id"]):
            raise RuntimeError("in progress elsewhere")
        work(order)
