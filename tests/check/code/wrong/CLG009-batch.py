# finds: CLG009 error
import boto3

sqs = boto3.client("sqs")


def later(url, bodies):
    sqs.send_message_batch(
        QueueUrl=url,
        Entries=[{"Id": str(n), "MessageBody": body, "DelaySeconds": 1800} for n, body in enumerate(bodies)],
    )
