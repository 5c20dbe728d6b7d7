import os

import boto3
from botocore.config import Config

functions = boto3.client("lambda", config=Config(read_timeout=120, retries={"max_attempts": 2, "mode": "standard"}))
patient = boto3.client("lambda", config=Config(read_timeout=120, retries={"total_max_attempts": 1}))


def handler(event, context):
    for record in event["Records"]:
        functions.invoke(FunctionName=os.environ["REPORT"], InvocationType="RequestResponse", Payload=record["body"])
        patient.invoke(FunctionName=os.environ["REPORT"], Payload=record["body"])
        functions.invoke(FunctionName=os.environ["REPORT"], InvocationType="Event", Payload=record["body"])
