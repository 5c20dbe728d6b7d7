# finds: CLG001 info preview
import boto3

sqs = boto3.client("sqs")


def send(url, body, identity):
    sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId="default", MessageDeduplicationId=identity)
