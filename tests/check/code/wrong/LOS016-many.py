# finds: LOS016 error, LOS016 error, LOS016 error, LOS016 error, LOS016 error, LOS016 error
"""Six ways to lose a message, and three that cannot be told or are right (f, g)."""
import json, contextlib, logging, sentry_sdk
from aws_lambda_powertools import Tracer
logger = logging.getLogger()
tracer = Tracer()
def ship(o): raise ValueError
def a(event, context):
    for record in event["Records"]:
        with contextlib.suppress(Exception):
            ship(json.loads(record["body"]))
def b(event, context):
    for i, record in enumerate(event.get("Records", [])):
        with tracer.provider.in_subsegment("x"):
            try:
                ship(json.loads(record["body"]))
            except (ValueError, Exception) as e:
                sentry_sdk.capture_exception(e)
    return {"statusCode": 200}
def c(event, context):
    record = event["Records"][0]
    try:
        ship(json.loads(record["body"]))
    except Exception as e:
        logger.exception(e)
        return {"statusCode": 500, "body": str(e)}
    return {"statusCode": 200}
def d(event, context):
    messages = event["Records"]
    logger.info("got %d", len(messages))
    for m in messages:
        body = m["body"]
        try:
            payload = json.loads(body)
            ship(payload)
            logger.info("ok")
        except Exception:
            logger.exception("x")
        finally:
            logger.info("next")
def e(event, context):
    [safe(r) for r in event["Records"]]
def safe(r):
    try:
        ship(json.loads(r["body"]))
    except Exception as ex:
        print(f"failed {ex}")
def f(event, context):
    for r in event["Records"]:
        ok = safe2(r)
        if not ok:
            logger.error("failed")
def safe2(r):
    try:
        ship(json.loads(r["body"]))
        return True
    except Exception as ex:
        print(f"failed {ex}")
        return False
def g(event, context):
    for r in event["Records"]:
        try:
            ship(json.loads(r["body"]))
        except Exception as ex:
            logger.error("failed")
            raise ex
def h(event, context):
    try:
        return main(event)
    except Exception:
        logger.exception("x")
def main(event):
    for r in event["Records"]:
        ship(json.loads(r["body"]))
