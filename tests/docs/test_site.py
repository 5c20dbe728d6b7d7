"""The documentation site in a real browser: nothing comes from elsewhere, and it can be read on a phone and in the dark."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from onefold.observe.alarms import ALARMS
from tests.docs.test_pages import ROOT
from tools.browser import Browser, Page, browser

pytestmark = pytest.mark.slow

PHONE, DESK = 380, 1280
NO_MOTION = "document.head.insertAdjacentHTML('beforeend', '<style>* { transition: none !important }</style>')"
MEASURE = """({
  width: document.documentElement.scrollWidth,
  broken: [...document.querySelectorAll('td code, th code')]
    .filter(code => code.getClientRects().length > 1).map(code => code.textContent)
})"""


class Visit(NamedTuple):
    """What one page did: the URLs it asked for, and by the window's width how wide it was and which code it broke."""

    requests: list[str]
    errors: list[str]
    widths: dict[int, int]
    broken: dict[int, list[str]]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing on standard error for each file."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    site = tmp_path_factory.mktemp("docs") / "site"
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(site)],
        cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True,
    )  # fmt: skip
    return site


@pytest.fixture(scope="module")
def base(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium") / "profile") as running:
        yield running


@pytest.fixture
def page(chromium: Browser) -> Page:
    return chromium.page()


def visits(folder: Path, base: str, page: Page) -> Iterator[tuple[str, Visit]]:
    """Every page of the site, opened once; of the decisions, which look alike, the last ones."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.html"))
    for name in [name for name in names if not re.match(r"decisions/00[0-2]", name)]:
        page.resize(PHONE, 800)
        page.requests.clear()
        page.errors.clear()
        page.open(base + name)
        page.evaluate(NO_MOTION)
        phone = page.evaluate(MEASURE)
        page.resize(DESK, 800)
        desk = page.evaluate(MEASURE)
        yield (
            name,
            Visit(
                [url for url in page.requests if not url.startswith((base, "data:"))],
                list(page.errors),
                {PHONE: phone["width"], DESK: desk["width"]},
                {PHONE: phone["broken"], DESK: desk["broken"]},
            ),
        )


def test_every_page_by_itself_on_a_phone_and_on_a_desk(folder: Path, base: str, page: Page) -> None:
    index = folder / "search" / "search_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"docs": []}))  # each page would index all of them
    found = dict(visits(folder, base, page))
    assert {"index.html", "guarantees.html", "how-to/deploy-to-aws.html", "decisions/index.html"} <= set(found)
    assert {name: visit.requests for name, visit in found.items() if visit.requests} == {}, "from elsewhere"
    assert {name: visit.errors for name, visit in found.items() if visit.errors} == {}
    for width in (PHONE, DESK):
        wide = {name: visit.widths[width] for name, visit in found.items() if visit.widths[width] != width}
        assert wide == {}, f"at {width} pixels these scroll sideways"
        broken = {name: visit.broken[width] for name, visit in found.items() if visit.broken[width]}
        assert broken == {}, f"at {width} pixels code in a table is broken into lines"


def test_every_alarm_leads_to_its_runbook(folder: Path) -> None:
    for one in ALARMS.values():
        page, _, anchor = one.runbook.partition("#")
        assert f'id="{anchor}"' in (folder / page).read_text(encoding="utf-8"), one.runbook


CONTRAST = """
(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const light = colour => {
    canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const back = element => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (!/, 0\\)$|transparent/.test(colour)) return colour;
    }
    return 'white';
  };
  const found = {};
  for (const selector of ['h1', 'p', 'p a', 'td', 'td code', 'pre code', 'svg text', '.md-tabs__link', '.md-button']) {
    for (const element of document.querySelectorAll(`:is(.md-content, .md-header, .md-tabs) ${selector}`)) {
      const style = getComputedStyle(element);
      const [a, b] = [light(element.namespaceURI.endsWith('svg') ? style.fill : style.color), light(back(element))];
      const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      found[selector] = Math.min(found[selector] ?? 99, ratio);
    }
  }
  return found;
})()
"""


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(base: str, page: Page, colours: str) -> None:
    page.resize(DESK, 800)
    page.prefer(colours)
    for name in ("index.html", "guarantees.html"):
        page.open(base + name)
        ratios = page.evaluate(CONTRAST)
        assert min(ratios.values()) >= 4.5, (name, ratios)  # WCAG 2.2, level AA
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert back == {"light": "rgb(251, 250, 246)", "dark": "rgb(20, 24, 29)"}[colours]


def test_the_first_page_has_its_drawing_in_it(base: str, page: Page) -> None:
    page.open(base + "index.html")
    assert "outcome unknown" in page.evaluate("document.querySelector('figure svg').textContent")
    assert page.evaluate("document.querySelectorAll('.roles a').length") > 15
