import datetime
import json
import os

import boto3

sqs = boto3.client("sqs")


def handler(event, context):
    for record in event["Records"]:
        order = json.loads(record["body"])
        now = datetime.datetime.now(tz=datetime.UTC).isoformat()
        body = json.dumps({"order": order["id"], "total": order["total"]})
        sqs.send_message(QueueUrl=os.environ["NEXT"], MessageBody=body, MessageGroupId=order["customer"])
