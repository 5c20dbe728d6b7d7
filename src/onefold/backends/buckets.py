"""A client for S3, which map runs read items from and write results to, by the engine's URL.

Apart from `registry.py` because S3 is no engine and no store: whatever the engine, a map run may name a bucket.

Never here: what is read or written, and large payloads of an engine's own messages (`aws/payloads.py`).
Invariant: an engine on AWS and its map runs use the same region and endpoints.
"""

from __future__ import annotations

import os
from typing import Any

from onefold.backends import places
from onefold.backends.registry import part


def s3_client(url: str) -> Any:
    """boto3's client for S3: of the engine's region and endpoints where it is on AWS, else of those in the environment.

    Without a region there it is us-east-1's, which S3 sends on to the bucket's own.

    Raises:
        UsageError: boto3 is not installed, or the region or endpoint is none.
    """
    if url.startswith("aws://"):
        place = places.read(url)
        region, endpoints = place.region, place.endpoints
    else:
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        at = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        endpoints = {"s3": at} if at else {}
    return part("aws.session").Session(region, endpoints).client("s3")
