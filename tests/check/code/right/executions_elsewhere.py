# finds: nothing
"""Executions without a name that no queue is in front of: a schedule, an API, a script."""
import json
import boto3

states = boto3.client("stepfunctions")


def nightly(event, context):
    states.start_execution(stateMachineArn="arn:aws:states:eu-west-1:123456789012:stateMachine:n", input=json.dumps(event))


def on_upload(event, context):
    for record in event["Records"]:
        key = record["s3"]["object"]["key"]
        states.start_execution(stateMachineArn="arn:aws:states:eu-west-1:123456789012:stateMachine:u", input=json.dumps({"key": key}))


if __name__ == "__main__":
    nightly({}, None)
