# finds: CLG009 error
from celery import Celery

app = Celery("shop", broker="sqs://")
app.conf.update(broker_transport_options={"visibility_timeout": 1800})


@app.task
def remind(order):
    return order


def tomorrow(order):
    remind.apply_async(args=[order], countdown=24 * 3600)
