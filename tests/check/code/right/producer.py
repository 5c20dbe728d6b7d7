# finds: nothing
"""A producer: each call is a new piece of work, so a random id is right; a group for each customer."""
import json
import os
import uuid
import boto3

sqs = boto3.client("sqs")


def place_order(event, context):
    order = json.loads(event["body"])
    order["id"] = str(uuid.uuid4())
    sqs.send_message(
        QueueUrl=os.environ["ORDERS"],
        MessageBody=json.dumps(order),
        MessageGroupId=order["customer"],
        MessageDeduplicationId=order["id"],
        DelaySeconds=900,
    )
    return {"statusCode": 202, "body": order["id"]}
