# finds: LOS015 error
import boto3
import sqs_extended_client

sqs = boto3.client("sqs")
sqs.large_payload_support = "bodies"
sqs.message_size_threshold = 2 * 1024 * 1024


def send(url, body):
    sqs.send_message(QueueUrl=url, MessageBody=body)
