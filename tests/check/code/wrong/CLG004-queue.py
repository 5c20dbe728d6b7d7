# finds: CLG004 warning
import boto3

queue = boto3.resource("sqs").Queue("https://sqs.eu-west-1.amazonaws.com/123456789012/videos")


def work(run):
    for message in queue.receive_messages(VisibilityTimeout=43200, MaxNumberOfMessages=1):
        run(message.body)
        message.delete()
