"""The page in Debian's Chromium, on a file with a worker running: each page at three widths in both schemes; each action.

No page may log an error, violate its own content security policy, be wider than the window, or fail axe-core seriously. The
same with scripts switched off, and with the keyboard alone.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from tests.faces.conftest import SHOP
from tests.faces.processes import Commands

pytestmark = pytest.mark.slow

TOKEN = "a-token-for-the-browser"
AXE = Path(__file__).parents[1] / "clients" / "js" / "node_modules" / "axe-core" / "axe.min.js"
DRIVER = "/usr/bin/chromedriver"
WIDTHS = (320, 800, 1400)
SCHEMES = ("light", "dark")
PATIENCE_S = 60
SCHEDULED = """

@app.schedule("cron(0 3 1 1 ? *)", owner="stock")
def stocktaking(tick: onefold.Tick) -> str:
    return "counted"
"""


class Tab:
    """A browser that has the page open.

    Args:
        driver: of Selenium. url: of the page, without a slash at its end.
    """

    def __init__(self, driver: Chrome, url: str) -> None:
        self.driver = driver
        self.url = url

    def go(self, path: str) -> None:
        """Open a page."""
        self.driver.get(self.url + path)

    def one(self, css: str) -> Any:
        """An element, once it is there."""
        return WebDriverWait(self.driver, PATIENCE_S).until(lambda at: at.find_element(By.CSS_SELECTOR, css))

    def press(self, text: str) -> None:
        """Press the button or follow the link with this text."""
        self._click(By.XPATH, f"//main//*[self::a or self::button][normalize-space()='{text}']", 0)

    def choose(self, css: str, count: int = 1) -> None:
        """Click the first `count` elements."""
        for place in range(count):
            self._click(By.CSS_SELECTOR, css, place)

    def _click(self, by: str, what: str, place: int) -> None:
        """Click an element, once it is there; the page may put another in its place just then."""

        def click(at: Chrome) -> bool:
            found = at.find_elements(by, what)
            if len(found) <= place:
                return False
            at.execute_script("arguments[0].scrollIntoView({block: 'center'})", found[place])
            found[place].click()
            return True

        WebDriverWait(self.driver, PATIENCE_S, ignored_exceptions=[StaleElementReferenceException]).until(click, what)

    def write(self, css: str, text: str) -> None:
        """Replace what a field holds."""
        field = self.one(css)
        field.clear()
        field.send_keys(text)

    def sees(self, text: str) -> None:
        """Wait until the page says this."""
        WebDriverWait(self.driver, PATIENCE_S, ignored_exceptions=[StaleElementReferenceException]).until(
            lambda at: text in at.find_element(By.TAG_NAME, "body").text, f"the page does not say {text!r}"
        )

    def trouble(self) -> list[str]:
        """What the console said since the last call; a violation of the policy is an error there."""
        return [one["message"] for one in self.driver.get_log("browser") if one["level"] == "SEVERE"]  # type: ignore[no-untyped-call]


@contextmanager
def browser(*, scripts: bool = True) -> Iterator[Chrome]:
    """A Chromium with a profile of its own."""
    options = ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    with tempfile.TemporaryDirectory() as profile:
        for one in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--lang=en"):
            options.add_argument(one)
        options.add_argument(f"--user-data-dir={profile}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        if not scripts:
            options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
        driver = Chrome(options=options, service=Service(DRIVER))
        try:
            driver.set_page_load_timeout(PATIENCE_S)
            yield driver
        finally:
            driver.quit()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the page of a shop in which something went wrong, with a worker that runs."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.py").write_text(SHOP.read_text("utf-8") + SCHEDULED, "utf-8")
    (folder / "down").touch()
    commands = Commands(folder)
    commands.environment["ONEFOLD_WEB_TOKEN"] = TOKEN
    try:
        for number in range(12):
            commands.run("send", "shop:app", "book", json.dumps({"order_id": f"o-{number}", "city": "Atlantis"}))
        for number in range(3):
            commands.run("send", "shop:app", "charge", json.dumps({"order_id": f"p-{number}", "city": "Nowhere"}))
        commands.run("send", "shop:app", "book", json.dumps({"order_id": "<b>x", "city": "Atlantis\u202e"}))
        commands.run("worker", "shop:app", "--until-empty", "--no-progress")
        commands.start("worker", "shop:app", "--no-progress", "--schedules")
        process = commands.start("web", "shop:app", "--port", "0", "--json")
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"].rstrip("/")
    finally:
        commands.end()


@pytest.fixture(scope="module")
def driver() -> Iterator[Chrome]:
    with browser() as found:
        yield found


@pytest.fixture
def tab(driver: Chrome, served: str) -> Tab:
    found = Tab(driver, served)
    driver.set_window_size(1400, 900)
    found.go(f"/?token={TOKEN}")
    found.sees("Needs a person")
    found.trouble()
    return found


def pages(tab: Tab) -> list[str]:
    """Every page, those of one dead letter too."""
    tab.go("/dead/orders-dead?key=o-1*")
    letter = tab.one("tbody th a").get_attribute("href").removeprefix(tab.url)
    return [
        "/", "/queues/orders", "/dead", "/dead/orders-dead", letter, f"{letter}/edit", "/dead/orders-dead/redrive", "/held",
        "/why?key=o-1", f"/why/book/{quote('<b>x', safe='')}",
        "/why", "/runs", "/schedules", "/alarms", "/alarms/silence?name=dlq-not-empty", "/workers", "/audit", "/nothing",
    ]  # fmt: skip


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_page_at_every_width(tab: Tab, scheme: str) -> None:
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    tab.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    axe = AXE.read_text(encoding="utf-8")
    for path in pages(tab):
        tab.go(path)
        for width in WIDTHS:
            size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
            tab.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            wide = tab.driver.execute_script("return document.documentElement.scrollWidth")
            assert wide <= width, f"{path} is {wide} pixels wide in a window of {width}"
        found = tab.driver.execute_cdp_cmd(
            "Runtime.evaluate",
            {"expression": f"{axe};axe.run().then(a => JSON.stringify(a.violations))", "awaitPromise": True},
        )
        assert "exceptionDetails" not in found, found
        serious = [one for one in json.loads(found["result"]["value"]) if one["impact"] in ("serious", "critical")]
        shown = [(one["id"], one["nodes"][0]["html"][:200]) for one in serious]
        assert shown == [], f"{path}, {scheme}: {shown}"
        logged = [one for one in tab.trouble() if "404" not in one]  # a page that says that there is none
        assert logged == [], path
    tab.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_dead_letter_is_edited_and_sent_back(tab: Tab) -> None:
    tab.go("/dead/orders-dead?key=o-3")
    tab.choose("tbody th a")
    tab.sees("A redrive would")
    tab.press("Edit…")
    tab.write("textarea", '{"order_id": "o-3", "city": "London"}')
    tab.press("Check")
    tab.sees('+  "city": "London"')
    tab.write("input[name=why]", "the customer moved")
    tab.press("Save")
    tab.sees("A redrive would")
    tab.press("Redrive…")
    tab.sees("1 run")
    tab.write("input[name=why]", "corrected")
    tab.press("Send them back")
    tab.sees("Done: 1 finished")
    tab.go("/why/book/o-3")
    tab.sees("edit")
    tab.sees("completed")
    tab.go("/audit")
    tab.sees("corrected")
    assert tab.trouble() == []


def test_the_chosen_are_previewed_and_a_fix_that_does_not_work_stops(tab: Tab) -> None:
    tab.go("/dead/orders-dead")
    tab.choose("main input[name=id]", 7)
    tab.press("Redrive the chosen…")
    tab.sees("Redrive 7 of orders-dead")
    tab.write("input[name=why]", "is it back?")
    tab.write("input[name=stop_after]", "2")
    tab.press("Send them back")
    tab.sees("Stopped by itself")
    assert tab.trouble() == []


def test_held_operations_are_settled(tab: Tab) -> None:
    tab.go("/held")
    assert len(tab.driver.find_elements(By.CSS_SELECTOR, "input[name=op]")) == 3
    tab.choose("input[name=op]", 2)
    tab.press("Settle the chosen…")
    tab.sees("Did the effect happen?")
    tab.one("input[value=yes]").click()
    tab.write("input[name=why]", "the bank says so")
    tab.press("Settle 2")
    tab.sees("settled as done")
    tab.go("/held")
    assert len(tab.driver.find_elements(By.CSS_SELECTOR, "input[name=op]")) == 1
    assert tab.trouble() == []


def test_all_alarms_are_silenced(tab: Tab) -> None:
    tab.go("/alarms")
    tab.press("Silence all alarms…")
    tab.sees("nothing is sent about any alarm")
    tab.write("input[name=why]", "planned work")
    tab.press("Silence")
    tab.sees("all alarms")
    tab.sees("planned work")
    assert tab.trouble() == []


def test_it_refreshes_and_keeps_what_is_open(tab: Tab) -> None:
    tab.go("/held")
    tab.choose("main details summary")
    before = tab.driver.execute_script("return document.querySelector('main table')")
    WebDriverWait(tab.driver, PATIENCE_S).until(
        lambda at: at.execute_script("return document.querySelector('main table')") != before
    )
    assert tab.one("main details").get_attribute("open") is not None
    tab.one("#live button").click()
    assert "paused" in tab.one("#live").text
    assert tab.trouble() == []


def test_with_the_keyboard_alone(tab: Tab) -> None:
    tab.go("/dead/orders-dead?key=o-5")
    at: Callable[[], Any] = lambda: tab.driver.switch_to.active_element  # noqa: E731 - asked again after each key
    tab.one("body").send_keys(Keys.TAB)
    assert at().text == "To the content"
    at().send_keys(Keys.ENTER)
    for _ in range(40):
        at().send_keys(Keys.TAB)
        if at().get_attribute("name") == "id":
            break
    at().send_keys(Keys.SPACE)
    assert at().is_selected()
    for _ in range(40):
        at().send_keys(Keys.TAB)
        if at().text == "Redrive the chosen…":
            break
    at().send_keys(Keys.ENTER)
    tab.sees("Redrive 1 of orders-dead")


def test_a_schedule_is_run_now_paused_and_resumed(tab: Tab) -> None:
    tab.go("/schedules")
    tab.press("Run now…")
    tab.sees("would be sent to")
    tab.write("input[name=why]", "the auditors are here")
    tab.press("Run it now")
    tab.sees("stocktaking/")
    tab.sees("complete")  # by the worker that runs
    for word, opposite in (("Pause", "Resume"), ("Resume", "Pause")):
        tab.go("/schedules")
        tab.press(f"{word}…")
        tab.sees(f"{word} stocktaking")
        tab.write("input[name=why]", "the warehouse moves")
        tab.press(word)
        tab.sees(f"{opposite}…")
    tab.go("/audit")
    tab.sees("the auditors are here")
    tab.sees("the warehouse moves")
    assert tab.trouble() == []


def test_with_scripts_off(served: str) -> None:
    with browser(scripts=False) as driver:
        tab = Tab(driver, served)
        tab.go(f"/?token={TOKEN}")
        tab.sees("Needs a person")
        tab.sees("Refresh")
        tab.go("/dead/orders-dead?key=o-7")
        tab.choose("main input[name=id]")
        tab.choose("main form[method=post] button")
        tab.sees("Redrive 1 of orders-dead")
        tab.one("input[name=why]").send_keys("without scripts")
        tab.one("button.primary").click()
        tab.sees("Redrive of orders-dead")
        assert tab.trouble() == []


def test_a_worker_is_drained_and_ends(tab: Tab) -> None:
    """Last on this shop: nothing runs there any more."""
    tab.go("/workers")
    tab.press("Drain…")
    tab.sees("releases what it has not started, and ends")
    tab.write("input[name=why]", "the host is rebooted")
    tab.press("Drain it")
    tab.sees("Workers")
    tab.sees("No worker is running")
    tab.go("/audit")
    tab.sees("the host is rebooted")
    assert tab.trouble() == []


def test_a_page_outlives_an_upgrade_of_the_file(tab: Tab, tmp_path: Path) -> None:
    """A newer onefold has opened the file and changed its tables: the page says so, and what to do."""
    shutil.copy(SHOP, tmp_path)
    commands = Commands(tmp_path)
    commands.environment["ONEFOLD_WEB_TOKEN"] = TOKEN
    try:
        commands.run("send", "shop:app", "book", json.dumps({"order_id": "o-1"}))
        process = commands.start("web", "shop:app", "--port", "0", "--json")
        assert process.stdout is not None
        other = Tab(tab.driver, json.loads(process.stdout.readline())["url"].rstrip("/"))
        other.go(f"/?token={TOKEN}")
        other.sees("Queues")
        (file,) = (tmp_path / ".onefold").glob("*.db")
        with closing(sqlite3.connect(file)) as newer:
            newer.execute("PRAGMA user_version = 99")
            newer.execute("ALTER TABLE onefold_record RENAME COLUMN updated_at_ms TO changed_at_ms")
            newer.commit()
        other.go("/held")
        other.sees("has schema version 99 now")
        other.sees("Restart this process")
        assert [one for one in other.trouble() if "503" not in one] == []
    finally:
        commands.end()
