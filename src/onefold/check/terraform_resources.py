"""Resources of Terraform's AWS provider in CloudFormation's words, so that the same facts are collected from them.

What Terraform writes as separate resources (targets of a rule, policies and redrive policies of a queue) is put where
CloudFormation has it. A plan gives one document for each region.
Never here: how a plan is read (terraform_plan.py), or a rule. Invariant: an argument that is not known stays unknown, and no
resource is left out because of it.

Sources: registry documentation of hashicorp/aws 5 and 6, Argument and Attribute Reference of each resource; CloudFormation
template reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from onefold.check.documents import json_of
from onefold.check.facts import Document, PropertyPath, Span, Unresolved
from onefold.check.terraform_plan import (
    ABSENT,
    UNKNOWN,
    Block,
    Encoded,
    Perhaps,
    Pieces,
    Plan,
    Planned,
    PlanTarget,
)
from onefold.check.terraform_sources import Written, redrive_of
from onefold.check.terraform_types import TARGET, TYPES, WORDS, Part, Parts

Json = dict[str, Any]
_ARNS: Final = frozenset({"arn", "invoke_arn", "qualified_arn", "topic_arn", "target_arn"})
_NAMES: Final = frozenset({"name", "function_name", "alarm_name", "key_id"})
_ID_IS_ARN: Final = frozenset(
    {"aws_sns_topic", "aws_sfn_state_machine", "aws_sns_topic_subscription", "aws_scheduler_schedule"}
)
_QUEUE_ARN: Final = re.compile(r"(?P<base>aws_sqs_queue\.[\w-]+)(?P<index>\[[^\]]*\])?\.arn")
_OF_ALL_REGIONS: Final = "aws_iam_"
_REGION: Final = re.compile(r"[a-z]{2,4}(-[a-z]{2,10}){1,3}-[0-9]{1,2}")
_GAP: Final = re.compile("\ue000([0-9]{1,6})\ue001")  # a part of JSON that is not known
_OF_VALUES: Final = ("arn", "url", "qualified_arn", "key_id")


def documents_of(plan: Plan) -> Iterator[tuple[Document, str, str]]:
    """The documents of a plan, one for each region, each with its account and region, "" if it is not known."""
    groups: dict[str, list[Planned]] = {}
    everywhere: list[Planned] = []
    for one in plan.resources.values():
        if one.type.startswith(_OF_ALL_REGIONS) or one.is_data:
            everywhere.append(one)
        else:
            groups.setdefault(_region(plan, one), []).append(one)
    for region, resources in groups.items():
        yield _Writer(plan, [*resources, *everywhere], region if _REGION.fullmatch(region) else "").document()


def _region(plan: Plan, one: Planned) -> str:
    """What distinguishes the regions of a plan: the region of a resource, or else its provider."""
    parts = str(one.body.values.get("arn") or "").split(":")
    of_arn = parts[3] if len(parts) > 5 and one.type in TYPES else ""  # the ARN of a target is that of another resource
    return str(one.body.values.get("region") or of_arn or plan.regions.get(one.provider) or one.provider)


def _depending(one: Planned) -> Json:
    """The condition of a resource that may not exist."""
    return {"Condition": one.condition} if one.condition else {}


def _perhaps_made(one: Planned, value: Any) -> Any:
    """A part of another resource that Terraform writes as a separate one."""
    return {"Fn::If": [one.condition, value, {"Ref": "AWS::NoValue"}]} if one.condition else value


def _is_made(one: Planned) -> bool:
    """Whether it is a resource of a type that is known here, and not a data source, which says little about it."""
    return one.type in TYPES and not one.is_data


def _json_with_gaps(parts: Sequence[Any]) -> Any:
    """The value of JSON in which parts of the texts are not known, or are references."""
    known = "".join(one for one in parts if isinstance(one, str)).lower()
    if "\ue000" in known or r"\ue000" in known:  # JSON would make a gap of it
        return Perhaps((), "a text with a character that marks gaps here")
    text = "".join(one if isinstance(one, str) else f"\ue000{at}\ue001" for at, one in enumerate(parts))
    text = re.sub(rf"([:\[,]\s*)({_GAP.pattern})(?=\s*[,\]}}])", r'\1"\2"', text)  # a number, or a whole value
    try:
        return _filled(json_of(text), parts)
    except ValueError:
        return Perhaps((), "a text whose known parts are not JSON")


def _filled(value: Any, parts: Sequence[Any]) -> Any:
    """A value of JSON, with the gaps in its texts filled in again."""
    match value:
        case str() if _GAP.search(value):
            found = [one if at % 2 == 0 else parts[int(one)] for at, one in enumerate(_GAP.split(value))]
            found = [one for one in found if one != ""]
            return found[0] if len(found) == 1 else Pieces(tuple(found))
        case list():
            return [_filled(one, parts) for one in value]
        case dict():
            return {name: _filled(one, parts) for name, one in value.items()}
        case _:
            return value


def _is_off(block: Any) -> bool:
    return isinstance(block, dict) and block.get("Enabled") is False


class _Writer:
    def __init__(self, plan: Plan, resources: Sequence[Planned], region: str) -> None:
        self._plan = plan
        self._region = region
        self._resources = {one.address: one for one in resources}
        self._known: dict[str, Any] = {}
        for one in resources:
            for name in _OF_VALUES:
                value = one.body.values.get(name)
                if isinstance(value, str) and value and _is_made(one):
                    self._known.setdefault(value, self._reference(PlanTarget(one.address, name)))
        self._made: Json = {}
        self._spans: dict[PropertyPath, Span] = {}

    def document(self) -> tuple[Document, str, str]:
        for one in self._resources.values():
            if _is_made(one):
                self._take(one)
        for one in self._resources.values():
            match one.type:
                case "aws_cloudwatch_event_target":
                    self._take_target(one)
                case "aws_sqs_queue_redrive_policy":
                    self._take_attribute(one, "redrive_policy", "RedrivePolicy")
                case "aws_sqs_queue_redrive_allow_policy":
                    self._take_attribute(one, "redrive_allow_policy", "RedriveAllowPolicy")
                case "aws_lambda_function_recursion_config":
                    self._take_recursion(one)
                case _:
                    pass
        account, region = self._place()
        outputs: Json = {
            name: {"Value": self._perhaps(Perhaps(tuple(targets))), "Export": {"Name": name}}
            for name, targets in self._plan.outputs.items()
        }
        conditions = {
            one.condition: Unresolved(f"{one.condition} is not known")
            for one in self._resources.values()
            if one.condition
        }
        data = {"Resources": self._made, "Outputs": outputs, "Conditions": conditions}
        document = Document(
            self._plan.file, data, {}, self._spans, self._plan.text,
            missing=self._plan.missing, exact=bool(account and region), words=WORDS, is_generated=True,
        )  # fmt: skip
        return document, account, region

    def _place(self) -> tuple[str, str]:
        for one in self._resources.values():
            parts = str(one.body.values.get("arn") or "").split(":")
            if _is_made(one) and len(parts) > 5 and parts[3] and parts[4]:
                return parts[4], parts[3]
        return "", self._region

    def _take(self, one: Planned) -> None:
        kind = TYPES[one.type]
        properties = self._properties(one.body, kind.parts, kind.defaults)
        match one.type:
            case "aws_sqs_queue":
                properties |= self._written_redrive(one)
                policy = self._property(one.body, "policy", Part("", "text"))
                if policy is not ABSENT:
                    self._made[f"{one.address}.policy"] = {
                        "Type": "AWS::SQS::QueueInlinePolicy",
                        **_depending(one),
                        "Properties": {"Queue": {"Ref": one.address}, "PolicyDocument": policy},
                    }
            case "aws_lambda_function":
                properties |= self._code(one.body)
                if properties.get("ReservedConcurrentExecutions") == -1:  # the provider's word for none
                    del properties["ReservedConcurrentExecutions"]
            case "aws_dynamodb_table":
                self._table(one.body, properties)
            case "aws_cloudwatch_event_rule" if one.body.value("is_enabled") is False and "State" not in properties:
                properties["State"] = "DISABLED"
            case "aws_iam_role_policy_attachment" | "aws_iam_policy_attachment":
                properties["PolicyDocument"] = self._managed(one.body)
            case _:
                pass
        self._made[one.address] = {"Type": kind.name, **_depending(one), "Properties": properties}
        if "" in one.written:
            self._spans["Resources", one.address] = one.written[""].span
        self._place_spans(one.written, kind.parts, ("Resources", one.address, "Properties"))

    def _place_spans(self, written: Mapping[str, Written], parts: Parts, path: PropertyPath) -> None:
        """Note where properties are written."""
        for name, part in parts.items():
            if name not in written:
                continue
            at = (*path, part if isinstance(part, str) else part.name)
            self._spans[at] = written[name].span
            if isinstance(part, Part) and part.how == "text":
                self._spans |= {(*at, key): one.span for key, one in written[name].inside.items()}
            elif isinstance(part, Part) and part.how == "one":
                self._place_spans(written[name].inside, part.inside, at)

    def _written_redrive(self, one: Planned) -> Json:
        """A redrive policy that the plan does not know, where the files give it and name the same queue as the plan."""
        written = one.written.get("redrive_policy")
        found = redrive_of(written.text) if written and not isinstance(one.body.value("redrive_policy"), str) else None
        match = _QUEUE_ARN.fullmatch(found[0]) if found else None
        if found is None or match is None:
            return {}
        own = one.address.rpartition(".")[2].partition("[")
        index = f"[{own[2]}" if match["index"] in {"[each.key]", "[count.index]"} else match["index"] or ""
        address = f"{one.module}.{match['base']}{index}" if one.module else f"{match['base']}{index}"
        if address not in {each.address for each in one.body.targets("redrive_policy") or ()}:
            return {}
        arn = self._reference(PlanTarget(address, "arn"))
        return {"RedrivePolicy": {"deadLetterTargetArn": arn, "maxReceiveCount": found[1]}}

    def _properties(self, body: Block, parts: Parts, defaults: Mapping[str, Any] = {}) -> Json:
        found: Json = {}
        for name, part in parts.items():
            value = self._property(body, name, part)
            if value is ABSENT or (not body.is_written(name) and name in defaults and value == defaults[name]):
                continue
            found[part if isinstance(part, str) else part.name] = value
        return found

    def _property(self, body: Block, name: str, part: str | Part) -> Any:
        if isinstance(part, str):
            return self._value(body.value(name))
        if part.how in ("one", "many"):
            blocks = body.blocks(name)
            if isinstance(blocks, Unresolved):
                return blocks
            made = [self._properties(one, part.inside) for one in blocks]
            return ABSENT if not made else made if part.how == "many" else made[0]
        value = body.value(name)
        if part.how == "text":
            return self._json(value)
        if isinstance(value, PlanTarget):  # the list or mapping has other items too
            return self._perhaps(Perhaps((value,)))
        if part.how == "whole" or not isinstance(value, dict):
            return self._value(value)
        key = "Key" if part.how == "tags" else "Name"
        return [{key: name, "Value": self._value(one)} for name, one in value.items()]

    def _value(self, value: Any) -> Any:
        match value:
            case PlanTarget():
                return self._reference(value)
            case Perhaps():
                return self._perhaps(value)
            case Pieces():
                return {"Fn::Join": ["", [self._value(one) for one in value.parts]]}
            case Encoded():
                return {"Fn::ToJsonString": self._value(value.value)}
            case str():
                return self._known.get(value, value)
            case list():
                return [self._value(one) for one in value]
            case dict():
                return {name: self._value(one) for name, one in value.items()}
            case _:
                return value

    def _json(self, value: Any) -> Any:
        """The value of JSON; of a data source that is read during apply, the parts that are known."""
        if isinstance(value, PlanTarget):
            source = self._resources.get(value.address)
            if source is not None and source.type == "aws_iam_policy_document":
                return self._policy(source.body)
            return self._perhaps(Perhaps((value,)))
        if isinstance(value, Encoded):
            return self._value(value.value)
        if isinstance(value, Pieces):
            return self._value(_json_with_gaps(value.parts))
        if not isinstance(value, str):
            return self._value(value)
        try:
            return self._value(json_of(value))
        except ValueError:
            return value

    def _reference(self, target: PlanTarget) -> Any:
        one = self._resources.get(target.address)
        if one is None:
            return Unresolved(f"{target.address} is in another region")
        if one.type == "aws_lambda_alias" and target.attribute in {"arn", "invoke_arn"}:
            return {"Ref": one.address}
        is_arn = target.attribute in _ARNS or (target.attribute == "id" and one.type in _ID_IS_ARN)
        if one.type in TYPES and is_arn:
            return {"Fn::GetAtt": [one.address, "Arn"]}
        if one.type == "aws_sqs_queue" and target.attribute == "name":
            return {"Fn::GetAtt": [one.address, "QueueName"]}
        if one.type == "aws_sqs_queue" and target.attribute in {"id", "url"}:
            return {"Ref": one.address}
        if one.type in TYPES and (target.attribute in _NAMES or target.attribute == "id"):
            return {"Fn::GetAtt": [one.address, "Name"]} if one.type != "aws_lambda_function" else {"Ref": one.address}
        return Unresolved(f"{target.attribute or 'a value'} of {target.address} is known after apply")

    def _perhaps(self, value: Perhaps) -> Any:
        """A value that is not known, with the resources it may come from, so that these count as referred to."""
        listed = [{"Ref": one.address} for one in value.targets if one.address in self._resources]
        return {"Fn::Select": [Unresolved(value.why), listed]} if listed else Unresolved(value.why)

    # -- what CloudFormation writes elsewhere ------------------------------------------------------------------------------

    def _policy(self, body: Block) -> Any:
        """The document that a data source makes."""
        blocks = body.blocks("statement")
        others = ("source_policy_documents", "override_policy_documents", "source_json", "override_json")
        if isinstance(blocks, Unresolved) or any(body.value(name) is not ABSENT for name in others):
            return Unresolved(UNKNOWN)
        return {"Statement": [self._statement(one) for one in blocks]}

    def _statement(self, body: Block) -> Json:
        made: Json = {"Effect": self._given(body, "effect", "Allow")}
        for name, element in (("actions", "Action"), ("resources", "Resource")):
            if body.is_written(name) or body.values.get(name):
                listed = self._given(body, name, Unresolved(UNKNOWN))
                made[element] = listed if isinstance(listed, list) else [listed]
        principals, conditions = body.blocks("principals"), body.blocks("condition")
        if isinstance(principals, Unresolved) or isinstance(conditions, Unresolved):
            return {**made, "Principal": Unresolved(UNKNOWN)}
        for one in principals:
            named = made.setdefault("Principal", {})
            kind, who = self._given(one, "type", ""), self._given(one, "identifiers", [])
            if kind == "*":
                made["Principal"] = "*"
            elif isinstance(named, dict):
                named.setdefault(str(kind), []).extend(who if isinstance(who, list) else [who])
        for one in conditions:
            tests = made.setdefault("Condition", {}).setdefault(str(self._given(one, "test", "")), {})
            values = self._given(one, "values", Unresolved(UNKNOWN))
            tests[str(self._given(one, "variable", ""))] = values if isinstance(values, list) else [values]
        return made

    def _given(self, body: Block, name: str, default: Any) -> Any:
        value = self._value(body.value(name))
        return default if value is ABSENT else value

    def _managed(self, body: Block) -> Any:
        """The document of a managed policy, where the plan has it."""
        given = body.value("policy_arn")
        known = self._known_policy(given)
        return Unresolved("a managed policy") if known is None else known

    def _known_policy(self, given: Any) -> Any:
        for one in self._resources.values():
            is_it = isinstance(given, PlanTarget) and given.address == one.address
            if one.type == "aws_iam_policy" and (is_it or given == one.body.values.get("arn")):
                return self._json(one.body.value("policy"))
        return None

    def _code(self, body: Block) -> Json:
        """Where a function's code is: the directory that a data source zips, if one does."""
        for target in body.targets("filename") or ():
            source = self._plan.resources.get(target.address)
            values = source.body.values if source is not None and source.type == "archive_file" else {}
            if isinstance(values.get("source_dir"), str):
                return {"Code": values["source_dir"]}
        given = body.value("filename")
        return {"Code": given} if isinstance(given, str) else {"Code": {"S3Bucket": "", "S3Key": ""}}

    def _table(self, body: Block, properties: Json) -> None:
        key = body.value("hash_key")
        if key is not ABSENT:
            properties["KeySchema"] = [{"KeyType": "HASH", "AttributeName": self._value(key)}]
        if body.values.get("ttl") and _is_off(properties.get("TimeToLiveSpecification")):
            del properties["TimeToLiveSpecification"]
        replicas = properties.get("Replicas")
        if not isinstance(replicas, list):
            return
        if any(one.pop("Consistency", "") == "STRONG" for one in replicas):
            properties["MultiRegionConsistency"] = "STRONG"
        replicas.append({"Region": _region(self._plan, self._resources[body.address])})

    def _take_target(self, one: Planned) -> None:
        """Add a target to its rule; if that is not known, every rule may have it."""
        made = self._properties(one.body, TARGET)
        rule = self._named("aws_cloudwatch_event_rule", one.body, "rule", "event_bus_name")
        rules = [rule] if rule is not None else [
            each.address for each in self._resources.values() if each.type == "aws_cloudwatch_event_rule"
        ]  # fmt: skip
        for address in rules:
            properties = self._made[address]["Properties"]
            if rule is None:
                properties["Targets"] = Unresolved("a target's rule is known after apply")
            elif isinstance(targets := properties.setdefault("Targets", []), list):
                if "" in one.written:
                    self._spans["Resources", address, "Properties", "Targets", len(targets)] = one.written[""].span
                targets.append(_perhaps_made(one, made))

    def _named(self, kind: str, body: Block, name: str, *same: str) -> str | None:
        """The address of the resource of this type that an argument names."""
        given = body.value(name)
        targets = (
            [given] if isinstance(given, PlanTarget) else list(given.targets) if isinstance(given, Perhaps) else []
        )
        if len(targets) == 1:
            return targets[0].address if self._has(targets[0].address, kind) else None
        if not isinstance(given, str):
            return None
        found = []
        for one in self._resources.values():
            values = one.body.values
            is_same = all((values.get(each) or "default") == (body.values.get(each) or "default") for each in same)
            if one.type == kind and is_same and given in (values.get("name"), values.get("url"), values.get("id")):
                found.append(one.address)
        return found[0] if len(found) == 1 else None

    def _has(self, address: str, kind: str) -> bool:
        return address in self._resources and self._resources[address].type == kind

    def _take_attribute(self, one: Planned, name: str, attribute: str) -> None:
        """A redrive policy that is a resource of its own; if its queue is not known, every queue may have it."""
        queue = self._named("aws_sqs_queue", one.body, "queue_url")
        value = self._json(one.body.value(name))
        for address, made in self._made.items():
            if made["Type"] == "AWS::SQS::Queue" and queue in (None, address):
                value = _perhaps_made(one, value) if queue is not None else Unresolved(UNKNOWN)
                made["Properties"].setdefault(attribute, value)

    def _take_recursion(self, one: Planned) -> None:
        function = self._named("aws_lambda_function", one.body, "function_name")
        for address, made in self._made.items():
            if made["Type"] == "AWS::Lambda::Function" and function in (None, address):
                made["Properties"]["RecursiveLoop"] = self._given(one.body, "recursive_loop", "Allow")
