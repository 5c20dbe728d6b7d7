# finds: DUP016 warning preview, DUP016 warning preview
"""Steps that send without a key: in a function, and in a lambda; two that give one."""
import boto3
import requests
from aws_durable_execution_sdk_python import DurableContext, StepContext, durable_execution, durable_step
from aws_durable_execution_sdk_python.config import StepConfig, StepSemantics

sqs = boto3.client("sqs")
ONCE = StepConfig(step_semantics=StepSemantics.AT_MOST_ONCE_PER_RETRY)


@durable_step
def notify(step: StepContext, body: str) -> None:
    sqs.send_message(QueueUrl="https://sqs.eu-west-1.amazonaws.com/123456789012/next", MessageBody=body)


@durable_step
def keyed(step: StepContext, body: str) -> None:
    sqs.send_message(
        QueueUrl="https://sqs.eu-west-1.amazonaws.com/123456789012/next.fifo", MessageBody=body,
        MessageGroupId=body, MessageDeduplicationId=body,
    )


@durable_execution
def handler(event, context: DurableContext):
    for record in event["Records"]:
        context.step(notify(record["body"]))
        context.step(lambda _: requests.post("https://pay.example", json=record["body"], timeout=5), name="pay")
        context.step(keyed(record["body"]))
        context.step(notify(record["body"]), config=ONCE)
