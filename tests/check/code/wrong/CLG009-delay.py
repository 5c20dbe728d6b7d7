# finds: CLG009 error
import boto3

sqs = boto3.client("sqs")
ONE_HOUR = 3600


def later(url, body):
    sqs.send_message(QueueUrl=url, MessageBody=body, DelaySeconds=ONE_HOUR)
