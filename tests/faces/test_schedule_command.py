"""`onefold schedule`: list, a tick now, pausing, on the command line."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from tests.faces.conftest import Shell


def billed(shell: Shell) -> None:
    shutil.copy(Path(__file__).with_name("billing.py"), shell.folder)
    sys.modules.pop("billing", None)
    (shell.folder / "customers").write_text("ada grace", encoding="utf-8")
    shell("scheduler", "billing:app", "--once")


def test_a_schedule_is_listed_paused_and_goes_on(shell: Shell) -> None:
    billed(shell)
    (one,) = shell.json("schedule", "list", "billing:app")["schedules"]
    assert (one["schedule"], one["phase"], one["sent"]) == ("monthly_billing", "on", 0)
    assert shell("schedule", "pause", "monthly_billing", "billing:app") == "monthly_billing is paused.\n"
    assert shell("schedule", "pause", "monthly_billing", "billing:app") == "monthly_billing was paused already.\n"
    assert "paused, " in shell("schedule", "list", "billing:app")
    said = shell("scheduler", "billing:app", "--once")
    assert "paused: monthly_billing; onefold schedule resume monthly_billing resumes it" in said
    assert "next: nothing; every schedule with a further tick is paused" in said
    assert shell.json("scheduler", "billing:app", "--once")["paused"] == ["monthly_billing"]
    said = shell("status", "billing:app")
    assert "Schedule monthly_billing of the app billing has been paused for " in said
    assert "onefold schedule resume monthly_billing billing:app" in said
    assert "paused" not in shell("status", "billing:app", "--queue", "billing-schedules")
    assert shell("schedule", "resume", "monthly_billing", "billing:app") == "monthly_billing is resumed.\n"
    assert shell.json("schedule", "resume", "monthly_billing", "billing:app")["changed"] is False
    assert "paused" not in shell("status", "billing:app")


def test_a_tick_is_sent_once_under_its_own_key(shell: Shell) -> None:
    billed(shell)
    (one,) = shell.json("schedule", "list", "billing:app")["schedules"]
    sent = shell.json("schedule", "run-now", "monthly_billing", "billing:app", "--reason-text", "for the audit")
    assert (sent["run"], sent["queue"]) == (one["next_key"], "billing-schedules")
    planned = sent["run"].partition("/")[2]
    said = shell.fails("schedule", "run-now", "monthly_billing", "billing:app", "--tick", planned)
    assert "was sent already" in said
    assert "has no tick at" in shell.fails(
        "schedule", "run-now", "monthly_billing", "billing:app", "--tick", "2026-06-01T02:30:00Z"
    )
    assert "was sent already, ahead of its time" in shell.fails("schedule", "run-now", "monthly_billing", "billing:app")
    (comes,) = shell.json("scheduler", "billing:app", "--once")["next"]
    assert comes["at"] > planned, "what comes next is not what was sent by hand"
    told = shell("why", "monthly_billing", planned[:10], "billing:app", code=1)
    assert re.search(r"fired .*, by hand, by \S+: for the audit", told), told
    assert "dispatched  nothing yet" in told
    year = f"{int(planned[:4]) + 1}-01-02"
    drawn = " ".join(shell("calendar", "billing:app", "--to", year, "--tz", "UTC").split())
    assert f"{sent['run']} (sent ahead of its time)" in drawn
    shell("schedule", "pause", "monthly_billing", "billing:app")
    assert "(paused)" in shell("calendar", "billing:app", "--to", f"{int(planned[:4]) + 2}-01-02")
    shell("schedule", "resume", "monthly_billing", "billing:app")
    assert "Did you mean 'monthly_billing'?" in shell.fails("schedule", "pause", "monthly_biling", "billing:app")
