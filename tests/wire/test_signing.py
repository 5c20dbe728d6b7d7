"""Signatures made by botocore are accepted; anything else about a request that changes is not."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from onefold.local import signing
from onefold.local.aws_errors import AwsError
from onefold.local.connection import HttpRequest
from onefold.local.signing import AccessKey

REGION = "us-east-1"
KEY = AccessKey("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
MINUTE_MS = 60_000
BODY = b'{"QueueUrl":"http://127.0.0.1:9324/000000000000/orders"}'


def signed(
    url: str = "http://127.0.0.1:9324/",
    *,
    key: AccessKey = KEY,
    method: str = "POST",
    body: bytes = BODY,
    service: str = "sqs",
    presigned_s: int | None = None,
    region: str = REGION,
    **headers: str,
) -> HttpRequest:
    """A request that botocore signed now, as a server gets it."""
    request = AWSRequest(method=method, url=url, data=body, headers=headers)
    credentials = Credentials(key.access_key, key.secret_key)
    auth = (
        SigV4Auth(credentials, service, region)
        if presigned_s is None
        else SigV4QueryAuth(credentials, service, region, expires=presigned_s)
    )
    auth.add_auth(request)
    parts = urlsplit(request.url)
    found = {name.lower().encode(): value.encode("latin-1") for name, value in request.headers.items()}
    found.setdefault(b"host", parts.netloc.encode())
    return HttpRequest(method, parts.path, parts.query, found, body)


def now_ms(request: HttpRequest) -> int:
    """When it was signed, to the second."""
    from datetime import UTC, datetime

    stamp = (
        request.headers.get(b"x-amz-date", b"").decode()
        or dict(part.split("=", 1) for part in request.query.split("&"))["X-Amz-Date"]
    )
    return int(datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()) * 1000


def refusal(request: HttpRequest, at_ms: int | None = None, key: AccessKey = KEY) -> AwsError:
    with pytest.raises(AwsError) as caught:
        signing.verify(request, key, now_ms(request) if at_ms is None else at_ms)
    return caught.value


@pytest.mark.parametrize(
    "request_",
    [
        signed(),
        signed(body=b""),
        signed(service="lambda"),
        signed("http://127.0.0.1:9324/000000000000/orders.fifo", body=b"MessageBody=gr%C3%BC%C3%9F+x"),
        signed(
            "http://localhost/000000000000/a%20b%2Fc//d/../e/?x=1&b=%20~%2B&a=&X=2&%C3%A9=1", method="GET", body=b""
        ),
        signed(**{"X-Amz-Target": "AmazonSQS.SendMessage", "X-Spaces": "  a   b  ", "X-Amz-Security-Token": "t"}),
        signed(
            "http://127.0.0.1:9324/000000000000/orders?Action=ReceiveMessage", method="GET", body=b"", presigned_s=60
        ),
        signed("http://127.0.0.1:9324/?Action=ListQueues", method="GET", body=b"", presigned_s=604_800),
    ],
    ids=range(8),
)
def test_what_botocore_signs_is_accepted(request_: HttpRequest) -> None:
    signing.verify(request_, KEY, now_ms(request_))


def test_the_vector_of_awss_documentation() -> None:
    """The derived key's example of the IAM user guide: only the signing key, which everything else hangs on."""
    key = signing._signing_key("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "20120215/us-east-1/iam/aws4_request")
    assert key.hex() == "f4780e2d9f65fa895f9c67b32ce1baf0b0d8a43505a000a1a9e090d414db404d"


def changed(request: HttpRequest, **changes: object) -> HttpRequest:
    values = {name: getattr(request, name) for name in ("method", "path", "query", "headers", "body")}
    return HttpRequest(**{**values, **changes})


@pytest.mark.parametrize(
    "change",
    [
        lambda one: changed(one, body=one.body + b" "),
        lambda one: changed(one, path="/other"),
        lambda one: changed(one, query="a=1"),
        lambda one: changed(one, method="GET"),
        lambda one: changed(one, headers={**one.headers, b"host": b"evil"}),
        lambda one: changed(one, headers={**one.headers, b"x-amz-target": b"AmazonSQS.DeleteQueue"}),
        lambda one: changed(one, headers={name: value for name, value in one.headers.items() if name != b"host"}),
    ],
)
def test_whatever_was_changed_afterwards_is_found(change: Callable[[HttpRequest], HttpRequest]) -> None:
    error = refusal(change(signed(**{"X-Amz-Target": "AmazonSQS.SendMessage"})))
    assert (error.code, error.status) == ("SignatureDoesNotMatch", 403)


def test_another_secret_or_access_key_is_refused() -> None:
    assert refusal(signed(), key=AccessKey(KEY.access_key, "other")).code == "SignatureDoesNotMatch"
    assert refusal(signed(), key=AccessKey("OTHER", KEY.secret_key)).code == "InvalidClientTokenId"


def test_any_region_may_be_named_and_what_is_none_may_not() -> None:
    request = signed(region="eu-west-1")
    signing.verify(request, KEY, now_ms(request))
    for region in ("", "EU_WEST", "a" * 33):
        assert "valid region" in refusal(signed(region=region)).message
    assert "correct service" in refusal(signed(service="s3")).message


@pytest.mark.parametrize("off_ms", [-15 * MINUTE_MS, 15 * MINUTE_MS])
def test_a_quarter_of_an_hour_of_skew_is_accepted_and_no_second_more(off_ms: int) -> None:
    request = signed()
    signing.verify(request, KEY, now_ms(request) + off_ms)
    error = refusal(request, now_ms(request) + off_ms + (1_000 if off_ms > 0 else -1_000))
    assert error.code == "SignatureDoesNotMatch"
    assert ("Signature expired" if off_ms > 0 else "not yet current") in error.message


def test_a_presigned_request_lives_as_long_as_it_says() -> None:
    request = signed("http://h/000000000000/q?Action=ReceiveMessage", method="GET", body=b"", presigned_s=3_600)
    signing.verify(request, KEY, now_ms(request) + 3_600_000)
    assert refusal(request, now_ms(request) + 3_600_001).code == "RequestExpired"
    longer = changed(request, query=request.query.replace("X-Amz-Expires=3600", "X-Amz-Expires=36000"))
    assert refusal(longer).code == "SignatureDoesNotMatch"


@pytest.mark.parametrize(
    ("headers", "query", "code"),
    [
        ({}, "", "AccessDenied"),
        ({b"authorization": b"Basic abc"}, "", "IncompleteSignature"),
        ({b"authorization": b"AWS4-HMAC-SHA256 nothing"}, "", "IncompleteSignature"),
        (
            {b"authorization": b"AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=c"},
            "",
            "IncompleteSignature",
        ),
        (
            {
                b"authorization": b"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/b, SignedHeaders=host, Signature=\xff",
                b"x-amz-date": b"1",
            },
            "",
            "IncompleteSignature",
        ),
        (
            {
                b"authorization": b"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20260101/us-east-1/sqs/aws4_request, "
                b"SignedHeaders=host, Signature=\xff",
                b"x-amz-date": b"20260101 soon",
            },
            "",
            "IncompleteSignature",
        ),
        ({}, "X-Amz-Signature=abc", "IncompleteSignature"),
        (
            {
                b"host": b"h",
                b"x-amz-date": b"19700101T000000Z",
                b"authorization": b"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/19700101/us-east-1/sqs/aws4_request, "
                b"SignedHeaders=" + b";".join([b"host"] * 6_400) + b";x-amz-date, Signature=c",
            },
            "",
            "IncompleteSignature",
        ),
        (
            {},
            "X-Amz-Signature=a&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a&X-Amz-SignedHeaders=h&X-Amz-Date=1&X-Amz-Expires=0",
            "IncompleteSignature",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(headers: dict[bytes, bytes], query: str, code: str) -> None:
    assert refusal(HttpRequest("POST", "/", query, headers, b""), 0).code == code


def test_the_region_of_a_signature() -> None:
    request = signed(region="eu-west-1")
    assert signing.region_of(request.headers, request.query) == "eu-west-1"
    request = signed(region="ap-southeast-2", presigned_s=60)
    assert signing.region_of(request.headers, request.query) == "ap-southeast-2"
    for header in (
        b"",
        b"Bearer x",
        b"AWS4-HMAC-SHA256 Credential=a/b",
        b"AWS4-HMAC-SHA256 Credential=" + b"a/" * 100_000,
    ):
        assert signing.region_of({b"authorization": header}, "") == ""
    assert signing.region_of({}, "Action=ListQueues&X-Amz-Credential=" + "a%2F" * 50_000) == ""
