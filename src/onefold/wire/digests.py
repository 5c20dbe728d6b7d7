"""The MD5 digests that SQS answers with and that SDKs check: of a body, of attributes.

They guard against damage on the way, not against anybody; nothing else may rely on them.
Never here: which attributes a receive returns. Invariant: the digest does not depend on the order of the mapping.

Source: SQS developer guide, "Amazon SQS message metadata", calculating the MD5 message digest for message attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import md5

from onefold.contracts.queue import Attribute

_TEXT = b"\x01"  # String, Number and their labels
_BINARY = b"\x02"


def body_md5(body: str) -> str:
    """Digest of a message body: 32 hexadecimal characters (`MD5OfMessageBody`, `MD5OfBody`)."""
    return md5(body.encode(), usedforsecurity=False).hexdigest()


def attributes_md5(attributes: Mapping[str, Attribute]) -> str | None:
    """Digest of message attributes; None when there are none, as the answer then has no such member.

    Name, data type and value of each, in the order of names, each with its length in 4 bytes before it.
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
