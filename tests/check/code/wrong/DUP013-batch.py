# finds: DUP013 warning
import uuid
import boto3

sqs = boto3.client("sqs")


def handler(event, context):
    entries = []
    for record in event["Records"]:
        sqs.send_message_batch(
            QueueUrl="https://sqs.eu-west-1.amazonaws.com/123456789012/next.fifo",
            Entries=[
                {
                    "Id": "1",
                    "MessageBody": record["body"],
                    "MessageGroupId": record["attributes"]["MessageGroupId"],
                    "MessageDeduplicationId": uuid.uuid4().hex,
                }
            ],
        )
