# finds: DUP009 error
"""Written down as done, then done: what fails in between is never done."""
import json
import logging
import boto3
from botocore.exceptions import ClientError

logger = logging.getLogger()
table = boto3.resource("dynamodb").Table("processed")
ses = boto3.client("ses")


def handler(event, context):
    for record in event["Records"]:
        order = json.loads(record["body"])
        try:
            table.put_item(Item={"pk": order["id"]}, ConditionExpression="attribute_not_exists(pk)")
        except ClientError as e:
            if e.response["Error"]["Code"] == "ConditionalCheckFailedException":
                logger.info("duplicate %s", order["id"])
                continue
            raise
        ses.send_email(Source="shop@example.com", Destination={"ToAddresses": [order["mail"]]}, Message={})
