"""The page about deploying, as a reader would, on ministack: its Lambda and its mapping run the package that was deployed.

Where ministack differs from AWS stands at the end of the page. The page's default runtime is replaced by this interpreter's,
because that is what the emulator's functions run on.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.wheelhouse import offline, repack
from tests.docs.test_pages import ROOT, blocks, shell
from tests.emulators import servers

PAGE = "docs/how-to/deploy-to-aws.md"


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An emulator that every client finds by its environment, and pip without a network."""
    repack("msgspec", tmp_path / "wheels")
    offline(monkeypatch, tmp_path / "wheels")
    with servers.ministack() as url:
        for name, value in (servers.CREDENTIALS | {"AWS_ENDPOINT_URL": url, "AWS_PAGER": ""}).items():
            monkeypatch.setenv(name, value)
        yield


def write_files(folder: Path) -> None:
    here = f'Function(runtime="python{sys.version_info.major}.{sys.version_info.minor}")'
    for language, title, text in blocks(PAGE):
        if language == "python" and title:
            there = text.replace('app.queue("orders")', f'app.queue("orders", function={here})')
            there = there.replace("import App, PermanentError", "import App, Function, PermanentError")
            (folder / title).write_text(there, encoding="utf-8")


@pytest.mark.slow
def test_the_walk_through(tmp_path: Path, aws: None) -> None:
    write_files(tmp_path)
    look, bucket, deploy, send, see, change, remove = [text for language, _, text in blocks(PAGE) if language == "sh"]
    deploy, change = (one.replace("--prefix demo-", "--prefix demo- --alarms few") for one in (deploy, change))
    assert "Prices: us-east-1" in shell(look, tmp_path)
    shell(bucket, tmp_path)
    deployed = shell(deploy.replace("\nonefold deploy", "\nonefold deploy --yes"), tmp_path)
    assert "demo-shop is CREATE_COMPLETE." in deployed
    engine = next(line.split()[-1] for line in deployed.splitlines() if "EngineUrl" in line)
    assert f"ONEFOLD_URL='{engine}'" in send, "the page's URL is not the one that deploying prints"

    assert shell(send, tmp_path).count(": sent as message ") == 4
    exports = send.splitlines()[0]
    wait = "until onefold why o-heavy shop:app | grep -q 'dead-letter queue' && onefold why o-1 shop:app | grep -q duplicate"
    shell(f"{exports}\ntimeout 50 bash -c {f'{wait}; do :; done'!r}", tmp_path)
    seen = shell(see, tmp_path)
    assert "run 1 completed; its record is kept" in seen
    assert "duplicate: returned the stored result" in seen
    assert "the courier takes no parcel of 31.0 kg" in seen
    assert "1 dead letter" in seen

    page = tmp_path / "shop.py"
    page.write_text(page.read_text(encoding="utf-8").replace('timeout="30s"', 'timeout="2m"'), encoding="utf-8")
    changed = shell(change, tmp_path)
    assert "~ Properties.Timeout: " in changed
    assert "~ Properties.VisibilityTimeout: " in changed
    assert "Nothing was changed." in changed
    assert "REPLACE" not in changed
    shell(remove, tmp_path)


@pytest.mark.slow
def test_the_page_says_how_big_the_package_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repack("msgspec", tmp_path / "wheels")
    offline(monkeypatch, tmp_path / "wheels")
    write_files(tmp_path)
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    ((compiled, plain),) = re.findall(r"the zip is ([\d.]+) MB instead of ([\d.]+)", text)
    for option, told in (("", plain), ("--bytecode", compiled)):
        shell(f"onefold package shop:app {option} -o shop.zip", tmp_path)
        found = (tmp_path / "shop.zip").stat().st_size / 1_000_000
        assert 0.85 * float(told) < found < 1.15 * float(told)


def test_the_page_names_the_time_outs_that_are_set() -> None:
    from onefold.engines.aws import session

    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert f"{session.CONNECT_S} s to connect and {session.READ_S} s to read" in text
    assert session.TRIES == 3
    assert "three attempts" in text


def test_the_page_is_linked() -> None:
    assert "deploy-to-aws.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
