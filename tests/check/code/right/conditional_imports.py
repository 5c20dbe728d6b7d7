# finds: nothing
"""Names that are bound in several ways are not guessed."""
try:
    import ujson as json
except ImportError:
    import json
import os
import boto3

if os.environ.get("LOCAL"):
    sqs = boto3.client("sqs", endpoint_url="http://127.0.0.1:9324")
    def dedup(order): return order["id"]
else:
    sqs = boto3.client("sqs")
    import uuid
    def dedup(order): return str(uuid.uuid4())


def handler(event, context):
    global sqs
    for record in event["Records"]:
        order = json.loads(record["body"])
        sqs.send_message(QueueUrl=os.environ["NEXT"], MessageBody=record["body"], MessageGroupId=order["id"],
                         MessageDeduplicationId=dedup(order))
