# finds: LOS016 error
"""An answer for an API, in front of a queue."""
import json
import boto3
from aws_lambda_powertools import Logger, Metrics

logger = Logger()
metrics = Metrics()
table = boto3.resource("dynamodb").Table("orders")


@logger.inject_lambda_context
def lambda_handler(event, context):
    try:
        for record in event["Records"]:
            table.put_item(Item=json.loads(record["body"]))
        return {"statusCode": 200}
    except Exception:
        logger.exception("could not store")
        metrics.add_metric(name="Failed", unit="Count", value=1)
        return {"statusCode": 500}
