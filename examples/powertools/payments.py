"""A payment in a Lambda function; PAYMENTS_RECORDS says where its records are."""

import os
from typing import Any

from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function

from onefold.powertools import OnefoldPersistence

records = OnefoldPersistence(os.environ.get("PAYMENTS_RECORDS", "sqlite:///records.db"))
config = IdempotencyConfig(event_key_jmespath="id", expires_after_seconds=30 * 24 * 3600)
charged: list[str] = []  # stands for the bank's books


@idempotent_function(data_keyword_argument="order", persistence_store=records, config=config)
def charge(order: dict[str, Any]) -> dict[str, Any]:
    """Charge an order, once."""
    charged.append(order["id"])
    order.get("meanwhile", lambda: None)()
    return {"charged": order["id"]}


def handler(event: dict[str, Any], context: Any) -> list[dict[str, Any]]:
    """The Lambda function."""
    config.register_lambda_context(context)
    return [charge(order=order) for order in event["orders"]]
