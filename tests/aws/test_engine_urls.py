"""What an `aws://` URL says: regions of every partition, options with their defaults, and what none of them can be."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from onefold import errors, limits
from onefold.contracts.store import Ask, RecordKey
from onefold.engines import urls
from onefold.engines.urls import open_engine
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock


@pytest.mark.parametrize(
    "region", ["eu-west-1", "us-gov-east-1", "cn-northwest-1", "us-isob-east-1", "mx-central-1", "eusc-de-east-1"]
)
def test_regions_of_every_partition(region: str) -> None:
    assert urls.read_aws(f"aws://{region}") == urls.AwsUrl(region=region)


@pytest.mark.parametrize(
    "region", ["", "shop", "eu-west", "EU-WEST-1", "europe-west1", "e-west-1", "eu-west-x", "eu--1"]
)
def test_what_is_no_region(region: str) -> None:
    with pytest.raises(errors.UsageError, match="names no region"):
        urls.read_aws(f"aws://{region}?table=shop")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("aws://[::1", "host or port is malformed"),
        ("dynamodb://[::1/shop", "host or port is malformed"),
        ("aws://eu-west-1?endpoint=http://[::1", "The option endpoint is not a URL"),
        ("aws://eu-west-1?sqs=http://host:port", "The option sqs is not a URL"),
        ("aws://eu-west-1?endpoint=http://", "The option endpoint is not a URL"),
    ],
)
def test_what_is_no_url_is_said_before_anything_is_opened(url: str, said: str) -> None:
    with pytest.raises(errors.UsageError, match=said):
        urls.open_store(url, clock=ManualClock(), entropy=SeededEntropy(1))


def test_options_say_where_things_are() -> None:
    place = urls.read_aws(
        "aws://eu-west-1?table=shop&prefix=shop-&payloads=bodies/shop/x&create=yes&batch=no"
        "&endpoint=http://127.0.0.1:1&sqs=http://127.0.0.1:2&later=g&later_role=arn:r&later_dead=p-dead"
    )
    assert (place.table, place.prefix, place.bucket, place.folder) == ("shop", "shop-", "bodies", "shop/x")
    assert place.later_dead == "p-dead"
    assert (place.create, place.batched, place.later_group, place.later_role) == (True, False, "g", "arn:r")
    assert place.endpoints == {"*": "http://127.0.0.1:1", "sqs": "http://127.0.0.1:2"}


def test_every_module_that_is_opened_by_name_exists() -> None:
    """Neither mypy nor an import sees these names: a module that was renamed would be missed by who opens its URL."""
    calls = [
        node
        for node in ast.walk(ast.parse(Path(urls.__file__).read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    ]
    named = [node.args[0] for node in calls if isinstance(node.func, ast.Name) and node.func.id == "part"]
    names = {one.value for one in named if isinstance(one, ast.Constant)}
    assert len(names) >= 7
    assert [name for name in names if find_spec(f"onefold.engines.{name}") is None] == []


def test_records_in_a_file_beside_sqs_are_swept(tmp_path: Path) -> None:
    clock = ManualClock()
    url = f"aws://eu-west-1?records=sqlite:///{tmp_path}/records.db"
    engine = open_engine(url, clock=clock, entropy=SeededEntropy(1), owner="me")
    keys = [RecordKey("", "book", str(number)) for number in range(100)]
    asks = [
        Ask(key=key, fingerprint="f" * 32, owner="me", lease_until_ms=clock.now_ms() + 1_000, start=True,
            expires_at_ms=clock.now_ms() + 60_000)
        for key in keys
    ]  # fmt: skip
    engine.store.claim(asks, clock.now_ms())
    for _ in range(10):
        clock.advance(limits.DAY_MS)
        engine.maintain(lambda _: None)
    assert list(engine.records.scan()) == []
    engine.close()
