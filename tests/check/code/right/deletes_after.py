# finds: nothing
"""A worker that deletes a message after its work."""
import boto3

sqs = boto3.client("sqs")
URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/jobs"


def run(body):
    print(body)


def main():
    while True:
        answer = sqs.receive_message(QueueUrl=URL, WaitTimeSeconds=20, MaxNumberOfMessages=10)
        for message in answer.get("Messages", []):
            run(message["Body"])
            sqs.delete_message(QueueUrl=URL, ReceiptHandle=message["ReceiptHandle"])
