"""What a person needs on AWS: the operators' commands call nothing that the page's table does not name for them.

On ministack, which checks no permission itself: every call of boto3 is noted with its IAM actions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from botocore.client import BaseClient

from onefold.cli import main
from onefold.deploy.iam import GRANTS
from tests.deploy.test_permissions import needs
from tests.docs.test_pages import ROOT, shell
from tests.emulators import servers

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "iam.md"
URL = "aws://eu-west-1?table=shop&prefix=shop-"
SHOP = """
import onefold

app = onefold.App("shop")
orders = app.queue("orders")


@app.job(orders, key="{id}", on_unknown="hold")
def ship(order: dict) -> str:
    if order["id"].startswith("bad"):
        raise onefold.PermanentError("no address")
    if order["id"].startswith("lost"):
        raise onefold.OutcomeUnknown("no answer")
    return order["id"]
"""
LOOK = ["status", "why nothing", "dlq list", "held list", "runs list", "stuck", "queue peek orders-dead"]
ACT = [
    "dlq edit --key bad-1 --set id=o-9 --new-key", "dlq redrive --key bad-2 --no-watch", "held settle lost-1 --done",
    "held settle lost-2 --not-done", "dlq purge --key bad-3 --yes", "queue purge orders --yes",
]  # fmt: skip


def listed(row: str) -> set[str]:
    """The actions of a row of the page's table, by the first words of the row."""
    (text,) = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {row}")]
    return set(re.findall(r"`((?:sqs|dynamodb):\w+)`", text))


@contextmanager
def noted() -> Iterator[set[str]]:
    """The IAM actions of all calls of boto3 in the block."""
    found: set[str] = set()
    real = BaseClient._make_api_call

    def note(self: Any, operation: str, asked: dict[str, Any]) -> Any:
        service = self.meta.service_model.service_name
        if service == "sqs":
            found.add(f"sqs:{operation.removesuffix('Batch')}")
        else:
            found.update(action for action, _ in needs(service, operation, asked))
        return real(self, operation, asked)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(BaseClient, "_make_api_call", note)
        yield found


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An app on an emulator, with work done, dead and held."""
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    with servers.ministack() as url:
        for name, value in (servers.CREDENTIALS | {"AWS_ENDPOINT_URL": url, "ONEFOLD_URL": URL}).items():
            monkeypatch.setenv(name, value)
        there = f"export ONEFOLD_URL='{URL}&create=yes'"
        ids = ["o-1", "o-1", "bad-1", "bad-2", "bad-3", "lost-1", "lost-2"]
        shell(f'{there}; python -c "import shop; shop.ship.send_many([dict(id=one) for one in {ids}])"', tmp_path)
        shell(f"{there}; onefold worker shop:app --until-empty --no-progress", tmp_path)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        yield tmp_path


def test_the_operators_commands_need_what_the_page_says(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    look, act, change = listed("look"), listed("redrive"), listed("change settings")
    for commands, allowed in ((LOOK, look), (ACT, look | act), (["queue apply --yes"], change)):
        for command in commands:
            with noted() as found:
                assert main.run([*command.split(), "shop:app"]) == 0, capsys.readouterr()
            assert found - allowed == set(), command


def test_a_worker_needs_what_the_page_says(shop: Path) -> None:
    send = "import shop; shop.ship.send_many([dict(id='o-2'), dict(id='bad-4')])"
    shell(f"export ONEFOLD_URL='{URL}'; python -c \"{send}\"", shop)
    section = PAGE.read_text(encoding="utf-8").partition("## What a resident worker may do")[2].partition("##")[0]
    always = section.partition(";")[0]  # what follows is for apps with more than this one has
    named = {action for grant in GRANTS.values() if f"`{grant.sid}`" in always for action in grant.actions}
    sids = set(re.findall(r"`([A-Z][A-Za-z]+)`", section))
    assert {"TakeFromItsQueue", "PutEvents", "FindQueues"} < sids <= {grant.sid for grant in GRANTS.values()}
    with noted() as found:
        assert main.run(["worker", "shop:app", "--until-empty", "--no-progress"]) == 0
    assert found - named == {action for action in found if f"`{action}`" in section} != set()
