"""What `onefold synth` writes is clean under every rule, those in preview too."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest

from onefold.check.checking import check
from onefold.check.rules import RULES
from onefold.deploy import cloudformation
from onefold.deploy.plan import DeployPlan
from onefold.deploy.stack import Stack
from tests.deploy import declared, timed

PLANS = {
    "the demo": declared.planned(declared.demo),
    "every option": declared.planned(declared.wide),
    "every option, with a key of the customer's": declared.planned(declared.wide, declared.WIDE),
    "schedules, maps, buses and pipes": timed.planned(),
    "few alarms": timed.planned(Stack(prefix="few-", disposable=True, alarms="few")),
    "schedules and buses with a key": timed.planned(Stack(prefix="key-", kms_key=declared.KEY)),
}


@pytest.mark.parametrize("form", ["json", "yaml"])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_template_of_onefold_has_no_finding(plan: DeployPlan, form: str, tmp_path: Path) -> None:
    file = tmp_path / f"template.{form}"
    file.write_text(json.dumps(cloudformation.template(plan)) if form == "json" else cloudformation.to_yaml(plan))
    checked = check([file], RULES, date(2026, 11, 23))
    assert checked.unread == ()
    assert [f"{one.rule} {one.resource}: {one.message}" for one in checked.findings] == []
