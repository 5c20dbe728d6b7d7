"""A job whose key rule changes from one release to the next: its worker says so, once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import onefold
from onefold.admin import payloads
from onefold.admin.session import AdminSession, jobs_of
from onefold.record.key_identity import identity_of
from onefold.record.keys import key_rule
from onefold.runtime.names import state_name_of

WARNED = "does not answer a repeated message"


def release(folder: Path, key: Any, **more: Any) -> onefold.App:
    app = onefold.App("shop", url=f"sqlite:///{folder}/shop.db")

    @app.job(app.queue("orders"), key=key, **more)
    def pay(order: dict[str, str]) -> None: ...

    return app


def start(app: onefold.App) -> None:
    runtime = app.runtime()
    runtime.take_names_of(app.jobs)
    app.close()


def survey(app: onefold.App) -> payloads.PayloadSurvey:
    return payloads.survey(AdminSession(app.runtime(), actor="person:ann", jobs=jobs_of(app)))


def test_a_changed_template_is_reported_at_the_first_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    start(release(tmp_path, "{id}"))
    start(release(tmp_path, "{id}"))
    assert caplog.messages == []
    later = release(tmp_path, "{id}:{pence}")
    (said,) = survey(later).rekeyed
    assert said.startswith("The key rule of pay was '{id}' until now and is '{id}:{pence}'.")
    later.close()
    start(release(tmp_path, "{id}:{pence}"))
    assert caplog.messages == [said]
    assert WARNED in said
    later = release(tmp_path, "{id}:{pence}")
    start(later)
    assert len(caplog.messages) == 1
    assert survey(later).rekeyed == ()
    later.close()


def test_a_new_tenant_rule_and_a_new_rule_under_a_new_name_are_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start(release(tmp_path, "{id}"))
    start(release(tmp_path, "{id}", tenant="{shop}"))
    assert "was '{id}' until now and is '{id}, tenant {shop}'" in caplog.messages[0]
    start(release(tmp_path, "{id}", name="pay_invoice", aliases=["pay"]))
    assert [WARNED in one for one in caplog.messages] == [True, True]


def test_a_sender_takes_a_name_and_its_worker_adds_the_rule(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = release(tmp_path, "{id}", unique=True)
    app.jobs["pay"].send({"id": "1"})
    start(app)
    start(release(tmp_path, "{number}", unique=True))
    assert len(caplog.messages) == 1


def test_a_name_that_an_earlier_version_took_has_no_rule_yet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = release(tmp_path, "{id}")
    app.runtime().take_names(["pay"], "shop")
    start(app)
    assert caplog.messages == []
    app = release(tmp_path, "{id}")
    kept = app.runtime().engine.state.get([state_name_of("pay")])[0]
    assert kept is not None
    assert b'"rule":{"text":"{id}"' in kept.value
    app.close()


def by_id(order: Any) -> object:
    return order["id"]


def by_id_and_set(order: Any) -> object:
    return order["id"] if order["id"] not in {"a", "b", "c"} else next(one for one in order["id"])


def by_id_as_described(order: Any) -> object:
    """The order's id."""
    return order["id"]


def by_id_as_described_anew(order: Any) -> object:
    """What the shop calls the order."""
    return order["id"]


@pytest.mark.parametrize(
    ("before", "now", "differs"),
    [
        (by_id, by_id, False),
        (by_id, lambda order: order["id"], False),
        (by_id, by_id_as_described, False),
        (by_id_as_described, by_id_as_described_anew, False),
        (by_id, lambda order: order["number"], True),
        (by_id, by_id_and_set, True),
        (by_id_and_set, by_id_and_set, False),
        (by_id, "{id}", True),
        ("x" * 300 + "{id}", "x" * 300 + "{no}", True),
    ],
)
def test_functions_are_compared_by_what_they_do(
    before: str | Callable[[Any], object], now: str | Callable[[Any], object], *, differs: bool
) -> None:
    one, other = identity_of(key_rule(before), None), identity_of(key_rule(now), None)
    assert one.differs(other) is differs
