# finds: DUP007 warning, DUP007 error
"""Records under the message's id, and under a number that is drawn anew."""
import json
import uuid
import boto3
from boto3.dynamodb.conditions import Attr

seen = boto3.resource("dynamodb").Table("seen")


def remember(key, body):
    seen.put_item(Item={"pk": f"order#{key}", "body": body}, ConditionExpression=Attr("pk").not_exists())


def handler(event, context):
    for record in event["Records"]:
        remember(record["messageId"], record["body"])


def other_handler(event, context):
    client = boto3.client("dynamodb")
    for record in event.get("Records", []):
        body = json.loads(record["body"])
        client.put_item(
            TableName="seen",
            Item={"id": {"S": str(uuid.uuid4())}, "order": {"S": body["id"]}},
            ConditionExpression="attribute_not_exists(#k)",
            ExpressionAttributeNames={"#k": "id"},
        )
