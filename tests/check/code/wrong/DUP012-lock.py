# finds: DUP012 warning preview
import json
import time
import boto3

locks = boto3.resource("dynamodb").Table("locks")


def acquire_lock(name):
    locks.put_item(
        Item={"pk": name, "ttl": int(time.time()) + 300}, ConditionExpression="attribute_not_exists(pk)"
    )


def handler(event, context):
    for record in event["Records"]:
        acquire_lock(json.loads(record["body"])["customer"])
