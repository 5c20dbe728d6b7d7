# finds: DUP016 warning
from aws_durable_execution_sdk_python.config import Duration
from aws_durable_execution_sdk_python.context import DurableContext
from aws_durable_execution_sdk_python.execution import durable_execution
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig, idempotent

store = DynamoDBPersistenceLayer(table_name="idempotency")


@durable_execution
@idempotent(persistence_store=store, config=IdempotencyConfig(event_key_jmespath="Records[*].body"))
def handler(event, context: DurableContext):
    for record in event["Records"]:
        print(record["body"])
    context.wait(Duration.from_minutes(10))
