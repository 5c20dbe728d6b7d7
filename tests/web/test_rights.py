"""Who may do what: roles that a trusted proxy or the application names, for each kind of change; fields that are hidden."""

from __future__ import annotations

import json
from urllib.parse import urlencode

import pytest

from onefold import errors
from onefold.web.application import Page
from onefold.web.hiding import Hiding
from onefold.web.safety import Access
from tests.faces.office import Open, Order
from tests.faces.test_held import park
from tests.faces.test_workers import states, there_is
from tests.web.browsing import SAME, TOKEN, Reader, op
from tests.web.test_web_pages import fail

SETTLED = [("done", "yes"), ("why", "the bank says so")]
GROUPS = "x-forwarded-groups"
ACCESS = Access(
    trust_header="X-Forwarded-User", roles_header="X-Forwarded-Groups", roles={"support": "operator", "sre": "admin"}
)


def person(there: Open, groups: str) -> Reader:
    """Grace, who is in these groups."""
    page = Page(there.session, access=ACCESS, app=there.office.app)
    return Reader(page, {"authorization": "", "x-forwarded-user": "grace", GROUPS: groups, **SAME})


def test_without_a_group_that_has_a_role_nothing_is_shown(there: Open) -> None:
    fail(there)
    for groups in ("", "staff", "operators", "Admin"):
        got = person(there, groups).get("/")
        assert (got.status, "orders" in got.text) == (403, False), groups


def test_a_viewer_sees_and_changes_nothing(there: Open) -> None:
    park(there)
    fail(there)
    there_is(there)
    viewer = person(there, "staff, viewer")
    assert "p-1" in viewer.get("/held").words
    assert "viewer" in viewer.get("/").words
    got = viewer.post("/held/settle", [op(there), *SETTLED])
    assert (got.status, "role is viewer" in got.words) == (403, True)
    assert there.session.engine.records.find("p-1")[0].parked
    for path in ("/held", "/dead/orders-dead", "/workers", "/alarms"):
        text = viewer.get(path).text.partition("<main")[2]
        assert not any(one in text for one in ("checkbox", 'class="button"', 'class="primary"')), path


def test_an_operator_deals_with_single_things_and_not_with_all(there: Open) -> None:
    park(there)
    fail(there)
    there_is(there)
    operator = person(there, "support")
    assert "settled as done" in operator.post("/held/settle", [op(there), *SETTLED]).words
    fail(there, "o-3")
    some = operator.get("/dead/orders-dead/redrive?key=o-1")
    fields = {"key": "o-1", "seen": some.field("seen"), "why": "x"}
    assert operator.post("/dead/orders-dead/redrive", fields).status == 303
    fail(there, "o-2")
    every = operator.get("/dead/orders-dead/redrive?older=0s")
    assert "needs the role admin" in every.words
    assert 'class="primary"' not in every.text
    every = person(there, "sre").get("/dead/orders-dead/redrive?older=0s")
    fields = {"older": "0ms", "seen": every.field("seen"), "typed": "orders-dead", "why": "x"}
    for path, form in (
        ("/dead/orders-dead/redrive", fields),
        (
            "/alarms/silence",
            {"name": "*", "seen": operator.get("/alarms/silence?name=*").field("seen"), "for": "1h", "why": "x"},
        ),
        ("/workers/w-1/drain", {"why": "x"}),
    ):
        got = operator.post(path, form)
        assert (got.status, "needs the role admin, and yours is operator" in got.words) == (403, True), path
    assert states(there) == {"w-1": "idle"}
    assert "Redrive all" not in operator.get("/dead/orders-dead").words
    assert "Drain…" not in operator.get("/workers").words
    actors = {one["actor"] for one in operator.get("/api/audit").json()["deeds"]}
    assert actors == {"person:grace"}


def test_an_admin_may_do_all_and_the_highest_role_counts(there: Open) -> None:
    there_is(there)
    assert person(there, "viewer,support,sre").post("/workers/w-1/drain", {"why": "x"}).status == 303
    assert states(there) == {"w-1": "draining"}


def test_the_application_may_name_the_role(there: Open) -> None:
    there_is(there)
    people = {"grace": ("grace", "operator"), "ada": "ada", "eve": ("eve", "queen")}
    access = Access(identify=lambda scope: people.get(dict(scope["headers"])[b"x-who"].decode()))  # type: ignore[arg-type, return-value]
    page = Page(there.session, access=access, app=there.office.app)

    def drain(name: str) -> int:
        return (
            Reader(page, {"authorization": "", "x-who": name, **SAME}).post("/workers/w-1/drain", {"why": "x"}).status
        )

    assert [drain(name) for name in ("nobody", "eve", "grace", "ada")] == [401, 403, 403, 303]


def test_roles_need_a_proxy_and_are_the_three(there: Open) -> None:
    with pytest.raises(errors.UsageError, match="no header names the user"):
        Page(there.session, access=Access(token=TOKEN, roles_header="X-Forwarded-Groups"))
    with pytest.raises(errors.UsageError, match="'root' is not a role"):
        Page(there.session, access=Access(trust_header="X-User", roles={"sre": "root"}))  # type: ignore[dict-item]


# -- hidden fields -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "text", "shown"),
    [
        (("email",), '{"Email":"a@b","n":12345678901234567890.10}', '{"Email":"(hidden)","n":12345678901234567890.10}'),
        (
            ("card.number",),
            '{"card":{"number":"4","x":1},"number":2}',
            '{"card":{"number":"(hidden)","x":1},"number":2}',
        ),
        (("number",), '[{"number":{"deep":1}}]', '[{"number":"(hidden)"}]'),
        (("ail",), '{"email":1}', '{"email":1}'),
        (("email",), "not JSON: a@b", "(hidden)"),
        (("email",), "[" * 5_000 + "]" * 5_000, "(hidden)"),
        (("email",), '{"n":NaN}', "(hidden)"),
        ((), '{"email":1}', '{"email":1}'),
        (("email",), r'{"t":" \ufeff{\"email\":1}"}', r'{"t":"{\"email\":\"(hidden)\"}"}'),
        (("email",), r'{"t":"{\"\\u0065mail\":1} x"}', '{"t":"(hidden)"}'),
        (("email",), r'{"t":"{\"name\":1} x"}', r'{"t":"{\"name\":1} x"}'),
    ],
)
def test_fields_are_hidden_wherever_they_are(fields: tuple[str, ...], text: str, shown: str) -> None:
    assert Hiding(fields=fields).body(text) == shown


def test_a_hidden_field_is_on_no_page_and_cannot_be_guessed(there: Open) -> None:
    park(there)
    message_id = fail(there, city="secret-town")
    there.office.book.send(Order("o-3", "secret-town"))
    page = Page(there.session, access=Access(token=TOKEN), app=there.office.app, hide_fields=["City", "label"])
    reader = Reader(page)
    letter = f"/dead/orders-dead/letters/{message_id}"
    for path in ("/queues/orders", letter, "/held", "/why/book/o-1", "/dead/orders-dead"):
        for prefix in ("", "/api"):
            got = reader.get(prefix + path)
            assert (got.status, "secret-town" in got.text) == (200, False), path
    assert '"order_id": "o-1"' in reader.get(letter).words
    for path in ("/dead/orders-dead?contains=secret", "/dead/orders-dead/redrive?contains=secret", f"{letter}/edit"):
        got = reader.get(path)
        assert (got.status, "hidden" in got.words) == (400, True), path


@pytest.mark.parametrize("access", [{"read_only": True}, {}])
def test_a_payload_is_not_shown_for_editing_to_somebody_who_cannot_save_it(
    there: Open, access: dict[str, bool]
) -> None:
    """A page masks what is called a password; a form to edit cannot."""
    letter = f"/dead/orders-dead/letters/{fail(there, city='password=hunter22')}"
    if access:
        reader = Reader(Page(there.session, access=Access(token=TOKEN, read_only=True), app=there.office.app))
    else:
        reader = person(there, "viewer")
    got = reader.get(f"{letter}/edit")
    assert (got.status in (400, 403), "hunter22" in got.text) == (True, False)
    assert "hunter22" not in reader.get(letter).text
    assert person(there, "support").get(f"{letter}/edit").status == 200


def test_forms_are_not_drawn_for_those_who_may_not_send_them(there: Open) -> None:
    park(there)
    fail(there)
    there_is(there)
    viewer, operator = person(there, "viewer"), person(there, "support")
    for path in (
        f"/held/settle?{urlencode([op(there)])}",
        "/alarms/silence?name=*",
        "/workers/w-1/drain",
        "/dead/orders-dead/redrive?key=o-1",
    ):
        assert operator.get(path).status == viewer.get(path).status == 200, path
        assert ('name="why"' in operator.get(path).text, 'name="why"' in viewer.get(path).text) == (True, False), path


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            '{"Message":"{\\"email\\":\\"a@b\\",\\"n\\":1.50}"}',
            '{"Message":"{\\"email\\":\\"(hidden)\\",\\"n\\":1.50}"}',
        ),
        ('{"m":" [[{\\"email\\":1}]]"}', '{"m":"[[{\\"email\\":\\"(hidden)\\"}]]"}'),
        (
            json.dumps(json.dumps(json.dumps({"email": "a@b"}))),
            json.dumps(json.dumps(json.dumps({"email": "(hidden)"}))).replace(": ", ":"),
        ),
        ('{"m":"{\\"email\\": \\"cut o"}', '{"m":"(hidden)"}'),
        ('{"m":"[urgent] call me","n":"{x}"}', '{"m":"[urgent] call me","n":"{x}"}'),
        ('{"m":"{\\"b\\":  1}"}', '{"m":"{\\"b\\":  1}"}'),
    ],
)
def test_fields_are_hidden_in_json_inside_of_texts(text: str, shown: str) -> None:
    hiding = Hiding(fields=("email",))
    assert hiding.body(text) == shown
    assert hiding.attributes({"of-sns": '{"email":"a@b"}', "x": "plain"}) == {
        "of-sns": '{"email":"(hidden)"}',
        "x": "plain",
    }
