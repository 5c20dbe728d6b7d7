# finds: DUP009 error
"""The same, with the claim in a function, and failures reported."""
import json
import os
import boto3

dynamodb = boto3.client("dynamodb")


def claim(order_id: str) -> bool:
    """True when nobody had it."""
    try:
        dynamodb.put_item(
            TableName=os.environ["TABLE"],
            Item={"pk": {"S": order_id}},
            ConditionExpression="attribute_not_exists(pk)",
        )
    except dynamodb.exceptions.ConditionalCheckFailedException:
        return False
    return True


def charge(order):
    raise NotImplementedError  # stands for an effect that is written elsewhere and can fail


def process(record):
    order = json.loads(record["body"])
    if not claim(order["id"]):
        print("duplicate")
        return
    charge(order)


def handler(event, context):
    failures = []
    for record in event["Records"]:
        try:
            process(record)
        except Exception:
            failures.append({"itemIdentifier": record["messageId"]})
    return {"batchItemFailures": failures}
