import os

import boto3
import sqs_extended_client


def client():
    made = boto3.client("sqs")
    made.large_payload_support = "bodies"
    made.message_size_threshold = 1048576
    return made


sqs = client()


def handler(event, context):
    for record in event["Records"]:
        sqs.send_message(QueueUrl=os.environ["NEXT"], MessageBody=record["body"])
