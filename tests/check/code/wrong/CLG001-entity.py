# finds: CLG001 info preview
import json
import boto3

GROUP = "orders"
queue = boto3.resource("sqs").get_queue_by_name(QueueName="orders.fifo")


def publish(order):
    queue.send_message(MessageBody=json.dumps(order), MessageGroupId=GROUP, MessageDeduplicationId=order["id"])
