# finds: CLG004 warning
import boto3

sqs = boto3.client("sqs")
HOURS = 60 * 60


def work(url, run):
    for message in sqs.receive_message(QueueUrl=url, VisibilityTimeout=6 * HOURS).get("Messages", []):
        run(message["Body"])
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
