# finds: nothing
"""The record is taken away in a context manager."""
import contextlib
import json
import boto3

dynamodb = boto3.client("dynamodb")


@contextlib.contextmanager
def claimed(key):
    try:
        dynamodb.put_item(
            TableName="claims", Item={"pk": {"S": key}}, ConditionExpression="attribute_not_exists(pk)"
        )
    except dynamodb.exceptions.ConditionalCheckFailedException:
        yield False
        return
    try:
        yield True
    except BaseException:
        dynamodb.delete_item(TableName="claims", Key={"pk": {"S": key}})
        raise


def charge(order):
    raise NotImplementedError  # stands for an effect that is written elsewhere and can fail


def handler(event, context):
    for record in event["Records"]:
        order = json.loads(record["body"])
        with claimed(order["id"]) as mine:
            if mine:
                charge(order)
