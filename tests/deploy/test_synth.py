"""`onefold synth`: what it writes and where, whose choices win, and what it refuses before anything is written."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from onefold.cli.main import run

SHOP = """
import onefold

app = onefold.App("shop")
orders = app.queue("orders")


@app.job(orders, key="{id}", timeout="20s", owner="packing")
def pack(payload: dict):
    pass


handler = app.lambda_handler()
"""

Synth = Callable[..., tuple[int, str, str]]


@pytest.fixture
def synth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Synth]:
    """Run `onefold synth` in a folder with `shop.py`; exit code, standard output and error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ONEFOLD_URL", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "shop.py").write_text(SHOP)

    def call(*words: str, source: str | None = None) -> tuple[int, str, str]:
        if source is not None:
            (tmp_path / "shop.py").write_text(source)
        sys.modules.pop("shop", None)
        code = run(["synth", *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    yield call
    sys.modules.pop("shop", None)


def names(template: dict[str, Any]) -> list[str]:
    return sorted(
        one["Properties"]["QueueName"] for one in template["Resources"].values() if one["Type"] == "AWS::SQS::Queue"
    )


def test_the_template_goes_to_standard_output_and_nothing_else_does(synth: Synth) -> None:
    code, out, err = synth("shop:app")
    assert (code, err) == (0, "")
    template = json.loads(out)
    assert names(template) == ["orders", "orders-dead", "orders-held"]
    function = template["Resources"]["OrdersFunction"]["Properties"]
    assert function["Handler"] == "shop.handler"
    assert function["Environment"]["Variables"]["ONEFOLD_URL"] == {
        "Fn::Sub": "aws://${AWS::Region}?layout=2&table=shop"
    }


def test_json_is_the_same_document(synth: Synth) -> None:
    _, out, _ = synth("shop:app")
    code, as_json, _ = synth("shop:app", "--json")
    assert (code, json.loads(as_json)) == (0, json.loads(out))


def test_what_aws_will_not_do_is_said_beside_the_template(synth: Synth) -> None:
    more = """
app.schedule("at(2030-01-01T00:00:00)", name="once", queue=orders, delete_after=True)(lambda tick: None)
app.map(orders, key="{id}", name="load", source="in.csv")(lambda item: None)
"""
    code, out, err = synth("shop:app", source=SHOP + more)
    assert (code, "OnceSchedule" in json.loads(out)["Resources"]) == (0, True)
    once, load = err.splitlines()
    assert once.startswith("! Schedule once: delete_after=True deletes nothing on AWS.")
    assert load.startswith("! Map load gets no state machine: its items are not in S3.")
    summary = json.loads(synth("shop:app", "--output", "t.json", "--json", source=SHOP + more)[1])
    assert [f"! {note}" for note in summary["notes"]] == [once, load]


@pytest.mark.parametrize(
    ("sinks", "said"), [("Mine()", True), ("onefold.LogSink()", False), ("Mine(), onefold.LogSink()", False)]
)
def test_alarms_that_no_sink_would_set_off_are_said(synth: Synth, sinks: str, said: bool) -> None:
    mine = "class Mine:\n    def emit(self, event):\n        pass\n\n"
    source = SHOP.replace('onefold.App("shop")', f'onefold.App("shop", sinks=[{sinks}])')
    code, _, err = synth("shop:app", source=source.replace("app =", f"{mine}app =", 1))
    assert code == 0
    assert ("none of them a LogSink: alarms on completion-failed, lease-lost, paused count lines" in err) is said
    assert bool(err) is said


def test_yaml_and_terraform(synth: Synth) -> None:
    _, out, _ = synth("shop:app")
    _, in_yaml, _ = synth("shop:app", "--format", "yaml")
    assert yaml.safe_load(in_yaml) == json.loads(out)
    _, module, _ = synth("shop:app", "--format", "terraform")
    assert sorted(json.loads(module)["resource"]["aws_sqs_queue"]) == ["orders", "orders_dead", "orders_held"]


def test_a_file_is_written_and_what_is_in_it_is_said(synth: Synth, tmp_path: Path) -> None:
    _, expected, _ = synth("shop:app")
    code, out, _ = synth("shop:app", "--output", "template.json")
    assert code == 0
    assert (tmp_path / "template.json").read_text() == expected
    alarms = expected.count('"AWS::CloudWatch::Alarm"')
    assert out == f"template.json: cloudformation of shop: 3 queues, 1 functions, {alarms} alarms.\n"

    code, out, _ = synth("shop:app", "--output", "template.json", "--json")
    assert json.loads(out)["functions"] == ["shop-orders"]

    code, _, err = synth("shop:app", "--output", "nowhere/template.json")
    assert code == 1
    assert "nowhere/template.json cannot be written: No such file or directory." in err


@pytest.mark.parametrize("form", ["cloudformation", "yaml", "terraform"])
def test_a_new_table_has_layout_2_and_a_file_that_is_replaced_keeps_its_own(
    synth: Synth, tmp_path: Path, form: str
) -> None:
    def written(*words: str) -> str:
        code, _, err = synth("shop:app", "--format", form, "--output", "stack", *words)
        assert code == 0, err
        return (tmp_path / "stack").read_text()

    assert "layout=2&table=shop" in written()
    assert "~day#*" in written(), "history is spread, and a role may write it"
    (tmp_path / "stack").unlink()
    assert "layout=2" not in written("--layout", "1")
    again = written()
    assert "layout=2" not in again
    assert "LeadingKeys" not in again
    assert "layout=2&table=shop" in written("--layout", "2"), "after its records were moved"
    assert "layout=2&table=shop" in written()


def test_an_aws_url_without_a_layout_means_layout_1(synth: Synth, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_URL", "aws://eu-west-1?table=records")
    assert "layout" not in synth("shop:app")[1]
    monkeypatch.setenv("ONEFOLD_URL", "aws://eu-west-1?table=records&layout=2")
    assert "layout=2" in synth("shop:app")[1]


def test_a_function_under_once_that_no_role_lets_write_is_said(synth: Synth) -> None:
    guarded = (
        SHOP.replace("import onefold\n", "import onefold\nfrom onefold.options import Function\n")
        + """
@onefold.once(key="{id}", store=onefold.store("sqlite://:memory:"), name="charge_card")
def charge(id):
    pass
"""
    )
    _, _, err = synth("shop:app", source=guarded)
    assert "@onefold.once is on charge_card, which Function(guards=[...]) does not name" in err
    assert synth("shop:app", "--layout", "1")[2] == ""
    named = guarded.replace('app.queue("orders")', 'app.queue("orders", function=Function(guards=["charge_card"]))')
    code, out, err = synth("shop:app", source=named)
    assert (code, err) == (0, "")
    assert "charge_card#*" in out


def test_choices_of_the_environments_url_hold_unless_the_command_line_says_otherwise(
    synth: Synth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "ONEFOLD_URL", "aws://eu-west-1?table=records&prefix=dev-&endpoint=http://127.0.0.1:1&create=yes"
    )
    template = json.loads(synth("shop:app")[1])
    assert names(template)[0] == "dev-orders"
    assert template["Resources"]["RecordTable"]["Properties"]["TableName"] == "records"
    assert "127.0.0.1" not in json.dumps(template)

    _, out, _ = synth("shop:app", "--prefix", "prod-", "--table", "mine", "--tag", "team=a=b", "--log-days", "90")
    template = json.loads(out)
    assert names(template)[0] == "prod-orders"
    table = template["Resources"]["RecordTable"]["Properties"]
    assert table["TableName"] == "mine"
    assert {"Key": "team", "Value": "a=b"} in table["Tags"]
    assert template["Resources"]["OrdersLogGroup"]["Properties"]["RetentionInDays"] == 90

    _, out, _ = synth("shop:app", "--records", "redis://cache.example:6379/0")
    assert "RecordTable" not in json.loads(out)["Resources"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "Name the app"),
        (["shop:app", "--format", "hcl"], 2, "'hcl' is not one of"),
        (["shop:app", "--log-days", "31"], 2, "--log-days is one of 1, 3, 5"),
        (["shop:app", "--tag", "team"], 2, "NAME=VALUE"),
        (["shop:app", "--table", "t-1", "--records", "redis://x"], 2, "exclude each other"),
        (["shop:app", "--prefix", "prod."], 1, "cannot be a prefix of names"),
        (["shop:app", "--kms-key", "alias/mine"], 1, "kms_key='alias/mine'"),
        (["shop:nothing"], 1, "no attribute 'nothing'"),
    ],
)
def test_what_cannot_be_is_refused(
    synth: Synth, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, said: str
) -> None:
    monkeypatch.delenv("ONEFOLD_APP", raising=False)
    found, out, err = synth(*words)
    assert (found, out) == (code, "")
    assert said in err
    assert "Traceback" not in err


def test_a_module_without_a_handler_is_told_what_to_add(synth: Synth) -> None:
    source = SHOP.replace("handler = app.lambda_handler()", "")
    code, out, err = synth("shop:app", source=source)
    assert (code, out) == (1, "")
    assert "shop.handler does not exist" in err
    assert "handler = app.lambda_handler()" in err

    code, _, _ = synth("shop:app", source=source.replace('"orders")', '"orders", function=None)'))
    assert code == 0


@pytest.mark.parametrize("url", ["sqlite:///shop.db", "aws://eu-west-1?table=shop&prefix=other-", "aws://eu-west-1"])
def test_an_app_that_would_use_another_engine_in_lambda_is_refused(synth: Synth, url: str) -> None:
    source = SHOP.replace('App("shop")', f'App("shop", url="{url}")')
    code, out, err = synth("shop:app", "--prefix", "prod-", source=source)
    assert (code, out) == (1, "")
    assert f"names its own engine, {url}" in err


def test_an_app_that_names_the_engine_that_is_made_is_taken(synth: Synth) -> None:
    source = SHOP.replace('App("shop")', 'App("shop", url="aws://eu-west-1?table=shop&prefix=prod-")')
    code, out, _ = synth("shop:app", source=source)
    assert code == 0
    assert names(json.loads(out))[0] == "prod-orders"


TIMED = SHOP.replace(
    "handler =",
    """
@app.schedule("rate(1 day)")
def nightly(tick):
    pass


@app.map(orders, key="{id}", name="load", source="s3://my-bucket/orders.csv")
def load(row: dict):
    pass


app.bus("shop").rule("all", {"source": ["shop"]}, to=orders)
app.pipe(app.queue("mirror"), orders)

handler =""",
)


@pytest.mark.parametrize(("form", "key"), [("cloudformation", "Resources"), ("terraform", "resource")])
def test_schedules_map_runs_and_events_are_found(synth: Synth, form: str, key: str) -> None:
    words = ("--format", "terraform") if form == "terraform" else ()
    code, out, err = synth("shop:app", *words, source=TIMED)
    assert code == 0, err
    found = json.loads(out)[key]
    kinds = set(found) if form == "terraform" else {one["Type"] for one in found.values()}
    for on_terraform, type_ in (
        ("aws_scheduler_schedule", "AWS::Scheduler::Schedule"),
        ("aws_sfn_state_machine", "AWS::StepFunctions::StateMachine"),
        ("aws_cloudwatch_event_rule", "AWS::Events::Rule"),
        ("aws_pipes_pipe", "AWS::Pipes::Pipe"),
    ):
        assert (on_terraform if form == "terraform" else type_) in kinds


def test_which_alarms_are_written_is_chosen(synth: Synth) -> None:
    def alarms(*words: str) -> list[str]:
        code, out, err = synth("shop:app", *words)
        assert code == 0, err
        return sorted(one["Type"] for one in json.loads(out)["Resources"].values() if one["Type"].endswith("Alarm"))

    assert len(alarms("--alarms", "all")) == len(alarms()) > 2 * len(alarms("--alarms", "few"))
    assert len(alarms("--alarms", "few")) == 7
    assert alarms("--alarms", "none") == []
    assert alarms("--alarms", "jobs").count("AWS::CloudWatch::CompositeAlarm") == 1
    assert "AWS::Chatbot::SlackChannelConfiguration" in synth("shop:app", "--slack", "T0123/C0456")[1]
    code, _, err = synth("shop:app", "--slack", "#general")
    assert code == 1
    assert "slack='#general' is not valid." in err
    assert "Write for example T0123ABCD/C0456EFGH." in err
    assert synth("shop:app", "--alarms", "most")[0] == 2


def test_messages_for_later_are_asked_for(synth: Synth) -> None:
    for words, there in (((), False), (("--later",), True)):
        code, out, _ = synth("shop:app", *words)
        assert code == 0
        assert ("scheduler:CreateSchedule" in out) is there
    source = SHOP.replace('App("shop")', 'App("shop", url="aws://eu-west-1?table=shop")')
    code, _, err = synth("shop:app", "--later", source=source)
    assert code == 1
    assert "names its own engine" in err


def test_terraform_keeps_what_left_the_app_and_names_what_comes_back(synth: Synth, tmp_path: Path) -> None:
    words = ("shop:app", "--format", "terraform", "--output", "main.tf.json")

    def written() -> dict[str, Any]:
        found: dict[str, Any] = json.loads((tmp_path / "main.tf.json").read_text())
        return found

    other = SHOP.replace('"orders"', '"parcels"')
    assert synth(*words)[0] == 0
    before = written()
    assert "removed" not in before
    assert before["resource"]["aws_sqs_queue"]["orders"]["lifecycle"] == {"prevent_destroy": True}
    _, _, err = synth(*words, source=other)
    kept = ["aws_sqs_queue.orders", "aws_sqs_queue.orders_dead", "aws_sqs_queue.orders_held"]
    assert written()["removed"] == [{"from": one, "lifecycle": {"destroy": False}} for one in kept]
    assert written()["terraform"]["required_version"] == ">= 1.7.0"
    assert "! aws_sqs_queue.orders is not in the app any more: it is kept" in err
    synth(*words, source=other)
    assert [one["from"] for one in written()["removed"]] == kept, "it is kept however often it is written"
    _, _, err = synth(*words, source=SHOP)
    assert [one["from"] for one in written()["removed"]] == [one.replace("orders", "parcels") for one in kept]
    assert "! aws_sqs_queue.orders was kept when it left the app: terraform import aws_sqs_queue.orders ID" in err

    assert synth("shop:app", "--format", "terraform", "--disposable", "--output", "stage.tf.json")[0] == 0
    (tmp_path / "main.tf.json").write_text((tmp_path / "stage.tf.json").read_text())
    assert synth(*words, source=other)[0] == 0
    assert "removed" not in written(), "what is disposable goes"
    (tmp_path / "main.tf.json").write_text("not JSON")
    code, _, err = synth(*words)
    assert code == 1
    assert "could not be kept" in err


def test_every_role_has_the_boundary_and_path_that_the_account_asks_for(synth: Synth) -> None:
    boundary = "arn:aws:iam::111122223333:policy/team"
    words = ("--permissions-boundary", boundary, "--role-path", "/team/", "--slack", "T0123/C0456")
    resources = json.loads(synth("shop:app", *words, source=TIMED)[1])["Resources"].values()
    roles = [one["Properties"] for one in resources if one["Type"] == "AWS::IAM::Role"]
    assert len(roles) > 4
    assert {(one["Path"], one["PermissionsBoundary"]) for one in roles} == {("/team/", boundary)}
    module = json.loads(synth("shop:app", "--format", "terraform", *words, source=TIMED)[1])
    roles = module["resource"]["aws_iam_role"].values()
    assert {(one["path"], one["permissions_boundary"]) for one in roles} == {("/team/", boundary)}
    assert "PermissionsBoundary" not in synth("shop:app")[1]
    assert "role_path='team'" in synth("shop:app", "--role-path", "team")[2]


def test_a_topic_of_the_stacks_own_is_notified_beside_one_that_is_given(synth: Synth) -> None:
    template = json.loads(synth("shop:app", "--topic", "--prefix", "p-")[1])
    assert template["Resources"]["AlarmsTopic"]["Properties"]["TopicName"] == "p-shop-alarms"
    assert template["Outputs"]["AlarmTopicArn"]["Value"] == {"Ref": "AlarmsTopic"}
    alarm = next(one for one in template["Resources"].values() if one["Type"] == "AWS::CloudWatch::Alarm")
    own, given = {"Ref": "AlarmsTopic"}, {"Ref": "AlarmTopic"}
    assert alarm["Properties"]["AlarmActions"] == {"Fn::If": ["HasAlarmTopic", [own, given], [own]]}
    assert "AWS::SNS::Topic" not in synth("shop:app", "--topic", "--alarms", "none")[1]
