"""Who may ask and from where a change may come: token, cookie, host, origin, read-only, bounds, headers."""

from __future__ import annotations

import re

import pytest

from onefold import errors
from onefold.web import rendering
from onefold.web.application import Page
from onefold.web.safety import Access, cookie_value
from tests.faces.office import Open
from tests.faces.test_held import park
from tests.web.browsing import SAME, TOKEN, Reader, op
from tests.web.conftest import page_of
from tests.web.test_web_pages import fail

CLOSED = {"authorization": ""}


def test_without_the_token_nothing_is_shown(there: Open) -> None:
    fail(there)
    stranger = Reader(page_of(there), CLOSED)
    for path in ("/", "/dead/orders-dead", "/api/status", "/why/book/o-1", "/nothing"):
        got = stranger.get(path)
        assert got.status == 401
        assert "orders" not in got.text
        assert "book" not in got.text
    for guess in ("x", TOKEN[:-1], TOKEN.upper(), cookie_value(TOKEN), "\xff" * 20):
        assert stranger.get("/", authorization=f"Bearer {guess}").status == 401
        assert stranger.get("/", cookie=f"onefold={guess}x").status == 401
    assert stranger.get("/?token=guess").status == 401


def test_what_strangers_ask_for_is_not_kept() -> None:
    before = rendering._static_file.cache_info().currsize
    assert [rendering.static(f"page{number}.css") for number in range(100)] == [None] * 100
    assert rendering.static("page.css") is not None
    assert rendering._static_file.cache_info().currsize <= before + 1


def test_a_cookie_among_others_is_found_and_one_of_another_name_is_not(there: Open) -> None:
    browser = Reader(page_of(there), CLOSED)
    value = browser.get(f"/?token={TOKEN}").headers["set-cookie"].partition(";")[0]
    assert browser.get("/", cookie=f"a=b; {value};c").status == 200
    assert browser.get("/", cookie=f"x{value}").status == 401
    assert browser.get("/", cookie="\\" * 30_000).status == 401


def test_the_token_in_the_address_becomes_a_cookie_that_scripts_and_other_sites_do_not_see(there: Open) -> None:
    browser = Reader(page_of(there), CLOSED)
    got = browser.get(f"/dead?token={TOKEN}&x=1")
    cookie = got.headers["set-cookie"]
    assert TOKEN not in cookie
    assert TOKEN not in got.text
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert 'content="0;url=/dead?x=1"' in got.text
    assert browser.get("/", cookie=cookie.partition(";")[0]).status == 200


def test_what_needs_no_token(there: Open) -> None:
    stranger = Reader(page_of(there), CLOSED)
    assert stranger.get("/healthz").json() == {"status": "ok"}
    assert stranger.get("/static/page.css").headers["content-type"].startswith("text/css")
    assert stranger.get("/static/page.js").status == 200


def test_every_answer_forbids_inline_scripts_and_frames_and_is_not_kept(there: Open, reader: Reader) -> None:
    for path in ("/", "/nothing", "/api/status", "/static/page.js", "/healthz"):
        headers = reader.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; style-src 'self'; script-src 'self'")
        assert "unsafe" not in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"  # with no-referrer browsers send Origin: null with a form


def test_no_page_has_an_inline_script_or_style(there: Open, reader: Reader) -> None:
    message_id = fail(there)
    park(there)
    for path in (
        "/",
        "/dead/orders-dead",
        f"/dead/orders-dead/letters/{message_id}",
        "/held",
        "/why/book/o-1",
        "/runs",
    ):
        text = reader.get(path).text
        assert not re.search(r"\sstyle=|\son\w+=|<style", text)
        assert re.findall(r"<script[^>]*>", text) == ['<script src="/static/page.js" defer>']


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "", "[::2]:80"])
def test_a_name_that_nobody_allowed_is_not_answered(there: Open, host: str) -> None:
    got = Reader(page_of(there)).get("/healthz", host=host)
    assert got.status == 421
    assert "status" not in got.text.partition("<main")[2] or "ok" not in got.text


@pytest.mark.parametrize("host", ["localhost:9400", "127.0.0.1", "[::1]:9400", "ops.localhost", "ops.example:443"])
def test_names_that_are_allowed(there: Open, host: str) -> None:
    assert Reader(page_of(there, hosts=("ops.example",))).get("/", host=host).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site", "origin": "http://localhost"},
        {"sec_fetch_site": "none"},
        {"sec_fetch_site": "same-origin", "origin": "http://evil.example"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {},
    ],
)
def test_a_change_from_elsewhere_is_refused(there: Open, headers: dict[str, str]) -> None:
    park(there)
    browser = Reader(page_of(there), {"authorization": "", "cookie": f"onefold={cookie_value(TOKEN)}"})
    fields = [op(there), ("done", "yes"), ("why", "x")]
    got = browser.post("/held/settle", fields, **headers)
    assert got.status == 403
    assert "Nothing was changed." in got.words
    assert there.session.engine.records.find("p-1")[0].parked


@pytest.mark.parametrize("headers", [SAME, {"sec-fetch-site": "same-origin"}, {"origin": "http://localhost"}])
def test_a_change_from_the_page_itself_is_made(there: Open, headers: dict[str, str]) -> None:
    park(there)
    browser = Reader(page_of(there), {"authorization": "", "cookie": f"onefold={cookie_value(TOKEN)}", **headers})
    got = browser.post("/held/settle", [op(there), ("done", "yes"), ("why", "x")])
    assert "settled as done" in got.words


def test_a_page_that_only_shows_changes_nothing_and_offers_nothing(there: Open) -> None:
    message_id = fail(there)
    park(there)
    reader = Reader(page_of(there, read_only=True))
    got = reader.post("/held/settle", [op(there), ("done", "yes"), ("why", "x")])
    assert (got.status, "is read-only" in got.words) == (403, True)
    assert there.session.engine.records.find("p-1")[0].parked
    for path in ("/held", "/dead/orders-dead", f"/dead/orders-dead/letters/{message_id}", "/dead/orders-dead/redrive"):
        text = reader.get(path).text.partition("<main")[2]
        assert "checkbox" not in text
        assert 'class="button"' not in text
        assert 'class="primary"' not in text


def test_a_form_of_ten_megabytes_is_refused(there: Open, reader: Reader) -> None:
    got = reader.post("/held/settle", {"result": "x" * 10 * 1024 * 1024})
    assert got.status == 413
    assert got.headers["content-security-policy"]


def test_too_many_fields_are_refused(there: Open, reader: Reader) -> None:
    assert reader.post("/held/settle", [("op", str(number)) for number in range(2_000)]).status == 400
    assert reader.get("/?" + "a=1&" * 2_000).status == 400


def test_other_methods_are_refused_and_head_has_no_body(there: Open, reader: Reader) -> None:
    assert reader.get("/", method="DELETE").status == 405
    got = reader.get("/", method="HEAD")
    assert (got.status, got.body) == (200, b"")


def test_a_proxy_names_the_person(there: Open) -> None:
    park(there)
    page = Page(there.session, access=Access(trust_header="X-Forwarded-User"), app=there.office.app)
    assert Reader(page, CLOSED).get("/").status == 401
    grace = Reader(page, {"authorization": "", "x-forwarded-user": "grace", **SAME})
    grace.post("/held/settle", [op(there), ("done", "yes"), ("why", "the bank says so")])
    (deed,) = grace.get("/api/audit").json()["deeds"]
    assert (deed["actor"], deed["event"], deed["reason"]) == ("person:grace", "settled", "the bank says so")


def test_below_a_base_path_all_addresses_begin_with_it(there: Open) -> None:
    fail(there)
    page = Page(there.session, access=Access(token=TOKEN), app=there.office.app, base_path="/ops/")
    reader = Reader(page)
    assert reader.get("/").status == 404
    text = reader.get("/ops/dead/orders-dead").text
    assert re.findall(r'(?:href|src|action)="(?!/ops/|#|\?|")', text) == []
    assert "Path=/ops;" in reader.get(f"/ops/?token={TOKEN}").headers["set-cookie"]


def test_a_page_that_nothing_would_close_is_not_made(there: Open) -> None:
    with pytest.raises(errors.UsageError, match="neither a token"):
        Page(there.session, access=Access())
    with pytest.raises(errors.UsageError, match="has 5 characters"):
        Page(there.session, access=Access(token="short"))
