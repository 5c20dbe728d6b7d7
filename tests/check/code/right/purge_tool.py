# finds: nothing
"""A tool that deletes and writes down what it deleted."""
import boto3
from company.audit import log_deleted, count_metric

sqs = boto3.client("sqs")


def purge(url):
    while True:
        messages = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages")
        if not messages:
            return
        for message in messages:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            log_deleted(message)
            count_metric("deleted", message)
