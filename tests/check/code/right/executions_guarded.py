# finds: nothing
"""An execution without a name behind a check of the program's own."""
import json
import boto3

states = boto3.client("stepfunctions")
seen = boto3.resource("dynamodb").Table("seen")


def already_started(order_id):
    return "Item" in seen.get_item(Key={"pk": order_id}, ConsistentRead=True)


def handler(event, context):
    for record in event["Records"]:
        order = json.loads(record["body"])
        if already_started(order["id"]):
            continue
        states.start_execution(stateMachineArn="arn:aws:states:eu-west-1:123456789012:stateMachine:o", input=record["body"])
