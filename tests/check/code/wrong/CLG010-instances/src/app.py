from aws_durable_execution_sdk_python import DurableContext, durable_execution
from aws_durable_execution_sdk_python.config import Duration


@durable_execution
def handler(event, context: DurableContext):
    for record in event["Records"]:
        print(record["body"])
        context.wait(Duration.from_minutes(120))
