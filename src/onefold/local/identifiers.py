"""The identifiers and digests that SQS gives out: URLs, ARNs, message ids, receipt handles, sequence numbers, MD5 sums.

They are AWS's forms of the engine's own ids, converted in both directions without stored state: a message id is a UUID
that holds the data file's token and the message's number; a receipt handle is opaque text that holds queue and receipt,
so another queue refuses it. The MD5 digests guard against damage in transit, not against an attacker; nothing else may
rely on them.
Never here: whether the named queue or message exists. Invariants: any later process can read an identifier that was given
out, and a digest does not depend on the order of the attributes.

Sources: SQS developer guide, "Identifiers for Amazon SQS queues" and "Amazon SQS message metadata" (MD5 message
digest); API reference, GetQueueUrl.
"""

from __future__ import annotations

import re
from base64 import b64encode
from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import md5

from msgspec import Struct

from onefold.contracts.queue import Attribute
from onefold.local import aws_errors

_REGIONAL = re.compile(r"/queue/([a-z0-9-]{1,32})/[0-9]{12}/[^/]+/?$")
_TOKEN = re.compile(r"[0-9a-f]{16}")
_UUID = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-4([0-9a-f]{3})-([89ab][0-9a-f]{3})-([0-9a-f]{12})")
_RECEIPT = re.compile(r"[0-9]{1,18}:[0-9]{1,18}(:[0-9]{1,18})?")
_NUMBER_BITS = 58  # of a UUID's 128: 64 are the file's token, 6 are version and variant
_NUMBER_MASK = (1 << _NUMBER_BITS) - 1
_SPREAD = 0x2545F4914F6CDD1D  # any odd constant, so that ids of one file do not look like those of another
_SEQUENCE_START = 18_849_496_460_467_696_128  # AWS's sequence numbers have 20 digits
_SEQUENCE_STEP = 256  # AWS's sequence numbers are not consecutive
_TEXT = b"\x01"  # for String, Number and their labelled types
_BINARY = b"\x02"


SENDER_ID = "AIDAONEFOLDLOCAL00000"  # in the form of an IAM user's id; this server has no users


class QueueAddresses(Struct, frozen=True):
    """The URLs and ARNs of this server's queues.

    Args:
        account: 12 digits.
        region: for example `us-east-1`.
        host: host and port of URLs, if a request named none.
        resolve: returns the engine's name for a queue of this region; None: the name itself, as in the server's own
            region.
    """

    account: str
    region: str
    host: str
    resolve: Callable[[str], str] | None = None

    def queue_url(self, name: str, host: str = "") -> str:
        """The URL of a queue by the engine's name, on the host that the client called and therefore can reach."""
        region, _, bare = name.rpartition("/")
        return f"http://{host or self.host}/{f'queue/{region}/' if region else ''}{self.account}/{bare}"

    def arn(self, name: str) -> str:
        """The ARN of a queue by the engine's name."""
        region, _, bare = name.rpartition("/")
        return f"arn:aws:sqs:{region or self.region}:{self.account}:{bare}"

    def name_of_arn(self, arn: str) -> str | None:
        """The engine's name of an ARN's queue; None if it is not the ARN of a queue in this account and region."""
        start, _, name = arn.rpartition(":")
        if not name or start != f"arn:aws:sqs:{self.region}:{self.account}":
            return None
        return name if self.resolve is None else self.resolve(name)


def region_of_url(url: str) -> str:
    """The region in a queue's URL or path, `/queue/REGION/ACCOUNT/NAME`; empty if it names none."""
    found = _REGIONAL.search(url) if "/queue/" in url else None
    return "" if found is None else found[1]


def name_of_url(url: str) -> str:
    """The queue that a `QueueUrl` names: the last part of a URL, or a bare name, which AWS accepts too (recorded)."""
    return url.rstrip("/").rpartition("/")[2]


# -- messages --------------------------------------------------------------------------------------------------------


def message_uuid(message_id: str) -> str:
    """The engine's message id as an SQS MessageId; any other text unchanged."""
    token, _, number = message_id.partition("-")
    parts = _parts(token)
    if parts is None or not (number.isascii() and number.isdigit()):
        return message_id
    start, high, mask = parts
    low = f"{high | (int(number) ^ mask):016x}"
    return f"{start}{low[:4]}-{low[4:]}"


def message_id_of(uuid: str) -> str:
    """The engine's id of the message whose MessageId is `uuid`; any other text unchanged."""
    found = _UUID.fullmatch(uuid)
    if found is None:
        return uuid
    low = int(found[4] + found[5], 16)
    token = found[1] + found[2] + found[3] + f"{low >> _NUMBER_BITS & 0xF:x}"
    parts = _parts(token)
    return uuid if parts is None else f"{token}-{low & _NUMBER_MASK ^ parts[2]}"


@lru_cache(16)
def _parts(token: str) -> tuple[str, int, int] | None:
    """For a file's token: the start of its UUIDs, the bits above the number, and the mask of the number."""
    if not _TOKEN.fullmatch(token):
        return None
    high = 1 << 63 | int(token[15], 16) << _NUMBER_BITS
    return f"{token[:8]}-{token[8:12]}-4{token[12:15]}-", high, int(token, 16) * _SPREAD & _NUMBER_MASK


def sequence_number(sequence: str | None) -> str | None:
    """The engine's sequence in AWS's form: 20 digits, larger for later messages, not consecutive."""
    return None if sequence is None else str(_SEQUENCE_START + _SEQUENCE_STEP * int(sequence))


def handle_of(queue: str, receipt: str) -> str:
    """The receipt handle of one receive."""
    return b64encode(
        f"onefold2 {queue} {receipt}.".encode()
    ).decode()  # the full stop: no handle is a prefix of another


def receipt_of(handle: str, queue: str) -> str:
    """The receipt in a handle of this queue.

    Raises:
        AwsError: ReceiptHandleIsInvalid: it is not a handle, or belongs to another queue.
    """
    try:
        start, name, receipt = a2b_base64(handle, strict_mode=True).decode().split(" ")
    except (Base64Error, ValueError):
        raise aws_errors.receipt_handle_is_invalid(handle) from None
    if start == "onefold2" and receipt.endswith("."):
        receipt = receipt[:-1]
    elif start != "onefold":  # not the form used until November 2026
        raise aws_errors.receipt_handle_is_invalid(handle)
    if name != queue or not _RECEIPT.fullmatch(receipt):
        raise aws_errors.receipt_handle_is_invalid(handle)
    return receipt


# -- digests -----------------------------------------------------------------------------------------------------------


def body_md5(body: str) -> str:
    """Digest of a message body: 32 hexadecimal characters (`MD5OfMessageBody`, `MD5OfBody`)."""
    return md5(body.encode(), usedforsecurity=False).hexdigest()


def attributes_md5(attributes: Mapping[str, Attribute]) -> str | None:
    """Digest of message attributes; None without attributes, because the answer then lacks that member.

    It covers name, data type and value of each, sorted by name, each preceded by its length in 4 bytes.
    """
    if not attributes:
        return None
    parts: list[bytes] = []
    for name in sorted(attributes):
        attribute = attributes[name]
        value = attribute.value
        kind, raw = (_TEXT, value.encode()) if isinstance(value, str) else (_BINARY, value)
        for text in (name.encode(), attribute.type.encode()):
            parts += (len(text).to_bytes(4, "big"), text)
        parts += (kind, len(raw).to_bytes(4, "big"), raw)
    return md5(b"".join(parts), usedforsecurity=False).hexdigest()


def trace_md5(trace: str | None) -> str | None:
    """Digest of the one system attribute that may be sent, AWSTraceHeader; None without it."""
    return None if trace is None else attributes_md5({"AWSTraceHeader": Attribute(trace)})
