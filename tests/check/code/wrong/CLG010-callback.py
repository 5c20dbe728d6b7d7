# finds: CLG010 warning, CLG010 warning
from aws_durable_execution_sdk_python import DurableContext, durable_execution
from aws_durable_execution_sdk_python.config import Duration, WaitForCallbackConfig


def ask(callback_id, context):
    print(callback_id)


@durable_execution
def handler(event, context: DurableContext):
    for record in event["Records"]:
        context.wait_for_callback(ask, name=record["body"])
        context.wait_for_callback(ask, config=WaitForCallbackConfig(timeout=Duration.from_days(1)))
