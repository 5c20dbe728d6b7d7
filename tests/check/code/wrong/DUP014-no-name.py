# finds: DUP014 error
import json
import os
import boto3

states = boto3.client("stepfunctions")


def handler(event, context):
    for record in event["Records"]:
        document = json.loads(record["body"])
        states.start_execution(stateMachineArn=os.environ["MACHINE"], input=json.dumps(document))
