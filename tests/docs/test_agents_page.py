"""The page for agents: its client talks to the server, the skill's job is tested as it says, and the site has its text."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from onefold.agents.tools import CHANGES, LOOKS
from tests.docs.test_pages import ROOT, blocks, shell, write_files
from tools import llms

PAGE, SKILL = "docs/how-to/agents.md", "skills/onefold/SKILL.md"


@pytest.mark.slow
def test_the_client_of_the_page_sees_the_tools(tmp_path: Path) -> None:
    write_files(SKILL, tmp_path)
    write_files(PAGE, tmp_path)
    shell('onefold send shop:app charge \'{"order_id": "o-1", "pence": 500}\'', tmp_path)
    said = shell(f"{shlex.quote(sys.executable)} ask.py", tmp_path)
    assert str(list(LOOKS)) in said
    assert said.splitlines()[-1] == "orders"


@pytest.mark.slow
def test_the_skills_job_is_tested_as_it_says(tmp_path: Path) -> None:
    write_files(SKILL, tmp_path)
    assert "1 passed" in shell(f"{shlex.quote(sys.executable)} -m pytest -q -p no:cacheprovider test_shop.py", tmp_path)


def test_the_page_names_every_tool() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert [name for name in (*LOOKS, *CHANGES) if f"`{name}`" not in text] == []
    (settings,) = [json.loads(text) for _, title, text in blocks(PAGE) if title == "mcp.json"]
    assert settings["mcpServers"]["onefold"]["args"] == ["mcp", "shop:app"]


def test_the_skill_says_when_to_use_it() -> None:
    """What hosts read of a skill before they load it: name and description, of bounded length."""
    text = (ROOT / SKILL).read_text(encoding="utf-8")
    found = re.match(r"---\nname: ([a-z-]{1,64})\ndescription: ([^\n]{1,1024})\n---\n", text)
    assert found is not None
    assert found[1] == Path(SKILL).parent.name
    assert "Use when" in found[2]
    assert "](" not in text  # it is copied away from these pages


def test_the_site_has_its_text(tmp_path: Path) -> None:
    nav = [
        {"Start": "index.md"},
        {"How-to": [{"Agents": "how-to/agents.md"}, {"On AWS": [{"Deploy": "how-to/deploy-to-aws.md"}]}]},
    ]
    llms.on_post_build({"site_dir": str(tmp_path), "nav": nav})
    text = (tmp_path / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# onefold\n\n> ")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Start", "How-to", "On AWS"]
    assert re.findall(r"^- \[(.+?)\]\((.+?)\): \S", text, re.MULTILINE) == [
        ("Start", "index.html"),
        ("Agents", "how-to/agents.html"),
        ("Deploy", "how-to/deploy-to-aws.html"),
    ]
    assert all(len(line) < 300 for line in text.splitlines())
    assert "on_unknown" in (tmp_path / "llms-full.txt").read_text(encoding="utf-8")
