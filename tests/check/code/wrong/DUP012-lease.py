# finds: DUP012 warning preview
import json
import time
import boto3

client = boto3.client("dynamodb")
LEASE_SECONDS = 15 * 60


def handler(event, context):
    for record in event["Records"]:
        body = json.loads(record["body"])
        client.put_item(
            TableName="lease",
            Item={"pk": {"S": body["id"]}, "expires": {"N": str(int(time.time()) + LEASE_SECONDS)}},
            ConditionExpression="attribute_not_exists(pk)",
        )
