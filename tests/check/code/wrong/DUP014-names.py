# finds: DUP014 error, DUP014 warning
import uuid
import boto3

session = boto3.session.Session()
sfn = session.client("stepfunctions", region_name="eu-west-1")
ARN = "arn:aws:states:eu-west-1:123456789012:stateMachine:orders"


def start(record, name):
    sfn.start_execution(stateMachineArn=ARN, name=name, input=record["body"])


def by_message(event, context):
    for number, record in enumerate(event["Records"]):
        start(record, record["messageId"])


def by_chance(event, context):
    for record in event["Records"]:
        sfn.start_execution(stateMachineArn=ARN, name="run-" + str(uuid.uuid4())[:8], input=record["body"])
