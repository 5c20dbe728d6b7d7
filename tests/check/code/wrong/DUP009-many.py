# finds: DUP009 error, DUP009 error, DUP009 error
"""Claims that raise, that are asked for, and a failure that only is said."""
import json, boto3, time
from botocore.exceptions import ClientError
from boto3.dynamodb.conditions import Attr
table = boto3.resource("dynamodb").Table("seen")
sns = boto3.client("sns")
class Duplicate(Exception): pass
def mark(key):
    try:
        table.put_item(Item={"pk": key, "ttl": int(time.time()) + 86400}, ConditionExpression=Attr("pk").not_exists())
    except ClientError as err:
        if err.response["Error"]["Code"] != "ConditionalCheckFailedException":
            raise
        raise Duplicate from err
def a(event, context):
    for r in event["Records"]:
        body = json.loads(r["body"])
        try:
            mark(body["id"])
        except Duplicate:
            continue
        sns.publish(TopicArn="x", Message=r["body"])
def is_new(key):
    try:
        table.put_item(Item={"pk": key}, ConditionExpression="attribute_not_exists(pk)")
        return True
    except ClientError as err:
        if err.response["Error"]["Code"] == "ConditionalCheckFailedException":
            return False
        raise
def b(event, context):
    for r in event["Records"]:
        body = json.loads(r["body"])
        if is_new(body["id"]):
            sns.publish(TopicArn="x", Message=r["body"])
        else:
            print("dup")
def c(event, context):
    for r in event["Records"]:
        body = json.loads(r["body"])
        if not is_new(body["id"]):
            print("dup")
            continue
        try:
            sns.publish(TopicArn="x", Message=r["body"])
        except Exception:
            print("failed")
            raise
