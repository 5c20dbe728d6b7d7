# finds: nothing
"""A tool that empties a queue into a list; and a poison message that is dropped in a branch."""
import boto3

sqs = boto3.client("sqs")


def drain(url):
    found = []
    while messages := sqs.receive_message(QueueUrl=url).get("Messages"):
        for message in messages:
            found.append(message["Body"])
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return found


def work(url, run):
    for message in sqs.receive_message(QueueUrl=url, AttributeNames=["ApproximateReceiveCount"]).get("Messages", []):
        if int(message["Attributes"]["ApproximateReceiveCount"]) > 5:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            continue
        run(message["Body"])
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
