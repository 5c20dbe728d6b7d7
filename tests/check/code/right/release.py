# finds: nothing
"""A claim that is taken away when the work fails."""
import json
import boto3
from botocore.exceptions import ClientError

table = boto3.resource("dynamodb").Table("claims")


def charge(order):
    raise NotImplementedError  # stands for an effect that is written elsewhere and can fail


def handler(event, context):
    for record in event["Records"]:
        order = json.loads(record["body"])
        try:
            table.put_item(Item={"pk": order["id"]}, ConditionExpression="attribute_not_exists(pk)")
        except ClientError as error:
            if error.response["Error"]["Code"] == "ConditionalCheckFailedException":
                continue
            raise
        try:
            charge(order)
        except Exception:
            table.delete_item(Key={"pk": order["id"]})
            raise
