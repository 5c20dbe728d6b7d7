import json
import os

import boto3

queue = boto3.resource("sqs").get_queue_by_name(QueueName=os.environ.get("QUEUE"))


def send(page):
    queue.send_messages(Entries=[{"Id": "1", "MessageBody": json.dumps(page)}])
