"""MD5 digests against digests recorded from AWS."""

from __future__ import annotations

from hashlib import md5

import pytest

from onefold.contracts.queue import Attribute
from onefold.local.identifiers import attributes_md5, body_md5, trace_md5


@pytest.mark.parametrize(
    ("attributes", "digest"),
    [
        ({"Foo": Attribute("Bar")}, "ae7155c6026991b6d54b11589678bf9c"),
        ({"Hello": Attribute("There")}, "a311262e065454b75da111d535b8dacd"),
        (
            {
                "WeeksOn": Attribute("6", "Number"),
                "Author": Attribute("John Grisham"),
                "Title": Attribute("The Whistler"),
            },
            "d25a6aea97eb8f585bfa92d314504a92",
        ),
    ],
)
@pytest.mark.conformance(operation="Protocol", case="MD5 of message attributes", source="1.7 MD5 digests [O]")
def test_attributes_recorded_from_aws(attributes, digest):
    assert attributes_md5(attributes) == digest
    assert attributes_md5(dict(reversed(attributes.items()))) == digest


@pytest.mark.conformance(operation="Protocol", case="MD5 of bodies", source="1.7 MD5 digests [O]")
def test_bodies_recorded_from_aws():
    assert body_md5("hello") == "5d41402abc4b2a76b9719d911017c592"
    assert body_md5("fine") == "fff25994ee3941b225ba898fd17d186f"


def test_a_body_is_digested_as_utf_8():
    assert body_md5("grün 🐘") == md5("grün 🐘".encode()).hexdigest()


def test_labels_and_binary_values_count():
    def field(raw: bytes) -> bytes:
        return len(raw).to_bytes(4, "big") + raw

    expected = field(b"a") + field(b"Binary.png") + b"\x02" + field(b"\x00\xff")
    assert attributes_md5({"a": Attribute(b"\x00\xff", "Binary.png")}) == md5(expected).hexdigest()
    assert attributes_md5({"a": Attribute("1", "Number.int")}) != attributes_md5({"a": Attribute("1", "Number")})
    assert attributes_md5({"a": Attribute("x")}) != attributes_md5({"a": Attribute(b"x", "String")})


def test_without_attributes_there_is_no_digest():
    assert attributes_md5({}) is None
    assert trace_md5(None) is None


def test_the_system_attribute_is_digested_like_the_others():
    assert trace_md5("some-trace-id") == attributes_md5({"AWSTraceHeader": Attribute("some-trace-id")})
    assert trace_md5("some-trace-id") == "fdce4f2818803f2f73becc09a54792c0"
