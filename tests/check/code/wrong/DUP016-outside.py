# finds: DUP016 error
from aws_durable_execution_sdk_python import DurableContext, durable_execution, durable_step
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig, idempotent

store = DynamoDBPersistenceLayer(table_name="idempotency")
config = IdempotencyConfig(event_key_jmespath="Records[0].body", expires_after_seconds=2_764_800)


@durable_step
def charge(step, record):
    print(record)


@idempotent(persistence_store=store, config=config)
@durable_execution
def handler(event, context: DurableContext):
    for record in event["Records"]:
        context.step(charge(record["body"]))
