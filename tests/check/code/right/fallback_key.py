# finds: nothing
"""The message's id only where the body has no key: it is not certain which."""
import json
import boto3

table = boto3.resource("dynamodb").Table("seen")


def handler(event, context):
    for record in event["Records"]:
        body = json.loads(record["body"])
        key = body.get("id") or record["messageId"]
        table.put_item(Item={"pk": key, "body": record["body"]}, ConditionExpression="attribute_not_exists(pk)")
