"""A map run whose file, listing and results are in S3 (moto): the same reading, the same refusals, the manifest's keys."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

import onefold
from onefold import errors
from onefold.admin import maps
from onefold.maps.formats import count, read
from onefold.maps.mapper import Mapper
from onefold.maps.rules import ItemReader
from onefold.maps.sources import S3Source, changed
from onefold.testing.inline import inline
from tests.emulators import servers
from tests.maps.map_world import RUN, Mill, drive

pytestmark = pytest.mark.slow
BUCKET = "nightly"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with servers.moto() as url:
        yield url


@pytest.fixture
def s3(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, value in (
        ("AWS_ENDPOINT_URL_S3", endpoint), ("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test"),
        ("AWS_REGION", "us-east-1"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    client.create_bucket(Bucket=BUCKET)
    yield client
    for one in client.list_objects_v2(Bucket=BUCKET).get("Contents", ()):
        client.delete_object(Bucket=BUCKET, Key=one["Key"])
    client.close()


def csv(count: int) -> bytes:
    return b"id,qty\n" + b"".join(b"%d,%d\n" % (number, number) for number in range(count))


@pytest.mark.parametrize("name", ["in.csv", "in.csv.gz"])
def test_an_object_is_read_from_behind_every_item(s3: Any, name: str) -> None:
    s3.put_object(Bucket=BUCKET, Key=name, Body=gzip.compress(csv(30)) if name.endswith("gz") else csv(30))
    source = S3Source(f"s3://{BUCKET}/{name}", s3)
    whole = list(read(source, ItemReader()))
    assert count(source, ItemReader()) == 30
    for place, one in enumerate(whole):
        assert list(read(source, ItemReader(), one.end)) == whole[place + 1 :]


def test_an_object_that_has_changed_is_another_and_one_that_is_gone_is_none(s3: Any) -> None:
    s3.put_object(Bucket=BUCKET, Key="in.csv", Body=csv(3))
    source = S3Source(f"s3://{BUCKET}/in.csv", s3)
    before = source.identity()
    s3.put_object(Bucket=BUCKET, Key="in.csv", Body=csv(3).replace(b"2", b"9"))
    with pytest.raises(errors.NotFoundError, match="PreconditionFailed"):
        list(read(source, ItemReader()))
    assert changed(before, source.identity()) is not None
    s3.delete_object(Bucket=BUCKET, Key="in.csv")
    with pytest.raises(errors.NotFoundError, match="cannot be read"):
        source.identity()


def test_a_run_from_s3_to_s3(s3: Any, tmp_path: Path) -> None:
    s3.put_object(Bucket=BUCKET, Key="in.csv.gz", Body=gzip.compress(csv(25)))
    mill = Mill(tmp_path, results=f"s3://{BUCKET}/out")
    with inline(mill.app) as world:
        maps.start(mill.app, "grind", run=RUN, items=f"s3://{BUCKET}/in.csv.gz", turns=False)
        found = drive(mill, world)
        assert (found.status, found.done) == ("succeeded", 25)
    manifest = json.loads(s3.get_object(Bucket=BUCKET, Key=f"out/{RUN}/manifest.json")["Body"].read())
    (listed,) = manifest["ResultFiles"]["SUCCEEDED"]
    assert manifest["DestinationBucket"] == BUCKET
    assert listed["Key"] == f"out/{RUN}/SUCCEEDED_0.json"
    body = s3.get_object(Bucket=BUCKET, Key=listed["Key"])["Body"].read()
    assert (len(json.loads(body)), len(body)) == (25, listed["Size"])


def test_a_prefix_is_listed_as_step_functions_does(s3: Any, tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        s3.put_object(Bucket=BUCKET, Key=f"in/{name}.pdf", Body=name.encode())
    app = onefold.App("listing")
    seen: list[dict[str, Any]] = []

    @app.map(app.queue("files"), key="{Key}", items="listing", results=str(tmp_path / "results"))
    def look(file: dict[str, Any]) -> None:
        seen.append(file)

    with inline(app) as world:
        maps.start(app, "look", run=RUN, items=f"s3://{BUCKET}/in/", turns=False)
        mapper = Mapper(app.runtime(), look, RUN)
        while not mapper.over:
            mapper.advance()
            world.run()
        assert maps.progress(app, RUN).status == "succeeded"
    assert [one["Key"] for one in seen] == ["in/a.pdf", "in/b.pdf", "in/c.pdf"]
    assert sorted(seen[0]) == ["Etag", "Key", "LastModified", "Size", "StorageClass"]
