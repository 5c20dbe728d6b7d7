# finds: LOS016 error, LOS016 error
"""Deleted in a finally: through the client, and through a message of the resource."""
import logging
import boto3

sqs = boto3.client("sqs")
log = logging.getLogger()


def run(body):
    raise NotImplementedError  # stands for an effect that is written elsewhere and can fail


def work(url):
    for message in sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20).get("Messages", []):
        try:
            run(message["Body"])
        finally:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


class Worker:
    def __init__(self, name):
        self.queue = boto3.resource("sqs").get_queue_by_name(QueueName=name)

    def poll(self):
        for message in self.queue.receive_messages(MaxNumberOfMessages=10):
            try:
                run(message.body)
            except Exception:
                log.exception("failed")
            finally:
                message.delete()
