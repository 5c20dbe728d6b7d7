# finds: nothing
"""A durable function that waits for hours, and is not behind a queue; one behind a queue that waits seconds."""
from aws_durable_execution_sdk_python import DurableContext, StepContext, durable_execution, durable_step
from aws_durable_execution_sdk_python.config import Duration


@durable_step
def charge(step: StepContext, order):
    return order


@durable_execution
def long_lived(event, context: DurableContext):
    context.step(charge(event["order"]))
    context.wait(Duration.from_hours(12))


@durable_execution
def handler(event, context: DurableContext):
    for record in event["Records"]:
        context.step(charge(record["body"]))
        context.wait(Duration.from_seconds(5))
