import os

import boto3

functions = boto3.client("lambda")


def handler(event, context):
    for record in event["Records"]:
        functions.invoke(FunctionName=os.environ["REPORT"], Payload=record["body"])
