# finds: nothing
"""Countdowns below the broker's visibility timeout."""
from celery import Celery

app = Celery("shop", broker="sqs://")
app.conf.broker_transport_options = {"region": "eu-west-1", "visibility_timeout": 3600}


@app.task
def remind(order):
    return order


def later(order):
    remind.apply_async(args=[order], countdown=600)
    remind.apply_async((order,), countdown=15 * 60)
