import os

import boto3
from botocore.client import Config

slow = Config(read_timeout=310, retries={"max_attempts": 0})
functions = boto3.client("lambda", config=slow)
unknown = boto3.client("lambda", config=Config(**{"read_timeout": 1}))


def handler(event, context):
    for record in event["Records"]:
        functions.invoke(FunctionName=os.environ["REPORT"], Payload=record["body"])
        unknown.invoke(FunctionName=os.environ["REPORT"], Payload=record["body"])
        unknown.invoke(FunctionName=os.environ["REPORT"], **{"InvocationType": "Event"})
