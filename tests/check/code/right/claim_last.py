# finds: nothing
"""The conditional write is the work itself, and nothing follows it."""
import json
import logging
import boto3

log = logging.getLogger()
orders = boto3.resource("dynamodb").Table("orders")


def handler(event, context):
    for record in event["Records"]:
        order = json.loads(record["body"])
        try:
            orders.put_item(Item=order, ConditionExpression="attribute_not_exists(id)")
        except orders.meta.client.exceptions.ConditionalCheckFailedException:
            log.info("known: %s", order["id"])
            continue
        log.info("new: %s", order["id"])
