# finds: LOS016 warning
import json
import boto3

sqs = boto3.client("sqs")
URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/jobs"


def run(job):
    raise NotImplementedError  # stands for an effect that is written elsewhere and can fail


while True:
    messages = sqs.receive_message(QueueUrl=URL, WaitTimeSeconds=20)
    for message in messages.get("Messages", []):
        job = json.loads(message["Body"])
        sqs.delete_message(QueueUrl=URL, ReceiptHandle=message["ReceiptHandle"])
        run(job)
