# finds: nothing
"""A long visibility, extended while the work runs."""
import threading
import boto3

sqs = boto3.client("sqs")


def extend(url, handle, stop):
    while not stop.wait(30):
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=7200)


def work(url, run):
    answer = sqs.receive_message(QueueUrl=url, VisibilityTimeout=7200, WaitTimeSeconds=20)
    for message in answer.get("Messages", []):
        stop = threading.Event()
        threading.Thread(target=extend, args=(url, message["ReceiptHandle"], stop)).start()
        run(message["Body"])
        stop.set()
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
