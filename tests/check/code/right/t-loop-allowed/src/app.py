import os

import boto3

sqs = boto3.client("sqs")


def handler(event, context):
    for record in event["Records"]:
        if "not yet" in record["body"]:
            sqs.send_message(QueueUrl=os.environ["QUEUE_URL"], MessageBody=record["body"], DelaySeconds=60)
