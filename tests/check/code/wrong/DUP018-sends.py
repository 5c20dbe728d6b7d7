# finds: DUP018 warning preview
import boto3
from botocore.config import Config

sqs = boto3.client("sqs", config=Config(read_timeout=0.5, connect_timeout=1))


def send(url, body):
    sqs.send_message(QueueUrl=url, MessageBody=body)
