# finds: nothing
"""Deleted in a finally, after what failed was kept elsewhere."""
import boto3

queue = boto3.resource("sqs").Queue("https://sqs.eu-west-1.amazonaws.com/123456789012/jobs")
failed = boto3.resource("sqs").Queue("https://sqs.eu-west-1.amazonaws.com/123456789012/failed")


def run(body):
    raise NotImplementedError  # stands for an effect that is written elsewhere and can fail


def main():
    for message in queue.receive_messages(WaitTimeSeconds=20):
        try:
            run(message.body)
        except Exception as error:
            failed.send_message(MessageBody=message.body, MessageAttributes={"why": {"DataType": "String", "StringValue": str(error)}})
        finally:
            message.delete()
