# finds: DUP013 warning
import os
import uuid
import boto3

sqs = boto3.client("sqs")


def handler(event, context):
    for record in event["Records"]:
        sqs.send_message(
            QueueUrl=os.environ["NEXT"],
            MessageBody=record["body"],
            MessageGroupId=record["attributes"]["MessageGroupId"],
            MessageDeduplicationId=str(uuid.uuid4()),
        )
