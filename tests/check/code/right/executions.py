# finds: nothing
"""An execution named by what the message is about."""
import json
import os
import boto3

states = boto3.client("stepfunctions")


def lambda_handler(event, context):
    for record in event["Records"]:
        order = json.loads(record["body"])
        try:
            states.start_execution(
                stateMachineArn=os.environ["MACHINE"], name=f"order-{order['id']}", input=record["body"]
            )
        except states.exceptions.ExecutionAlreadyExists:
            pass
