"""`onefold package`, `deploy` and `diff` as a person or a pipeline uses them, against ministack."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onefold.cli.commands import deploy
from onefold.cli.main import run
from onefold.contracts.queue import JOB_ATTRIBUTE
from onefold.contracts.store import Claimed, Complete, Completed, RecordKey
from onefold.deploy import apply, changes
from onefold.deploy.apply import ChangeSet, Deployed, Rollout
from onefold.deploy.changes import ResourceChange
from onefold.engines import urls
from onefold.engines.aws.session import Session
from onefold.entropy import SeededEntropy
from onefold.errors import UsageError
from onefold.manual_clock import ManualClock
from onefold.runtime import names
from onefold.testing.records import KEPT_MS, NOW, ask
from tests.deploy.conftest import BUCKET, REGION
from tests.deploy.wheelhouse import offline, repack

pytestmark = pytest.mark.slow  # an emulator, and pip at most of them

SHOP = """
from onefold import App
from onefold.options import Function
app = App("shop")
here = Function(runtime="python{python}")
orders = app.queue("orders", function=here{more})
@app.job(orders, key="{{id}}")
def book(order: dict) -> str:
    return "booked"
def handler(event, context):
    return {{}}
"""


class Shop:
    """A folder with an app, and the command line run in it."""

    def __init__(self, folder: Path, endpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._place = ["--endpoint", endpoint, "--region", REGION]
        self._capsys = capsys
        self.declare()

    def declare(self, more: str = "") -> None:
        """Write the app, and let the next command import it anew."""
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        (self.folder / "shop.py").write_text(SHOP.format(python=python, more=more), encoding="utf-8")
        sys.modules.pop("shop", None)
        importlib.invalidate_caches()

    def run(self, *words: str) -> tuple[int, str, str]:
        """Exit code, standard output and standard error of one command."""
        code = run(words)
        said = self._capsys.readouterr()
        return code, said.out, said.err

    def deploy(self, *words: str) -> tuple[int, str, str]:
        """`onefold deploy` of this app, under a prefix of its own."""
        return self.run(
            "deploy", "shop:app", "--bucket", BUCKET, "--prefix", self.prefix, "--alarms", "few", *self._place, *words
        )

    def diff(self, *words: str) -> tuple[int, str, str]:
        return self.run("diff", "shop:app", "--prefix", self.prefix, "--alarms", "few", *self._place, *words)

    @property
    def prefix(self) -> str:
        """Each test has stacks and queues of its own."""
        return f"{self.folder.name.replace('_', '-')[-24:].strip('-0123456789')}-"


@pytest.fixture
def shop(
    tmp_path: Path, session: Session, endpoint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shop]:
    wheels = tmp_path / "wheels"
    repack("msgspec", wheels)
    offline(monkeypatch, wheels)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(apply, "LOOK_MS", 10)
    monkeypatch.delenv("ONEFOLD_APP", raising=False)
    yield Shop(tmp_path, endpoint, capsys)
    sys.modules.pop("shop", None)


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A person at a terminal, who types this."""

    def types(text: str) -> None:
        monkeypatch.setattr("sys.stdin.isatty", lambda: True)
        monkeypatch.setattr("click.termui.visible_prompt_func", lambda _prompt: text)

    return types


# -- package ---------------------------------------------------------------------------------------------------------


def test_package_prints_size_and_hash_and_is_repeatable(shop: Shop) -> None:
    code, out, err = shop.run("package", "shop:app", "--json")
    assert code == 0, err
    built = json.loads(out)
    assert (shop.folder / ".onefold/build/shop.zip").stat().st_size == built["zipped_bytes"]
    code, out, err = shop.run("package", "shop:app", "-o", "again.zip")
    assert code == 0
    assert built["sha256"] in out
    assert "installing msgspec" in err


def test_package_needs_an_app_with_functions_of_one_platform(shop: Shop) -> None:
    assert shop.run("package")[0] == 2
    shop.declare(')\nmore = app.queue("more", function=Function(runtime="python3.12", architecture="arm64")')
    code, _, err = shop.run("package", "shop:app")
    assert code == 1
    assert "have different platforms" in err
    (shop.folder / "shop.py").write_text(
        'from onefold import App\napp = App("shop")\nq = app.queue("q", function=None)\n'
    )
    sys.modules.pop("shop", None)
    code, _, err = shop.run("package", "shop:app")
    assert code == 1
    assert "has no function" in err


# -- deploy ----------------------------------------------------------------------------------------------------------


def test_an_app_is_deployed_shown_and_then_has_no_changes(shop: Shop) -> None:
    assert shop.diff()[0] == 1
    code, out, err = shop.deploy("--yes")
    assert code == 0, out + err
    assert "add" in out
    assert "SQS::Queue" in out
    assert "is CREATE_COMPLETE." in out
    assert "EngineUrl" in out
    assert re.search(r"\b(\d+)/\1  CREATE_COMPLETE", err)
    code, out, _ = shop.diff()
    assert code == 0
    assert "has the template the app would be deployed with" in out
    code, out, err = shop.deploy("--yes")
    assert code == 0
    assert "No changes" in out
    assert "is there already" in err


def test_a_stack_is_moved_to_layout_2_and_never_back(shop: Shop, session: Session, endpoint: str) -> None:
    table = f"{shop.prefix}shop"
    url = f"aws://{REGION}?table={table}&endpoint={endpoint}"
    key, done = RecordKey("", "book", "o-1"), Complete(result=b'"booked"', expires_at_ms=KEPT_MS + NOW)
    assert shop.deploy("--yes", "--layout", "1")[0] == 0
    assert shop.diff()[0] == 0, "its layout is seen"
    old = urls.open_store(url, clock=ManualClock(), entropy=SeededEntropy(1))
    (answer,) = old.claim([ask(key)], NOW)
    assert isinstance(answer, Claimed)
    assert old.write([(answer.hold, done)], NOW) == [True]

    code, out, err = shop.deploy("--yes")
    assert code == 0, err
    assert "No changes" in out
    assert f"The records in table {table} keep layout 1." in err
    code, _, err = shop.deploy("--yes", "--layout", "2")
    assert code == 1, err
    assert f"onefold records migrate dynamodb://{REGION}/{table}" in err
    code, out, err = shop.run("records", "migrate", url)
    assert code == 0, err
    assert "1 record would be moved" in out
    assert shop.deploy("--yes", "--layout", "2")[0] == 1, "looking moves nothing"
    code, out, err = shop.run("records", "migrate", url, "--yes")
    assert code == 0, err
    assert "1 record moved and compared. The table has layout 2 from now on." in out
    code, out, err = shop.deploy("--yes")
    assert code == 0, err
    assert "No changes" not in out, "a table that was moved is seen, too"
    (name,) = [
        one["FunctionName"]
        for one in session.client("lambda").list_functions()["Functions"]
        if shop.prefix in one["FunctionName"]
    ]
    settings = session.client("lambda").get_function_configuration(FunctionName=name)
    assert "layout=2" in settings["Environment"]["Variables"]["ONEFOLD_URL"]
    new = urls.open_store(f"{url}&layout=2", clock=ManualClock(), entropy=SeededEntropy(2))
    (answer,) = new.claim([ask(key, "B")], NOW)
    assert isinstance(answer, Completed)
    assert answer.result == done.result

    code, _, err = shop.deploy("--yes", "--layout", "1")
    assert code == 1
    assert "Add --layout 2" in err
    assert "The table has layout 2." in shop.run("records", "migrate", url, "--yes")[1]


def test_a_url_that_makes_a_new_table_one_of_layout_1_is_noticed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_URL", f"aws://{REGION}?table={shop.prefix}other")
    said = "The app's URL names no layout, which means layout 1. The table is new: add layout=2 to the URL."
    assert said in shop.diff()[2]
    assert said not in shop.diff("--layout", "1")[2]
    monkeypatch.setenv("ONEFOLD_URL", f"aws://{REGION}?table={shop.prefix}other&layout=2")
    assert said not in shop.diff()[2]


def test_a_change_is_diffed_by_property_and_deployed_in_place(shop: Shop) -> None:
    assert shop.deploy("--yes")[0] == 0
    shop.declare(', retention="5d"')
    code, out, _ = shop.diff()
    assert code == 1
    assert "~ Properties.MessageRetentionPeriod: 345600 -> 432000" in out
    assert "1 changed" in out
    code, out, _ = shop.diff("--json")
    found = json.loads(out)
    assert (code, found["status"]) == (1, "CREATE_COMPLETE")
    assert [(one["path"], one["before"], one["after"]) for one in found["differences"]] == [
        ("Properties.MessageRetentionPeriod", 345_600, 432_000)
    ]
    code, out, _ = shop.deploy("--yes", "--json")
    done = json.loads(out)
    assert (code, done["deployed"]["status"]) == (0, "UPDATE_COMPLETE")
    assert "OrdersQueue" in {one["logical_id"] for one in done["changes"]}


def test_a_diff_says_what_the_deployment_would_strand(shop: Shop, session: Session, endpoint: str) -> None:
    slow = ')\nslow = app.queue("slow", function=None'
    shop.declare(f'{slow})\nold = app.queue("old", function=None')
    assert shop.deploy("--yes")[0] == 0
    code, out, err = shop.diff()
    assert (code, err) == (0, "")
    assert "strand" not in out + err
    sqs, state = session.client("sqs"), urls.open_engine(
        f"aws://{REGION}?layout=2&table={shop.prefix}shop&prefix={shop.prefix}&endpoint={endpoint}",
        clock=ManualClock(), entropy=SeededEntropy(3), owner="a",
    ).state  # fmt: skip
    names.take(state, ("book",), "shop", NOW)
    book = {JOB_ATTRIBUTE: {"DataType": "String", "StringValue": "book"}}
    for queue, body in (("old", "{}"), ("old", "{}"), ("slow", "{}"), ("orders-dead", '{"id": 1}')):
        url = sqs.get_queue_url(QueueName=f"{shop.prefix}{queue}")["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=book)

    renamed = SHOP.replace("def book(", "def book_order(").replace('"booked"', '"done"')
    (shop.folder / "shop.py").write_text(
        renamed.format(python=f"{sys.version_info.major}.{sys.version_info.minor}", more=slow)
    )
    sys.modules.pop("shop", None)
    importlib.invalidate_caches()
    code, out, err = shop.diff()
    assert code == 1, err
    flat = " ".join(out.split())
    assert f"! {shop.prefix}old leaves the stack with 2 messages. It is kept, and nothing works on it." in flat
    assert "The app has worked under the name 'book', and no job of it has that name." in flat
    assert "! 1 of 1 message for book in orders-dead (dead) would not run." in flat
    assert "1 message in slow: only a receive would show for which job." in flat
    found = json.loads(shop.diff("--json")[1])["stranding"]
    assert (found["waiting"], found["survey"]["stranded"]) == ({"slow": 1}, ["book"])
    assert json.loads(shop.diff("--json", "--template-only")[1])["stranding"] is None


def test_a_diff_that_may_not_look_at_queues_still_compares(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shop.deploy("--yes")[0] == 0

    def denied(*_: object, **__: object) -> None:
        raise UsageError("sqs:ListQueues is not allowed.", todo="Add it.")

    monkeypatch.setattr("onefold.admin.deploying.stranding", denied)
    code, _, err = shop.diff()
    assert code == 0
    assert "! What a deployment would strand is not known: sqs:ListQueues is not allowed. Add it." in err


def test_how_a_stack_is_deployed_is_said_on_the_command_line(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Rollout, Any]] = []

    def prepare(*words: Any, rollback: Any, **_: Any) -> None:
        asked.append((words[-1], rollback))

    monkeypatch.setattr(apply.LiveStack, "prepare", prepare)
    role, topic = "arn:aws:iam::111122223333:role/deployer", "arn:aws:sns:eu-west-1:111122223333:ops"
    (shop.folder / "policy.json").write_text('{"Statement": []}')
    words = ("--role-arn", role, "--notify", topic, "--protect", "--stack-policy", "policy.json", "--tag", "team=shop")
    code, out, err = shop.deploy("--yes", *words, "--rollback-minutes", "10")
    assert code == 0, out + err
    assert "! no alarm undoes this update: the functions' own are used from the second deployment on" in err
    assert shop.deploy("--yes", "--no-protect", "--stack-policy", "keep")[0] == 0
    assert asked == [
        (
            Rollout(
                role_arn=role, notifications=(topic,), protected=True, policy='{"Statement": []}',
                tags={"onefold:app": "shop", "team": "shop"}, rollback_minutes=10,
            ),
            {"RollbackTriggers": [], "MonitoringTimeInMinutes": 0},
        ),
        (Rollout(protected=False, policy=apply.KEEPING_POLICY, tags={"onefold:app": "shop"}), None),
    ]  # fmt: skip
    for wrong in (("--stack-policy", "nowhere.json"), ("--rollback-minutes", "181")):
        assert shop.deploy("--yes", *wrong)[0] == 2
    assert shop.deploy("--yes", "--rollback-alarm", "nobody-has-this")[0] == 1
    assert len(asked) == 2


def test_a_diff_shows_what_was_changed_by_hand(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shop.deploy("--yes")[0] == 0
    found: list[apply.StackDrift] = []
    monkeypatch.setattr(apply.LiveStack, "drift", lambda _: found)
    code, out, _ = shop.diff("--drift")
    assert (code, out.splitlines()[0]) == (0, "Nothing was changed manually since the deployment.")
    properties = (("/VisibilityTimeout", "780", "30"),)
    found.append(
        apply.StackDrift(logical_id="OrdersQueue", type="AWS::SQS::Queue", status="MODIFIED", properties=properties)
    )
    code, out, _ = shop.diff("--drift")
    assert code == 1
    assert "! OrdersQueue (AWS::SQS::Queue) was modified outside of CloudFormation" in out
    assert "/VisibilityTimeout: 780 -> 30" in out
    assert json.loads(shop.diff("--json")[1])["drift"] is None


def test_a_dry_run_and_a_no_change_nothing(shop: Shop, person: Callable[[str], None]) -> None:
    code, out, _ = shop.deploy("--dry-run")
    assert code == 0
    assert "Nothing was changed." in out
    person("n")
    code, out, err = shop.deploy()
    assert code == 0
    assert "Nothing was changed." in out
    assert shop.diff()[1].startswith("There is no stack")
    person("y")
    code, out, err = shop.deploy()
    assert code == 0, err
    assert "is CREATE_COMPLETE." in out


def test_losing_records_needs_a_yes_to_just_that(shop: Shop) -> None:
    assert shop.deploy("--yes", "--disposable")[0] == 0
    (shop.folder / "shop.py").write_text(
        (shop.folder / "shop.py").read_text(encoding="utf-8").replace('"orders"', '"parcels"'), encoding="utf-8"
    )
    sys.modules.pop("shop", None)
    code, out, err = shop.deploy("--yes", "--disposable")
    assert code == 1
    assert "all its messages are lost" in out
    assert "would lose what is in 3 resources" in err
    assert "OrdersQueue" in shop.diff("--disposable")[1], "it was deployed all the same"
    code, out, err = shop.deploy("--yes", "--accept-loss", "--disposable")
    assert code == 0, err
    assert shop.diff("--disposable")[0] == 0


def test_a_failed_deployment_names_cause_and_way_out(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    from onefold.deploy import cloudformation

    whole = cloudformation.template

    def broken(plan: Any) -> Any:
        found = whole(plan)
        found["Resources"]["OrdersQueue"]["Properties"]["VisibilityTimeout"] = 43_201
        return found

    monkeypatch.setattr(cloudformation, "template", broken)
    code, out, _ = shop.deploy("--yes")
    assert code == 1
    assert "ROLLBACK_COMPLETE: the deployment failed" in out
    assert "OrdersQueue (AWS::SQS::Queue) CREATE_FAILED" in out
    assert "delete-stack" in out
    monkeypatch.setattr(cloudformation, "template", whole)
    code, out, err = shop.deploy("--yes")
    assert code == 1
    assert "is ROLLBACK_COMPLETE" in err
    assert "delete-stack" in err


def test_a_template_too_long_for_a_request_goes_by_way_of_the_bucket(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "TEMPLATE_BODY_BYTES_MAX", 1_000)
    code, out, err = shop.deploy("--yes")
    assert code == 0, err
    assert ".template.json" in err
    assert "CREATE_COMPLETE" in out


def test_the_alarm_topic_stays_unless_another_is_given(shop: Shop, session: Session) -> None:
    topic = "arn:aws:sns:eu-west-1:111122223333:pages"
    assert shop.deploy("--yes", "--alarm-topic", topic)[0] == 0
    shop.declare(', retention="5d"')
    assert shop.deploy("--yes")[0] == 0
    stack = session.client("cloudformation").describe_stacks(StackName=f"{shop.prefix}shop")["Stacks"][0]
    assert {one["ParameterKey"]: one["ParameterValue"] for one in stack["Parameters"]}["AlarmTopic"] == topic


def test_a_package_that_was_built_before_is_taken(shop: Shop) -> None:
    code, out, _ = shop.run("package", "shop:app", "-o", "built.zip", "--json")
    digest = json.loads(out)["sha256"]
    code, _, err = shop.deploy("--dry-run", "--package", "built.zip")
    assert code == 0
    assert f"{digest}.zip" in err
    assert "installing" not in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--bucket", ""), "No bucket was given"),
        (("--bucket", "s3://x"), "cannot be the name of a bucket"),
        (("--bucket", "no-such-bucket-here"), "does not exist"),
        (("--stack", "under_score"), "cannot be the name of a stack"),
        (("--package", "gone.zip"), "There is no package gone.zip"),
        (("--package", "shop.py"), "is not a zip file"),
        (("--alarm-topic", "pages"), "is not the ARN of an SNS topic"),
        ((), "standard input is not a terminal"),
    ],
)
def test_bad_input_is_refused(shop: Shop, words: tuple[str, ...], said: str) -> None:
    code, _, err = shop.deploy(*(("--dry-run", *words) if words else ()))
    assert code == 1
    assert said in err
    assert "Traceback" not in err


def test_who_stops_following_is_told_that_cloudformation_goes_on(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> Deployed:
        raise KeyboardInterrupt

    monkeypatch.setattr(apply.LiveStack, "execute", interrupted)
    code, _, err = shop.deploy("--yes")
    assert code == 130
    assert "CloudFormation continues by itself" in err
    assert f"--stack-name {shop.prefix}shop" in err


def test_json_asks_nothing(shop: Shop) -> None:
    code, out, _ = shop.deploy("--json")
    assert code == 2
    assert "--yes or --dry-run" in json.loads(out)["error"]["what"]


def test_without_a_region_the_next_step_is_said(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    code, _, err = shop.run("deploy", "shop:app", "--bucket", BUCKET, "--dry-run")
    assert code == 1
    assert "No region is known" in err


def test_without_credentials_the_next_step_is_said(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    code, _, err = shop.deploy("--dry-run")
    assert code == 1
    assert "There are no AWS credentials for cloudformation:DescribeStacks" in err
    assert "AWS_PROFILE" in err


def test_a_diff_that_cannot_be_made_exits_with_2(shop: Shop) -> None:
    code, out, err = shop.run("diff", "shop:app", "--endpoint", "http://127.0.0.1:1", "--region", REGION, "--json")
    assert code == 2
    assert json.loads(out)["error"]["code"] == "transient"
    assert "error:" in err


# -- drawing ---------------------------------------------------------------------------------------------------------


def draw(one: ResourceChange, capsys: pytest.CaptureFixture[str]) -> str:
    deploy._draw_changes(ChangeSet(stack="shop", arn="", creates=False, changes=(one,)))
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            {"Action": "Modify", "Replacement": "True"},
            ("REPLACE", "! orders is replaced by a new one: all its messages"),
        ),
        ({"Action": "Modify", "Replacement": "Conditional"}, ("may replace", "! orders may be replaced")),
        ({"Action": "Remove", "PolicyAction": "Retain"}, ("remove", "! Orders leaves the stack and is kept")),
        ({"Action": "Add"}, ("add",)),
        ({"Action": "SomethingNew"}, ("SomethingNew",)),
    ],
)
def test_what_would_be_lost_stands_under_the_table(
    answer: dict[str, str], said: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    one = changes.change(
        {
            "LogicalResourceId": "Orders",
            "PhysicalResourceId": "https://x/orders",
            "ResourceType": "AWS::SQS::Queue",
            **answer,
        }
    )
    drawn = draw(one, capsys)
    assert all(text in drawn for text in said)


def test_a_failure_is_drawn_with_cause_and_both_next_steps(capsys: pytest.CaptureFixture[str]) -> None:
    failure = changes.StackFailure(
        logical_id="Orders", type="AWS::SQS::Queue", status="UPDATE_FAILED", reason="why", todo="do this"
    )
    deploy._draw_end(
        Deployed(stack="shop", status="UPDATE_ROLLBACK_FAILED", ok=False, outputs={}, failure=failure, todo="then that")
    )
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()] == ["shop", "first", "why", "to", "stack"]
    assert "do this" in out
    assert "then that" in out
