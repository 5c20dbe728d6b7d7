"""`llms.txt` and `llms-full.txt` of the documentation site: its pages as text for language models.

A hook of mkdocs (`hooks:` in mkdocs.yml): written beside the pages when the site is built, from its navigation, so that a
page that is added is listed, and no copy has to be kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
LINE_CHARS_MAX = 200
FULL = (
    "index.md",
    "tutorial.md",
    "guarantees.md",
    "operating.md",
    "how-to/adopt-only-the-guard.md",
    "how-to/agents.md",
)


def on_post_build(config: Mapping[str, Any]) -> None:
    """Write both files; called by mkdocs once the pages are written."""
    site = Path(config["site_dir"])
    (site / "llms.txt").write_text(index(config["nav"]), encoding="utf-8")
    (site / "llms-full.txt").write_text(full(), encoding="utf-8")


def pages(nav: list[Any], section: str = "Start") -> Iterator[tuple[str, str, str]]:
    """Section, title and file of each page of the navigation, in order."""
    for entry in nav:
        for title, below in entry.items():
            if isinstance(below, list):
                yield from pages(below, title)
            else:
                yield section, title, below


def first_sentence(file: str) -> str:
    """What a page says first, as plain text."""
    text = re.sub(r"^```.*?^```", "", (DOCS / file).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    paragraphs = (part.strip() for part in re.split(r"\n\s*\n", text))
    plain = next((one for one in paragraphs if one and one[0] not in "#!<|-`{>["), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"[*`]", "", " ".join(plain.split())))
    sentence = re.split(r"(?<=[.:?!])\s", plain, maxsplit=1)[0].rstrip(":")
    return sentence if len(sentence) <= LINE_CHARS_MAX else sentence[: LINE_CHARS_MAX - 3].rstrip() + "..."


def index(nav: list[Any]) -> str:
    """The text of llms.txt."""
    lines = ["# onefold", "", "> Python background jobs whose effect happens once: on a file, on SQS, in Lambda.", ""]
    section = ""
    for name, title, file in pages(nav):
        if name != section:
            lines += ["", f"## {name}", ""] if section else [f"## {name}", ""]
            section = name
        said = first_sentence(file)
        lines.append(f"- [{title}]({file.removesuffix('.md')}.html)" + (f": {said}" if said else ""))
    return "\n".join(lines) + "\n"


def full() -> str:
    """The text of llms-full.txt."""
    return "\n\n".join((DOCS / file).read_text(encoding="utf-8").strip() for file in FULL) + "\n"
