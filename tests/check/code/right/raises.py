# finds: nothing
"""The ordinary handler: what fails is raised, the batch comes back."""
import json
import boto3

table = boto3.resource("dynamodb").Table("orders")


def handler(event, context):
    for record in event["Records"]:
        order = json.loads(record["body"])
        table.put_item(Item={"pk": order["id"], "total": order["total"]})
