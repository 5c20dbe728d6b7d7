"""A region of an AWS account as a document that rules read: queues, mappings, functions, and what is around them.

Only calls that read are made, each list page by page, a few at once; botocore waits when AWS throttles. What may not be
listed is left out, and that is reported: rules then report nothing as missing that may exist.
Never here: rules, credentials. Invariants: no call changes anything; no message is read, and no variable of a function kept;
at most `CALLS_AT_ONCE` calls are under way.

Sources: API references of SQS, Lambda, EventBridge (both generations), Scheduler, SNS, CloudWatch, DynamoDB, Step Functions,
IAM and KMS: actions List*, Get* and Describe*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import unquote

import boto3
from botocore.parsers import ResponseParserError
from msgspec import Struct

from onefold.check.collect_queue import QUEUE_ATTRIBUTES, QUEUE_DOCUMENTS
from onefold.check.documents import json_of
from onefold.check.facts import Document, PropertyPath, Span, Unresolved
from onefold.check.model import HELD_TAG
from onefold.engines.aws.session import Session, aws_errors
from onefold.errors import NotFoundError, OnefoldError

CALLS_AT_ONCE: Final = 8
RESOURCES_MAX: Final = 20_000
IGNORE_TAG: Final = "onefold:ignore"
_SUPPRESSED: Final = 200  # characters of a tag that are looked at
Json = dict[str, Any]


class Denied(Struct, frozen=True):
    """A call that was not answered, and why."""

    call: str
    why: str
    todo: str


class Account(Struct, frozen=True, kw_only=True):
    """What was read. `denied`: the calls that were not answered."""

    document: Document
    account: str
    region: str
    denied: tuple[Denied, ...]


def read_account(session: Session, name: str) -> Account:
    """Read a region of an account.

    Args:
        session: with the credentials and the region.
        name: what the region is called in findings, `aws://eu-west-1`.

    Raises:
        UsageError: the region does not exist.
    """
    session.client("sqs")
    with ThreadPoolExecutor(CALLS_AT_ONCE) as threads:
        reader = _Reader(session, threads)
        for read in (
            _queues, _mappings, _functions, _rules, _second_buses, _schedules, _topics, _alarms, _tables, _state_machines,
            _roles, _keys,
        ):  # fmt: skip
            read(reader)
    spans: dict[PropertyPath, Span] = {(): Span(1, 1, 1, 1)}
    document = Document(
        name, {"Resources": reader.resources}, {}, spans,
        missing=tuple(reader.missing), exact=True, is_generated=True,
    )  # fmt: skip
    accounts = [parts[4] for arn in reader.resources if len(parts := arn.split(":")) > 5]
    return Account(
        document=document, account=next(iter(accounts), ""), region=session.region, denied=tuple(reader.denied)
    )


class _Reader:
    """Calls to one region, and the resources made from the answers."""

    def __init__(self, session: Session, threads: ThreadPoolExecutor) -> None:
        self._session = session
        self._threads = threads
        self.resources: Json = {}
        self.missing: list[str] = []
        self.denied: list[Denied] = []

    def add(self, arn: str, kind: str, properties: Json, tags: Mapping[str, str] | None = None) -> None:
        """Note a resource; empty properties are as if they were not there."""
        made: Json = {"Type": kind, "Properties": {name: one for name, one in properties.items() if one is not None}}
        if suppressed := _suppressions((tags or {}).get(IGNORE_TAG, "")):
            made["Metadata"] = {"onefold": {"ignore": suppressed}}
        if len(self.resources) < RESOURCES_MAX:
            self.resources[arn] = made
        elif not any("more than" in one for one in self.missing):
            self.missing.append(f"more than {RESOURCES_MAX:,} resources")

    def has(self, service: str) -> bool:
        """Whether the installed boto3 knows a service, and that it is in the region."""
        return self._session.region in boto3.session.Session().get_available_regions(service)

    def listed(self, service: str, operation: str, key: str, **arguments: Any) -> list[Any] | None:
        """All items of a list, or its pages if it has no key; None if AWS does not return it."""
        found: list[Any] | None = self._asked(
            service, operation, lambda client: list(_pages(client, operation, key, arguments))
        )
        return found

    def each(
        self, items: Iterable[Any], service: str, operation: str, arguments: Callable[[Any], Json]
    ) -> Iterator[tuple[Any, Json | None]]:
        """The answer for each item, several asked for at once; None if AWS does not return it."""

        def ask(item: Any) -> Json | None:
            found: Json | None = self._asked(
                service, operation, lambda client: getattr(client, operation)(**arguments(item))
            )
            return found

        items = list(items)
        yield from zip(items, self._threads.map(ask, items), strict=True)

    def _asked(self, service: str, operation: str, call: Callable[[Any], Any]) -> Any:
        action = _action(service, operation)
        try:
            with aws_errors(action, self._session.region):
                return call(self._session.client(service))
        except NotFoundError:  # gone since it was listed, or it has none
            return {}
        except OnefoldError as error:
            denied = Denied(action, error.what, error.todo)
        except ResponseParserError:  # from an emulator that does not know the service
            what = f"{action} on {self._session.region} got an answer that is not AWS's."
            denied = Denied(action, what, "Ask AWS itself, or do without what needs this call.")
        if all(one.call != action for one in self.denied):  # the same for each of a thousand queues
            self.denied.append(denied)
        return None


def _action(service: str, operation: str) -> str:
    """A call as a policy names it: `lambda:ListFunctions`."""
    prefix = {"stepfunctions": "states", "eventbridgev2": "events"}.get(service, service)
    return f"{prefix}:{''.join(word.capitalize() for word in operation.split('_'))}"


def _pages(client: Any, operation: str, key: str, arguments: Json) -> Iterator[Any]:
    if client.can_paginate(operation):
        sized = {"PaginationConfig": {"PageSize": 1_000}} if operation == "list_queues" else {}
        for page in client.get_paginator(operation).paginate(**arguments, **sized):
            yield from (page.get(key) or ()) if key else (page,)
        return
    token: Json = {}
    while True:
        page = getattr(client, operation)(**arguments, **token)
        yield from page.get(key) or ()
        if not page.get("NextToken"):
            return
        token = {"NextToken": page["NextToken"]}


def _suppressions(tag: str) -> list[Json]:
    """`DUP002 LOS003: why, until=2027-01-01`, as a template's metadata has it; a tag has no brackets and commas."""
    ids, colon, rest = tag[:_SUPPRESSED].partition(":")
    reason, has_end, until = rest.partition("until=")
    ends = {"until": until.strip()} if has_end else {}
    return [{"id": one, "reason": reason.strip(), **ends} for one in ids.split() if colon]


def _name(arn: str) -> str:
    return arn.rpartition(":")[2]


def _json(text: Any) -> Any:
    try:
        return json_of(text)
    except ValueError:
        return None


def _document(written: Any) -> Any:
    """A policy of IAM, which boto3 has decoded unless it is not JSON."""
    return written if isinstance(written, dict) else _json(unquote(written)) if isinstance(written, str) else None


def _some(answer: Json, *names: str) -> Json:
    return {name: answer[name] for name in names if answer.get(name) is not None}


# -- services ---------------------------------------------------------------------------------------------------------


def _queues(reader: _Reader) -> None:
    urls = reader.listed("sqs", "list_queues", "QueueUrls") or []
    tags = dict(reader.each(urls, "sqs", "list_queue_tags", lambda url: {"QueueUrl": url}))
    asked = {"AttributeNames": ["All"]}
    for url, answer in reader.each(urls, "sqs", "get_queue_attributes", lambda url: {"QueueUrl": url, **asked}):
        attributes = (answer or {}).get("Attributes") or {}
        name = str(url).rpartition("/")[2]
        arn = attributes.get("QueueArn") or str(url)
        if answer is not None and not attributes:
            continue  # deleted since
        tagged = (tags.get(url) or {}).get("Tags") or {}
        unknown = Unresolved("its attributes may not be read") if answer is None else None
        properties = {
            "QueueName": name,
            "Tags": [{"Key": HELD_TAG, "Value": tagged[HELD_TAG]}] if HELD_TAG in tagged else None,
            **{one: attributes.get(one, unknown) for one in QUEUE_ATTRIBUTES},
            **{one: _json(attributes.get(one)) or unknown for one in QUEUE_DOCUMENTS},
        }
        if name.endswith(".fifo"):
            properties["FifoQueue"] = "true"
        reader.add(arn, "AWS::SQS::Queue", properties, tagged)
        policy = _json(attributes.get("Policy"))
        if answer is None or policy is not None:
            document = policy if answer is not None else unknown
            reader.add(f"{arn}.policy", "AWS::SQS::QueueInlinePolicy", {"Queue": url, "PolicyDocument": document})


def _mappings(reader: _Reader) -> None:
    for one in reader.listed("lambda", "list_event_source_mappings", "EventSourceMappings") or ():
        arn = one.get("EventSourceMappingArn") or str(one.get("UUID"))
        properties = _some(
            one, "EventSourceArn", "BatchSize", "MaximumBatchingWindowInSeconds", "FunctionResponseTypes",
            "ScalingConfig", "FilterCriteria", "DestinationConfig", "ProvisionedPollerConfig",
        )  # fmt: skip
        is_enabled = one.get("State") not in {"Disabled", "Disabling", "Deleting"}
        properties |= {"FunctionName": one.get("FunctionArn"), "Enabled": is_enabled}
        reader.add(arn, "AWS::Lambda::EventSourceMapping", properties)


def _functions(reader: _Reader) -> None:
    functions = {one["FunctionName"]: one for one in reader.listed("lambda", "list_functions", "Functions") or ()}
    mapped = {
        str(one["Properties"].get("FunctionName")).partition(":function:")[2].partition(":")[0]
        for one in reader.resources.values()
        if one["Type"] == "AWS::Lambda::EventSourceMapping"
    }

    def named(name: str) -> Json:
        return {"FunctionName": name}

    looked_at = sorted(mapped & functions.keys())  # these are read for them only
    reserved = dict(reader.each(looked_at, "lambda", "get_function_concurrency", named))
    loops = dict(reader.each(looked_at, "lambda", "get_function_recursion_config", named))
    invoked = dict(reader.each(sorted(functions), "lambda", "list_function_event_invoke_configs", named))
    for name, one in functions.items():
        properties = _some(
            one, "FunctionName", "Runtime", "Handler", "PackageType", "Timeout", "MemorySize", "Role", "DeadLetterConfig",
            "DurableConfig", "TenancyConfig", "CapacityProviderConfig",
        )  # fmt: skip
        known = reserved.get(name, {})
        properties["ReservedConcurrentExecutions"] = (
            Unresolved("it may not be read") if known is None else known.get("ReservedConcurrentExecutions")
        )
        allowed = loops.get(name, {})
        properties["RecursiveLoop"] = "Allow" if allowed is None else allowed.get("RecursiveLoop")
        reader.add(one["FunctionArn"], "AWS::Lambda::Function", properties)
        answer = invoked.get(name)
        configs = answer.get("FunctionEventInvokeConfigs", []) if answer is not None else [{}]
        for number, config in enumerate(configs):
            destination = _some(config, "DestinationConfig", "MaximumRetryAttempts")
            if answer is None:
                destination = {"DestinationConfig": Unresolved("it may not be read")}
            reader.add(
                f"{one['FunctionArn']}.invocations{number}",
                "AWS::Lambda::EventInvokeConfig",
                {"FunctionName": name, **destination},
            )


def _rules(reader: _Reader) -> None:
    for bus in reader.listed("events", "list_event_buses", "EventBuses") or ({"Name": "default"},):
        if bus.get("Arn"):
            properties = {"Name": bus["Name"], **_some(bus, "DeadLetterConfig", "KmsKeyIdentifier")}
            reader.add(bus["Arn"], "AWS::Events::EventBus", properties)
        rules = reader.listed("events", "list_rules", "Rules", EventBusName=bus["Name"]) or ()
        named = {one["Name"]: one for one in rules if not one.get("ManagedBy")}
        for name, one in named.items():
            targets = reader.listed("events", "list_targets_by_rule", "Targets", Rule=name, EventBusName=bus["Name"])
            properties = _some(one, "Name", "EventBusName", "ScheduleExpression", "State")
            properties["EventPattern"] = _json(one.get("EventPattern"))
            properties["Targets"] = Unresolved("they may not be read") if targets is None else targets
            reader.add(one["Arn"], "AWS::Events::Rule", properties)


def _second_buses(reader: _Reader) -> None:
    """Buses of the second generation and their subscribers; the rules of first-generation buses are read elsewhere."""
    if not reader.has("eventbridgev2"):
        return
    for bus in reader.listed("eventbridgev2", "list_event_buses", "EventBuses") or ():
        reader.add(bus["EventBusArn"], "AWS::EventsV2::EventBus", _some(bus, "Name"))

    def named(one: Json) -> Json:
        return {"SubscriberArn": one["SubscriberArn"]}

    subscribers = reader.listed("eventbridgev2", "list_subscribers", "Subscribers") or ()
    for one, answer in reader.each(subscribers, "eventbridgev2", "describe_subscriber", named):
        if answer:
            names = (
                "Name", "EventBusArn", "InvokeConfiguration", "FilterConfiguration", "Type", "RetryPolicy",
                "OnFailureConfiguration", "State",
            )  # fmt: skip
            reader.add(one["SubscriberArn"], "AWS::EventsV2::Subscriber", _some(answer, *names))


def _schedules(reader: _Reader) -> None:
    schedules = reader.listed("scheduler", "list_schedules", "Schedules") or ()

    def named(one: Json) -> Json:
        return {"Name": one["Name"], "GroupName": one.get("GroupName", "default")}

    for one, answer in reader.each(schedules, "scheduler", "get_schedule", named):
        if answer:
            names = ("Name", "GroupName", "ScheduleExpression", "State", "Target")
            reader.add(one["Arn"], "AWS::Scheduler::Schedule", _some(answer, *names))


def _topics(reader: _Reader) -> None:
    topics = [one["TopicArn"] for one in reader.listed("sns", "list_topics", "Topics") or ()]
    for arn, answer in reader.each(topics, "sns", "get_topic_attributes", lambda arn: {"TopicArn": arn}):
        attributes = (answer or {}).get("Attributes") or {}
        properties = {"TopicName": _name(arn), **_some(attributes, "KmsMasterKeyId", "FifoTopic")}
        if answer is None:
            properties["KmsMasterKeyId"] = Unresolved("it may not be read")
        reader.add(arn, "AWS::SNS::Topic", properties)
    subscriptions = [
        one
        for one in reader.listed("sns", "list_subscriptions", "Subscriptions") or ()
        if str(one.get("SubscriptionArn")).startswith("arn:")
    ]

    def named(one: Json) -> Json:
        return {"SubscriptionArn": one["SubscriptionArn"]}

    for one, answer in reader.each(subscriptions, "sns", "get_subscription_attributes", named):
        attributes = (answer or {}).get("Attributes") or {}
        properties = {**_some(one, "TopicArn", "Protocol", "Endpoint"), **_some(attributes, "RawMessageDelivery")}
        redrive = _json(attributes.get("RedrivePolicy"))
        properties["RedrivePolicy"] = redrive if answer is not None else Unresolved("it may not be read")
        reader.add(one["SubscriptionArn"], "AWS::SNS::Subscription", properties)


def _alarms(reader: _Reader) -> None:
    for kind, api in (("Alarm", "MetricAlarm"), ("CompositeAlarm", "CompositeAlarm")):
        alarms = reader.listed("cloudwatch", "describe_alarms", f"{api}s", AlarmTypes=[api])
        if alarms is None:
            reader.missing.append("alarms, which may not be read")
        for one in alarms or ():
            properties = _some(
                one, "AlarmName", "ActionsEnabled", "AlarmActions", "OKActions", "AlarmRule", "MetricName", "Namespace",
                "Statistic", "ExtendedStatistic", "Dimensions", "Period", "EvaluationPeriods", "Threshold",
                "ComparisonOperator", "TreatMissingData", "Metrics",
            )  # fmt: skip
            reader.add(one["AlarmArn"], f"AWS::CloudWatch::{kind}", properties)


def _tables(reader: _Reader) -> None:
    names = reader.listed("dynamodb", "list_tables", "TableNames") or ()
    ends = dict(reader.each(names, "dynamodb", "describe_time_to_live", lambda name: {"TableName": name}))
    for name, answer in reader.each(names, "dynamodb", "describe_table", lambda name: {"TableName": name}):
        table = (answer or {}).get("Table")
        if not table:
            continue
        properties = _some(table, "TableName", "KeySchema", "MultiRegionConsistency")
        replicas = [{"Region": one["RegionName"]} for one in table.get("Replicas") or ()]
        own = table["TableArn"].split(":")[3]
        properties["Replicas"] = [*replicas, {"Region": own}] if replicas else []
        ttl = (ends.get(name) or {}).get("TimeToLiveDescription") or {}
        if ends.get(name) is None:
            properties["TimeToLiveSpecification"] = Unresolved("it may not be read")
        elif ttl.get("TimeToLiveStatus") in {"ENABLED", "ENABLING"}:
            properties["TimeToLiveSpecification"] = {"AttributeName": ttl.get("AttributeName")}
        reader.add(table["TableArn"], "AWS::DynamoDB::GlobalTable", properties)


def _state_machines(reader: _Reader) -> None:
    machines = [
        one["stateMachineArn"] for one in reader.listed("stepfunctions", "list_state_machines", "stateMachines") or ()
    ]
    for arn, one in reader.each(
        machines, "stepfunctions", "describe_state_machine", lambda arn: {"stateMachineArn": arn}
    ):
        if one:
            properties = {
                "StateMachineName": one.get("name"),
                "StateMachineType": one.get("type"),
                "DefinitionString": one.get("definition"),
                "RoleArn": one.get("roleArn"),
            }
            reader.add(arn, "AWS::StepFunctions::StateMachine", properties)


def _roles(reader: _Reader) -> None:
    """Roles with all that they may do; those that AWS makes for its services and for people are left out."""
    asked = {"Filter": ["Role", "LocalManagedPolicy", "AWSManagedPolicy"]}
    pages = reader.listed("iam", "get_account_authorization_details", "", **asked)
    documents: Json = {}
    for one in [policy for page in pages or () for policy in page.get("Policies") or ()]:
        versions = (each.get("Document") for each in one.get("PolicyVersionList") or () if each.get("IsDefaultVersion"))
        documents[one.get("Arn")] = _document(next(versions, None))
    for one in [role for page in pages or () for role in page.get("RoleDetailList") or ()]:
        path = str(one.get("Path") or "/")
        if path.startswith(("/aws-service-role/", "/aws-reserved/")):
            continue
        attached = [each.get("PolicyArn") for each in one.get("AttachedManagedPolicies") or ()]
        written = [_document(each.get("PolicyDocument")) for each in one.get("RolePolicyList") or ()]
        properties = {
            "RoleName": f"{path[1:]}{one['RoleName']}",
            "AssumeRolePolicyDocument": _document(one.get("AssumeRolePolicyDocument")),
            "Policies": [
                {"PolicyDocument": each} for each in [*written, *(documents.get(arn) for arn in attached)] if each
            ],
            "ManagedPolicyArns": [arn for arn in attached if not documents.get(arn)],
        }
        reader.add(one["Arn"], "AWS::IAM::Role", properties)


def _keys(reader: _Reader) -> None:
    """The keys that queues and topics name, with their policies and aliases; AWS's own keys are known by their names."""
    named = {
        str(value)
        for one in reader.resources.values()
        for name in ("KmsMasterKeyId", "KmsKeyIdentifier")
        if isinstance(value := one["Properties"].get(name), str) and "alias/aws/" not in value
    }
    if not named:
        return
    aliases = reader.listed("kms", "list_aliases", "Aliases") or ()
    targets = {str(one.get(name)): one.get("TargetKeyId") for one in aliases for name in ("AliasName", "AliasArn")}
    ids = {
        str(targets.get(one) or one).rpartition("key/")[2] for one in named if ":alias/" not in one or one in targets
    }
    ids = {one for one in ids if not one.startswith("alias/")}
    for key, answer in reader.each(
        sorted(ids), "kms", "get_key_policy", lambda key: {"KeyId": key, "PolicyName": "default"}
    ):
        policy = Unresolved("it may not be read") if answer is None else _json(answer.get("Policy"))
        reader.add(key, "AWS::KMS::Key", {"KeyPolicy": policy})
    for one in aliases:
        if one.get("TargetKeyId") in ids:
            reader.add(one["AliasArn"], "AWS::KMS::Alias", _some(one, "AliasName", "TargetKeyId"))
