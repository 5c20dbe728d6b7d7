# finds: nothing
"""A record that was there is looked at: only what is done is passed over."""
import json
import boto3

table = boto3.resource("dynamodb").Table("claims")


def charge(order):
    raise NotImplementedError  # stands for an effect that is written elsewhere and can fail


def handler(event, context):
    for record in event["Records"]:
        order = json.loads(record["body"])
        try:
            table.put_item(Item={"pk": order["id"], "state": "started"}, ConditionExpression="attribute_not_exists(pk)")
        except table.meta.client.exceptions.ConditionalCheckFailedException:
            found = table.get_item(Key={"pk": order["id"]}, ConsistentRead=True)["Item"]
            if found["state"] == "done":
                continue
        charge(order)
        table.update_item(Key={"pk": order["id"]}, UpdateExpression="SET #s = :d",
                          ExpressionAttributeNames={"#s": "state"}, ExpressionAttributeValues={":d": "done"})
