# finds: nothing
"""What fails is kept in a queue of its own."""
import json
import logging
import os
import boto3

logger = logging.getLogger()
sqs = boto3.client("sqs")


def ship(order):
    raise NotImplementedError  # stands for an effect that is written elsewhere and can fail


def handler(event, context):
    for record in event["Records"]:
        try:
            ship(json.loads(record["body"]))
        except Exception as error:
            logger.error("failed: %s", error)
            sqs.send_message(QueueUrl=os.environ["FAILED"], MessageBody=record["body"])
