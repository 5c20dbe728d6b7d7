# finds: DUP013 warning
"""The time in it, made in another function of a class."""
import json
import time
import boto3


class Forwarder:
    def __init__(self):
        self.queue = boto3.resource("sqs").get_queue_by_name(QueueName="next.fifo")

    def forward(self, body):
        self.queue.send_message(
            MessageBody=json.dumps(body), MessageGroupId=body["customer"], MessageDeduplicationId=f"{body['id']}-{time.time_ns()}"
        )


forwarder = Forwarder()


def lambda_handler(event, _context):
    for record in event["Records"]:
        forwarder.forward(json.loads(record["body"]))
