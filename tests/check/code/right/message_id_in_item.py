# finds: nothing
"""The message's id is an attribute beside the key, and in log lines."""
import json
import logging
import boto3

table = boto3.resource("dynamodb").Table("orders")
logger = logging.getLogger()


def handler(event, context):
    for record in event["Records"]:
        body = json.loads(record["body"])
        logger.info("%s %s", record["messageId"], context.aws_request_id)
        table.put_item(
            Item={"pk": body["id"], "message": record["messageId"], "run": context.aws_request_id},
            ConditionExpression="attribute_not_exists(pk)",
        )
