"""The Distributed Map of a declared map run: exact, valid in the language, and least privilege.

The golden files were written by hand from Step Functions' documentation; nothing renews them. `asl_schemas.json` is the
language as JSON schemas; cfn-lint has one of its own, which `test_templates.py` cannot show because references hide it.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from onefold import errors
from onefold.deploy import cloudformation, state_machine
from onefold.deploy.stack import Stack
from onefold.maps.rules import Catcher, ItemBatch, ItemReader, MapSpec, Retrier, Tolerated
from tests.deploy import timed
from tests.deploy.declared import KEY
from tests.deploy.golden import GOLDEN
from tests.deploy.test_templates import TOOLS, tool

Json = dict[str, Any]
SCHEMAS = Path(__file__).with_name("asl_schemas.json")
# jsonschema comes with the tools
VALIDATE = """
import json, sys
import jsonschema, referencing
schemas = json.load(open(sys.argv[1]))["schemas"]
found = [(one["$id"].rstrip("#"), referencing.Resource.from_contents(one)) for one in schemas.values()]
registry = referencing.Registry().with_resources(found)
checked = jsonschema.Draft7Validator(schemas["state-machine.json"], registry=registry)
print(json.dumps([f"{error.json_path}: {error.message:.200}" for error in checked.iter_errors(json.load(sys.stdin))]))
"""

WHOLE = replace(
    timed.spec,
    name="it's {all}",
    reader=ItemReader(format="listing", items_max=7),
    source="s3://shop-files/in/",
    batch=ItemBatch(bytes_max=262_144),
    tolerated=Tolerated(count=0, percent=0.5),
    catch=(Catcher(errors=("a.b.Poisoned",), queue="operations"), Catcher(errors=("States.ALL",), queue="audit")),
)
SPECS = {"enrich": timed.spec, "load": timed.batched, "whole": WHOLE}


def as_deployed(definition: str) -> Json:
    """A definition with its places filled in."""
    fill = {"partition": "aws", "function_arn": "arn:aws:lambda:eu-west-1:111122223333:function:f"}
    text = re.sub(r"\{([a-z_]+)(\.\w+)?\}", lambda found: fill.get(found[1], "https://sqs.example/queue"), definition)
    found: Json = json.loads(text)
    return found


def machine(spec: MapSpec, stack: Stack | None = None) -> state_machine.MachinePlan:
    """The state machine of a map run of the timed app."""
    (found,) = timed.planned(stack, (spec,)).machines
    return found


# -- the definition --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["enrich", "load"])
def test_the_definition_is_as_the_documentation_has_it(name: str) -> None:
    assert json.loads(machine(SPECS[name]).definition) == json.loads((GOLDEN / f"{name}.asl.json").read_text())


def test_a_run_has_no_more_children_at_one_time_than_its_function_may_have_invocations() -> None:
    def at_once(concurrency: int) -> tuple[int, list[str]]:
        found = timed.planned(None, (replace(timed.spec, concurrency=concurrency),))
        return json.loads(found.machines[0].definition)["States"]["Items"]["MaxConcurrency"], [*found.notes]

    assert at_once(3) == (3, [])
    assert at_once(1_000) == (10, [])  # the default of a map
    most, (note,) = at_once(40)
    assert most == 10
    assert note.startswith("Map enrich runs 10 children at one time, not 40: its function may run no more.")


def test_with_a_key_the_run_may_use_it_for_its_file_and_for_its_own_history() -> None:
    use = {one.sid: one for one in machine(timed.spec, Stack(kms_key=KEY)).role.statements if "Key" in one.sid}
    assert use["UseKey"].services == ("s3", "sqs")
    arn = "arn:{partition}:states:{region}:{account}:stateMachine:books-enrich*"
    assert use["UseKeyForItself"].like == {"kms:EncryptionContext:aws:states:stateMachineArn": arn}
    assert machine(timed.batched, Stack(kms_key=KEY)).role.statements[-2].services == ("s3",)
    written = cloudformation.template(timed.planned(Stack(kms_key=KEY)))["Resources"]["EnrichMapMachine"]["Properties"]
    assert written["EncryptionConfiguration"] == {"Type": "CUSTOMER_MANAGED_KMS_KEY", "KmsKeyId": KEY}


def problems(definition: Json) -> list[str]:
    """What the language's schemas say against a definition."""

    def with_query_language(value: Any, *, states: bool = False) -> Any:
        """The schemas want each state to name its query language; in the language it is JSONPath unless named."""
        if not isinstance(value, dict):
            return value
        inner = {name: with_query_language(one, states=name == "States") for name, one in value.items()}
        return {name: {"QueryLanguage": "JSONPath", **one} for name, one in inner.items()} if states else inner

    done = subprocess.run(
        [TOOLS / "python", "-c", VALIDATE, SCHEMAS],
        input=json.dumps(with_query_language(definition)),
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[str] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
def test_the_definition_is_valid_in_the_language(name: str) -> None:
    assert problems(as_deployed(machine(SPECS[name]).definition)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("States", "Items", "MaxConcurrency"), "40"),
        (("States", "Items", "ToleratedFailurePercentage"), 100.1),
        (("States", "Items", "ResultWriter"), {"Parameters": {}}),
        (("States", "Items", "ItemBatcher"), {"MaxInputBytesPerBatch": 300_000}),
        (("States", "Items", "ItemProcessor", "States", "Item", "Retry", 0, "MaxAttempts"), -1),
    ],
)
def test_the_schema_check_notices_what_is_wrong(place: tuple[Any, ...], value: Any) -> None:
    definition = as_deployed(machine(timed.spec).definition)
    inner: Any = definition
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    assert problems(definition) != []


@pytest.mark.slow
def test_cfn_lint_knows_the_definition_too(tmp_path: Path) -> None:
    template = cloudformation.template(timed.planned(Stack(), (timed.spec,)))
    properties = template["Resources"]["EnrichMapMachine"]["Properties"]
    definition = as_deployed(machine(timed.spec).definition)
    for broken in (False, True):
        if broken:
            del definition["States"]["Items"]["End"]
        properties["DefinitionString"] = json.dumps(definition)
        place = tmp_path / "template.json"
        place.write_text(json.dumps(template))
        found = tool("cfn-lint", "--ignore-checks", "I", "--", place)
        assert ("E3601" in found.stdout) is broken, found.stdout


def test_names_of_errors_are_those_that_lambda_tells() -> None:
    assert state_machine.error_names(["requests.exceptions.ConnectionError", "ValueError"]) == [
        "ConnectionError",
        "ValueError",
    ]
    for name in ("HandlerTimeout", "States.Timeout", "Sandbox.Timedout"):
        assert set(state_machine.error_names([name])) == {"HandlerTimeout", "States.Timeout", "Sandbox.Timedout"}
    assert state_machine.error_names(["States.ALL"]) == ["States.ALL"]


def test_a_users_own_text_is_not_read_as_a_place_or_an_expression() -> None:
    header = ("{region}", "${AWS::Region}", "{queue_url.Operations}", "%{x}")
    spec = replace(timed.spec, reader=ItemReader(header=header))
    template = cloudformation.template(timed.planned(Stack(), (spec,)))
    written = template["Resources"]["EnrichMapMachine"]["Properties"]["DefinitionString"]["Fn::Sub"]
    filled = re.sub(r"\$\{([\w.:]+)\}", r"<\1>", written)
    assert json.loads(filled)["States"]["Items"]["ItemReader"]["ReaderConfig"]["CSVHeaders"] == list(header)


def test_a_runs_name_is_the_maps_and_the_executions() -> None:
    definition = as_deployed(machine(WHOLE).definition)
    assert definition["States"]["Items"]["ItemBatcher"]["BatchInput"] == {
        "run.$": r"States.Format('it\'s \{all\}/{}', $$.Execution.Name)"
    }


def test_a_map_whose_items_are_elsewhere_has_no_state_machine() -> None:
    for source in (None, "customers.csv", "/data/customers.csv"):
        assert timed.planned(None, (replace(timed.spec, source=source),)).machines == ()


# -- its role ----------------------------------------------------------------------------------------------------------


def test_the_role_reaches_this_maps_things_and_no_more() -> None:
    role = machine(timed.spec, Stack(prefix="prod-", kms_key=KEY)).role
    here = "arn:{partition}:%s:{region}:{account}:"
    assert {one.sid: one.resources for one in role.statements} == {
        "RunItems": ("{function_arn.Customers}",),
        "ReadItems": ("arn:{partition}:s3:::shop-files/in/customers.csv",),
        "WriteResults": ("arn:{partition}:s3:::shop-files/out/*",),
        "StartChildren": (here % "states" + "stateMachine:prod-books-enrich",),
        "FollowChildren": (here % "states" + "execution:prod-books-enrich:*",),
        "RedriveChildren": (here % "states" + "execution:prod-books-enrich/Items:*",),
        "TellOperations": (here % "sqs" + "prod-operations",),
        "UseKey": (KEY,),
        "UseKeyForItself": (KEY,),
    }
    assert role.trust()["Principal"] == {"Service": "states.amazonaws.com"}
    listing = machine(WHOLE).role.statements[1]
    assert (listing.actions, listing.like) == (("s3:ListBucket",), {"s3:prefix": "in/*"})
    assert not any("*" in action for one in role.statements for action in one.actions)


def test_a_run_that_failed_is_an_alarm_in_both_templates() -> None:
    found = timed.planned(Stack(prefix="prod-"), (timed.spec,))
    (alarm,) = [one for one in found.alarms if one.alarm == "map-failed"]
    assert (alarm.measures[0].metric, alarm.threshold, alarm.owner) == ("ExecutionsFailed", 1, "customers")
    (dimension,) = cloudformation.template(found)["Resources"][alarm.id]["Properties"]["Dimensions"]
    arn = "arn:${AWS::Partition}:states:${AWS::Region}:${AWS::AccountId}:stateMachine:prod-books-enrich"
    assert dimension == {"Name": "StateMachineArn", "Value": {"Fn::Sub": arn}}


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"queue": "operations", "catch": ()}, "has no function"),
        ({"source": "s3://shop-files"}, "names no bucket"),
        ({"source": "s3://UPPER/key.csv"}, "names no bucket"),
        ({"reader": ItemReader(encoding="latin-1")}, "latin-1"),
        ({"reader": ItemReader(quote="'")}, "quote"),
        ({"reader": ItemReader(format="listing"), "source": "s3://shop-files/", "results": None}, "lists as items"),
        ({"retry": (Retrier(errors=("A",), interval_ms=1_001, max_delay_ms=1_999),)}, "whole seconds"),
        ({"name": "n" * 80}, "characters"),
        ({"reader": ItemReader(header=tuple(f"column-{number}" for number in range(800)))}, None),
    ],
)
def test_what_step_functions_has_no_word_for_is_refused(changes: Json, said: str | None) -> None:
    spec = replace(timed.spec, **changes)
    if said is None:
        assert machine(spec).definition
        return
    with pytest.raises(errors.UsageError, match=re.escape(said)):
        machine(spec)
