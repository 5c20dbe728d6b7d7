"""AWS Signature Version 4, the server's side: checks that a request was signed with a key, and not too long ago.

It checks both forms: the `Authorization` header, and a presigned query (`X-Amz-Signature=...`). The steps and their
names are those of the IAM user guide, "Create a signed AWS API request". The code does not use botocore.auth, which
takes 90 ms to import and leaves out header fields that other SDKs sign.

Never here: whether a server requires signatures at all, what a key may do. Invariant: a signature is compared in constant
time, and nothing in a request is trusted before its signature matched.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from posixpath import normpath
from urllib.parse import quote, unquote

from msgspec import Struct

from onefold import limits
from onefold.local import aws_errors
from onefold.local.connection import HttpRequest

SKEW_MS = 15 * limits.MINUTE_MS  # IAM user guide, troubleshoot SigV4: within 15 minutes of the request's time stamp
_PRESIGNED_S_MAX = 7 * 24 * 3600  # same guide, X-Amz-Expires: 1 s to 7 days
_ALGORITHM = "AWS4-HMAC-SHA256"
_STAMP = "%Y%m%dT%H%M%SZ"
_SERVICES = ("sqs", "lambda", "sns")
_REGION = re.compile(r"[a-z0-9-]{1,32}")


class AccessKey(Struct, frozen=True):
    """The single key pair of a server."""

    access_key: str
    secret_key: str


def region_of(headers: Mapping[bytes, bytes], query: str) -> str:
    """The region that a signature names, whether or not it is valid; empty without a signature."""
    authorization = headers.get(b"authorization")
    if authorization is not None:
        start = authorization.find(b"Credential=")
        return _region_in(authorization[start : authorization.find(b",", start)]) if start >= 0 else ""
    if "X-Amz-Credential=" in query:
        return _region_in(
            unquote(query.partition("X-Amz-Credential=")[2].partition("&")[0], "latin-1").encode("latin-1")
        )
    return ""


@lru_cache(64)
def _region_in(credential: bytes) -> str:
    parts = credential.decode("latin-1").rsplit("/", 4)
    return parts[2] if len(parts) == 5 and parts[4] == "aws4_request" and _REGION.fullmatch(parts[2]) else ""


class _Claim(Struct, frozen=True):
    """What a request claims about its signature."""

    credential: str
    signed_headers: str
    signature: str
    stamp: str
    expires_ms: int | None = None  # for a presigned query


def verify(request: HttpRequest, key: AccessKey, now_ms: int) -> None:
    """Check that a request was signed with `key` within 15 minutes of `now_ms` (a presigned one: until it expires).

    Raises:
        AwsError: AccessDenied: it is not signed. IncompleteSignature: the signature cannot be read.
            InvalidClientTokenId: it has another access key. SignatureDoesNotMatch: the secret, the request or the scope
            differs, or it is too old or too new. RequestExpired: a presigned query has expired.
    """
    parameters = _pairs(request.query)
    claim = _claim(request.headers, dict(parameters))
    access_key, _, scope = claim.credential.partition("/")
    if access_key != key.access_key:
        raise aws_errors.invalid_client_token_id()
    _check_scope(scope, claim.stamp)
    _check_time(claim, now_ms)
    names = claim.signed_headers.split(";")
    if "host" not in names:
        raise aws_errors.signature_does_not_match("'Host' must be a 'SignedHeader' in the AWS Authorization.")
    if b"x-amz-target" in request.headers and "x-amz-target" not in names:  # it decides which operation runs
        raise aws_errors.signature_does_not_match("'X-Amz-Target' must be a 'SignedHeader' in the AWS Authorization.")
    canonical = _canonical(request, parameters, names)
    to_sign = "\n".join((_ALGORITHM, claim.stamp, scope, sha256(canonical.encode("latin-1")).hexdigest()))
    wanted = hmac.new(_signing_key(key.secret_key, scope), to_sign.encode("latin-1"), sha256).hexdigest()
    if not hmac.compare_digest(wanted.encode(), claim.signature.encode("latin-1", "replace")):
        raise aws_errors.signature_does_not_match(
            "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access "
            "Key and signing method. Consult the service documentation for details."
        )


# ----------------------------------------------------------------------------------------------- what the request says


def _claim(headers: Mapping[bytes, bytes], parameters: Mapping[str, str]) -> _Claim:
    if b"authorization" in headers:
        return _claim_of_header(headers)
    if "X-Amz-Signature" in parameters:
        return _claim_of_query(parameters)
    raise aws_errors.access_denied("Request is missing Authentication Token")


def _claim_of_header(headers: Mapping[bytes, bytes]) -> _Claim:
    said = headers[b"authorization"].decode("latin-1")
    algorithm, _, rest = said.partition(" ")
    if algorithm != _ALGORITHM:
        raise aws_errors.incomplete_signature(f"Unsupported AWS 'algorithm': '{algorithm}'.")
    parts = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    missing = [name for name in ("Credential", "SignedHeaders", "Signature") if not parts.get(name)]
    if missing:
        raise aws_errors.incomplete_signature(
            f"Authorization header requires '{missing[0]}' parameter. Authorization={said}"
        )
    stamp = headers.get(b"x-amz-date", b"").decode("latin-1")
    if not stamp:
        raise aws_errors.incomplete_signature("Authorization header requires existence of a 'X-Amz-Date' header.")
    return _Claim(parts["Credential"], parts["SignedHeaders"], parts["Signature"], stamp)


def _claim_of_query(parameters: Mapping[str, str]) -> _Claim:
    names = ("Algorithm", "Credential", "SignedHeaders", "Signature", "Date", "Expires")
    missing = [name for name in names if not parameters.get(f"X-Amz-{name}")]
    if missing:
        raise aws_errors.incomplete_signature(f"AWS query-string parameters must include 'X-Amz-{missing[0]}'.")
    algorithm, credential, signed, signature, stamp, expires = (parameters[f"X-Amz-{name}"] for name in names)
    if algorithm != _ALGORITHM:
        raise aws_errors.incomplete_signature(f"Unsupported AWS 'algorithm': '{algorithm}'.")
    if not (expires.isascii() and expires.isdigit() and 1 <= int(expires[:9]) <= _PRESIGNED_S_MAX):
        raise aws_errors.incomplete_signature(f"X-Amz-Expires must be 1 to {_PRESIGNED_S_MAX} seconds.")
    return _Claim(credential, signed, signature, stamp, int(expires[:9]) * limits.SECOND_MS)


def _check_scope(scope: str, stamp: str) -> None:
    parts = scope.split("/")
    if len(parts) != 4 or parts[3] != "aws4_request":
        raise aws_errors.incomplete_signature(
            "Credential must have five parts: access key, date, region, service, aws4_request."
        )
    date, named, service, _ = parts
    if not _REGION.fullmatch(named):
        raise aws_errors.signature_does_not_match("Credential should be scoped to a valid region.")
    if service not in _SERVICES:
        raise aws_errors.signature_does_not_match("Credential should be scoped to correct service: 'sqs'.")
    if date != stamp[:8]:
        raise aws_errors.signature_does_not_match(
            f"Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: '{date}' != "
            f"'{stamp[:8]}', from '{stamp}'."
        )


def _check_time(claim: _Claim, now_ms: int) -> None:
    try:
        signed_ms = int(datetime.strptime(claim.stamp, _STAMP).replace(tzinfo=UTC).timestamp()) * limits.SECOND_MS
    except ValueError:
        raise aws_errors.incomplete_signature(
            f"Date must be in ISO-8601 'basic format'. Got '{claim.stamp}'. See http://en.wikipedia.org/wiki/ISO_8601"
        ) from None
    if signed_ms > now_ms + SKEW_MS:
        raise aws_errors.signature_does_not_match(
            f"Signature not yet current: {claim.stamp} is still later than {_stamp(now_ms + SKEW_MS)} "
            f"({_stamp(now_ms)} + 15 min.)"
        )
    if claim.expires_ms is not None:
        if now_ms > signed_ms + claim.expires_ms:
            raise aws_errors.request_expired("Request has expired.")
    elif signed_ms < now_ms - SKEW_MS:
        raise aws_errors.signature_does_not_match(
            f"Signature expired: {claim.stamp} is now earlier than {_stamp(now_ms - SKEW_MS)} ({_stamp(now_ms)} - 15 min.)"
        )


def _stamp(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms // limits.SECOND_MS, tz=UTC).strftime(_STAMP)


# ----------------------------------------------------------------------------------------------- the canonical request


def _canonical(request: HttpRequest, parameters: list[tuple[str, str]], names: list[str]) -> str:
    query = sorted((_encoded(name), _encoded(value)) for name, value in parameters if name != "X-Amz-Signature")
    if len(set(names)) < len(names):
        raise aws_errors.incomplete_signature("SignedHeaders names a header twice.")
    fields = "".join(f"{name}:{_field(request.headers, name)}\n" for name in names)
    return "\n".join(
        (
            request.method,
            _canonical_path(request.path),
            "&".join(f"{name}={value}" for name, value in query),
            fields,
            ";".join(names),
            sha256(request.body).hexdigest(),
        )
    )


def _canonical_path(path: str) -> str:
    """The path as sent, without dot segments and double slashes, encoded once more (as for all services but S3)."""
    plain = normpath("/" + path.lstrip("/"))
    if path.endswith("/") and plain != "/":
        plain += "/"
    return quote(plain.encode("latin-1"), safe="/-_.~")


def _pairs(query: str) -> list[tuple[str, str]]:
    parts = (part.partition("=") for part in query.split("&") if part)
    return [(unquote(name, "latin-1"), unquote(value, "latin-1")) for name, _, value in parts]


def _encoded(text: str) -> str:
    return quote(text.encode("latin-1"), safe="-_.~")


def _field(headers: Mapping[bytes, bytes], name: str) -> str:
    value = headers.get(name.encode("latin-1", "replace"))
    if value is None:
        raise aws_errors.signature_does_not_match(f"'{name}' is one of the SignedHeaders, but the request lacks it.")
    return " ".join(value.decode("latin-1").split())


def _signing_key(secret_key: str, scope: str) -> bytes:
    key = f"AWS4{secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode("latin-1"), sha256).digest()
    return key
