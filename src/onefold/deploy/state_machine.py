"""A declared map run as a Distributed Map of Step Functions: the definition, and its role.

    Items          the Map: reads the file or listing, makes batches, applies the limits, writes results to S3
      Item         a child execution: one invocation of the function of the job's queue, retried by the names of errors
      Tell-QUEUE   the target of a Catch: sends the child's input and error to an operations queue; the child has
      succeeded

Retries are in the child, because a retry on the Map itself would repeat all items. The function runs each child behind
the guard, under a key from its items, so a child that is started again (redrive, a lost answer) has its effect once. A
map whose items are not in S3 has no state machine; `onefold map` runs it.
Never here: templates, reading items. Invariant: the role gives access only to this map's file, results, function and
queues.

Sources: Step Functions developer guide, "Map state in Distributed mode", "ItemReader", "ItemBatcher", "ResultWriter",
"Handling errors in Step Functions workflows", "IAM policies for using Distributed Map states".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from onefold import errors
from onefold.deploy import iam, names
from onefold.deploy.functions import FunctionPlan
from onefold.deploy.stack import Stack
from onefold.duration import seconds_up
from onefold.maps.rules import BUSY, CONCURRENCY_DEFAULT, TIMEOUT, Catcher, MapSpec, Retrier

Json = dict[str, Any]

NAME_CHARS_MAX: Final = 80  # Step Functions API, CreateStateMachine, name
LABEL: Final = "Items"  # label of the Map; unique in its definition, and part of the children's ARNs
DEFINITION_BYTES_MAX: Final = 1_048_576  # developer guide, service quotas
# Developer guide, "Best practices": Lambda's own transient failures; no item was run, or its answer is in the record.
_LAMBDA_ERRORS: Final = (
    "Lambda.ClientExecutionTimeoutException",
    "Lambda.ServiceException",
    "Lambda.AWSLambdaException",
    "Lambda.SdkClientException",
    "Lambda.TooManyRequestsException",
)
# For a child that another invocation still runs, which ends within Lambda's 15 minutes: waits of 30 minutes in all,
# without jitter, which could shorten them to almost nothing.
_BUSY: Final = {
    "ErrorEquals": [BUSY],
    "IntervalSeconds": 30,
    "BackoffRate": 1.5,
    "MaxAttempts": 10,
    "MaxDelaySeconds": 300,
    "JitterStrategy": "NONE",
}
_TIMEOUTS: Final = ["States.Timeout", "Sandbox.Timedout", TIMEOUT]  # of the task, of the function, of the run in it
_S3: Final = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/(.*)")
_INPUT_TYPES: Final = {"csv": "CSV", "json": "JSON", "jsonl": "JSONL"}


class MachinePlan(Struct, frozen=True, kw_only=True):
    """A state machine.

    Args:
        id: part of its logical ids. name: its name.
        definition: Amazon States Language as JSON text, a pattern (see `names.py`).
        role: the role with which it runs. owner: the responsible team.
    """

    id: str
    name: str
    definition: str
    role: iam.RolePlan
    owner: str | None


def planned(
    app: str, specs: Sequence[MapSpec], stack: Stack, functions: Mapping[str, FunctionPlan]
) -> list[MachinePlan]:
    """The state machines of an app's map runs.

    Args:
        app: the app's name. specs: the specs of the declared maps. functions: by the id of their queue.

    Raises:
        UsageError: Step Functions would refuse something, or a map is on a queue that has no function.
    """
    return [_machine(app, spec, stack, functions) for spec in specs if is_in_s3(spec)]


def notes(specs: Sequence[MapSpec], functions: Mapping[str, FunctionPlan]) -> list[str]:
    """Notes, a sentence each, on maps that are different on AWS from what is declared, by name.

    Args:
        functions: by the id of their queue.
    """
    found = []
    for spec in sorted(specs, key=lambda spec: spec.name):
        function = functions.get(names.logical_id(spec.queue))
        most = None if function is None else function.mapping.concurrency_max
        if not is_in_s3(spec):
            found.append(
                f"Map {spec.name} gets no state machine: its items are not in S3. Run it where they are: onefold map."
            )
        elif most is not None and most < spec.concurrency != CONCURRENCY_DEFAULT:
            found.append(
                f"Map {spec.name} runs {most} children at one time, not {spec.concurrency}: its function may run no more. "
                f"Raise Function(concurrency=...) of queue {spec.queue}, if the systems that it calls can handle that."
            )
    return found


def is_in_s3(spec: MapSpec) -> bool:
    """Whether a map has a state machine, because its items are in S3."""
    return (spec.source or "").startswith("s3://")


def _machine(app: str, spec: MapSpec, stack: Stack, functions: Mapping[str, FunctionPlan]) -> MachinePlan:
    _check(spec)
    function = functions.get(names.logical_id(spec.queue))
    if function is None:
        raise errors.UsageError(
            f"Map {spec.name} runs on queue {spec.queue}, which has no function.",
            meaning="On AWS a state machine calls the function of that queue for each child.",
            todo="Remove function=None from the queue, or keep the items in a file outside S3 and run onefold map.",
        )
    name = f"{stack.prefix}{app}-{spec.name}"
    names.check_length(name, NAME_CHARS_MAX, f"The state machine of map {spec.name}")
    logical = f"{names.logical_id(spec.name)}Map"
    _check_reserved(spec, function)
    invoked = f"{'alias' if function.options.alias else 'function'}_arn.{function.id}"
    arn = f"{{{invoked}}}"
    text = as_text(definition(spec, function.mapping.concurrency_max, invoked))
    if len(text.encode()) > DEFINITION_BYTES_MAX:
        raise errors.UsageError(
            f"The definition of map {spec.name} has {len(text.encode()):,} bytes.",
            todo=f"Step Functions takes {DEFINITION_BYTES_MAX:,}: give fewer or shorter column names.",
        )
    return MachinePlan(
        id=logical,
        name=name,
        definition=text,
        role=iam.RolePlan(
            id=logical,
            service="states",
            text=f"What the map run {name} uses, and no more.",
            statements=_statements(spec, stack, name, arn),
            owner=function.owner,
        ),
        owner=function.owner,
    )


def _check_reserved(spec: MapSpec, function: FunctionPlan) -> None:
    """Refuse a map run whose children, together with the messages of its queue, need more than is reserved."""
    reserved, most = function.options.reserved, function.mapping.concurrency_max or 0
    beside = min(spec.concurrency, most)
    if reserved is not None and reserved < most + beside:
        raise errors.UsageError(
            f"Map {spec.name} runs {beside} children and its queue {most} invocations, but {reserved} are reserved.",
            meaning="Lambda would refuse the rest, and each refusal of a message uses one of its receives.",
            todo=f"Reserve {most + beside}, or lower the map's concurrency.",
        )


def _operations_queues(spec: MapSpec) -> list[str]:
    """The operations queues, sorted."""
    return sorted({one.queue for one in spec.catch})


def as_text(value: Json) -> str:
    """A definition as JSON text with onefold's own placeholders; a user's text that looks like one is escaped."""
    return _filled(names.in_json(json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)))


_OURS: Final = (
    "\ue000"  # stands for `{` of a placeholder while the text is escaped; a private character, in no definition
)


def _place(name: str) -> str:
    return f"{_OURS}{name}}}"


def _filled(text: str) -> str:
    return text.replace(_OURS, "{")


# -- the definition --------------------------------------------------------------------------------------------------


def definition(spec: MapSpec, concurrency_max: int | None = None, invoked: str | None = None) -> Json:
    """The state machine of a map run, as a plain value.

    Args:
        concurrency_max: the function's limit of concurrent invocations, which the run respects like its queue's
            mapping.
        invoked: the placeholder for the ARN of the function, or of its alias.
    """
    states: Json = {"Item": _item(spec, invoked or f"function_arn.{names.logical_id(spec.queue)}")}
    states |= {f"Tell-{queue}": _send_state(spec, queue) for queue in _operations_queues(spec)}
    run = {"run.$": f"States.Format('{_quoted(spec.name)}/{{}}', $$.Execution.Name)"}
    items: Json = {
        "Type": "Map",
        "Label": LABEL,
        "ItemProcessor": {
            "ProcessorConfig": {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"},
            "StartAt": "Item",
            "States": states,
        },
        "ItemReader": _reader(spec),
        "MaxConcurrency": min(spec.concurrency, concurrency_max or spec.concurrency),
        "ResultWriter": _writer(spec),
        "End": True,
    }
    if spec.batch is None:
        items["ItemSelector"] = run | {"item.$": "$$.Map.Item.Value"}
    else:
        bounds = {"MaxItemsPerBatch": spec.batch.items_max, "MaxInputBytesPerBatch": spec.batch.bytes_max}
        items["ItemBatcher"] = {name: value for name, value in bounds.items() if value is not None}
        items["ItemBatcher"]["BatchInput"] = run
    if spec.tolerated.count is not None:
        items["ToleratedFailureCount"] = spec.tolerated.count
    if spec.tolerated.percent is not None:
        items["ToleratedFailurePercentage"] = float(spec.tolerated.percent)
    return {"Comment": f"Map run {spec.name}: each item once.", "StartAt": "Items", "States": {"Items": items}}


def _quoted(text: str) -> str:
    """A text as it is written between the quotes of an intrinsic function."""
    return re.sub(r"([\\'{}])", r"\\\1", text)


def _item(spec: MapSpec, invoked: str) -> Json:
    payload: Json = {"onefold": {"map": spec.name, "run.$": _run_path(spec)}}
    payload |= {"item.$": "$.item"} if spec.batch is None else {"items.$": "$.Items"}
    own: Json = {
        "ErrorEquals": list(_LAMBDA_ERRORS),
        "IntervalSeconds": 2,
        "BackoffRate": 2.0,
        "MaxAttempts": 6,
        "JitterStrategy": "FULL",
    }
    found: Json = {
        "Type": "Task",
        "Resource": f"arn:{_place('partition')}:states:::lambda:invoke",
        "Parameters": {"FunctionName": _place(invoked), "Payload": payload},
        "OutputPath": "$.Payload",
        "Retry": [own, _BUSY, *(_retrier(rule) for rule in spec.retriers)],
        "End": True,
    }
    if spec.catch:
        found["Catch"] = [_catcher(one) for one in spec.catch]
    return found


def _run_path(spec: MapSpec) -> str:
    """The path of the run's name in a child's input."""
    return "$.run" if spec.batch is None else "$.BatchInput.run"


def _retrier(rule: Retrier) -> Json:
    found: Json = {
        "ErrorEquals": error_names(rule.errors),
        "IntervalSeconds": seconds_up(rule.interval_ms),
        "BackoffRate": float(rule.backoff),
        "MaxAttempts": rule.retries,
        "JitterStrategy": rule.jitter.upper(),
    }
    if rule.max_delay_ms is not None:
        found["MaxDelaySeconds"] = seconds_up(rule.max_delay_ms)
    return found


def _catcher(rule: Catcher) -> Json:
    return {"ErrorEquals": error_names(rule.errors), "ResultPath": "$.failure", "Next": f"Tell-{rule.queue}"}


def error_names(declared: Sequence[str]) -> list[str]:
    """Names of errors as Step Functions sees them; Lambda omits a class's module, and has three names for timeouts."""
    found: list[str] = []
    for name in declared:
        short = name if name.startswith(("States.", "Sandbox.", "Lambda.")) else name.rpartition(".")[2]
        found += _TIMEOUTS if short in _TIMEOUTS else [short]
    return list(dict.fromkeys(found))


def _reader(spec: MapSpec) -> Json:
    reader = spec.reader
    bucket, key = _s3_of(spec.source, spec.name)
    config: Json = {}
    if reader.format != "listing":
        config["InputType"] = _INPUT_TYPES[reader.format]
    if reader.format == "csv":
        if reader.delimiter != "comma":  # its default
            config["CSVDelimiter"] = reader.delimiter.upper()
        config["CSVHeaderLocation"] = "FIRST_ROW" if reader.header is None else "GIVEN"
        if reader.header is not None:
            config["CSVHeaders"] = list(reader.header)
    if reader.items_max is not None:
        config["MaxItems"] = reader.items_max
    listing = reader.format == "listing"
    found: Json = {
        "Resource": f"arn:{_place('partition')}:states:::s3:{'listObjectsV2' if listing else 'getObject'}",
        "Parameters": {"Bucket": bucket, "Prefix" if listing else "Key": key},
    }
    return found | ({"ReaderConfig": config} if config else {})


def _writer(spec: MapSpec) -> Json:
    bucket, prefix = _results_of(spec)
    return {
        "Resource": f"arn:{_place('partition')}:states:::s3:putObject",
        "Parameters": {"Bucket": bucket, "Prefix": prefix},
    }


def _send_state(spec: MapSpec, queue: str) -> Json:
    message = {
        "Error.$": "$.failure.Error",
        "Cause.$": "$.failure.Cause",
        "Input.$": "$.item" if spec.batch is None else "$.Items",
        "Map": spec.name,
        "Name.$": f"States.Format('{{}}/{{}}', {_run_path(spec)}, $$.Execution.Name)",
    }
    parameters: Json = {"QueueUrl": _place(f"queue_url.{names.logical_id(queue)}"), "MessageBody": message}
    if queue.endswith(".fifo"):
        parameters |= {"MessageGroupId": spec.name, "MessageDeduplicationId.$": "$$.Execution.Name"}
    return {
        "Type": "Task",
        "Resource": f"arn:{_place('partition')}:states:::sqs:sendMessage",
        "Parameters": parameters,
        "ResultPath": "$.told",
        "OutputPath": "$.failure",
        "Retry": [{"ErrorEquals": ["States.ALL"], "IntervalSeconds": 2, "BackoffRate": 2.0, "MaxAttempts": 6}],
        "End": True,
    }


# -- locations and permissions ---------------------------------------------------------------------------------------


def _s3_of(url: str | None, name: str) -> tuple[str, str]:
    found = _S3.fullmatch(url or "")
    if found is None:
        raise errors.UsageError(
            f"Map {name}: {url!r} names no bucket with something in it.",
            todo="Write for example s3://my-bucket/nightly/customers.csv.",
        )
    return found[1], found[2]


def _results_of(spec: MapSpec) -> tuple[str, str]:
    """Bucket and prefix of the results, the prefix without a slash at its end."""
    if spec.results is not None and spec.results.startswith("s3://"):
        bucket, prefix = _s3_of(spec.results, spec.name)
        return bucket, prefix.rstrip("/")
    bucket, _ = _s3_of(spec.source, spec.name)
    return bucket, f"onefold-map-runs/{spec.name}"


def _statements(spec: MapSpec, stack: Stack, machine: str, function: str) -> tuple[iam.Statement, ...]:
    bucket, key = _s3_of(spec.source, spec.name)
    results = "/".join(_results_of(spec))
    found = [iam.Statement(sid="RunItems", actions=("lambda:InvokeFunction",), resources=(function,))]
    if spec.reader.format == "listing":
        like = {"s3:prefix": f"{key}*"}
        found.append(
            iam.Statement(sid="ListItems", actions=("s3:ListBucket",), resources=(names.bucket_arn(bucket),), like=like)
        )
    else:
        objects = f"arn:{{partition}}:s3:::{bucket}/{key}"
        found.append(iam.Statement(sid="ReadItems", actions=("s3:GetObject",), resources=(objects,)))
    found += [
        iam.Statement(
            sid="WriteResults",
            actions=("s3:AbortMultipartUpload", "s3:GetObject", "s3:ListMultipartUploadParts", "s3:PutObject"),
            resources=(names.objects_arn(results),),
        ),
        iam.Statement(sid="StartChildren", actions=("states:StartExecution",), resources=(names.machine_arn(machine),)),
        iam.Statement(
            sid="FollowChildren",
            actions=("states:DescribeExecution", "states:StopExecution"),
            resources=(names.executions_arn(machine),),
        ),
        iam.Statement(
            sid="RedriveChildren",
            actions=("states:RedriveExecution",),
            resources=(names.executions_arn(machine, LABEL),),
        ),
    ]
    if spec.catch:
        queues = tuple(names.queue_arn(stack.prefix + queue) for queue in _operations_queues(spec))
        found.append(iam.Statement(sid="TellOperations", actions=("sqs:SendMessage",), resources=queues))
    if stack.kms_key is not None:
        use, ours = ("kms:Decrypt", "kms:GenerateDataKey"), (stack.kms_key,)
        by = ("s3", "sqs") if spec.catch else ("s3",)
        # Step Functions does not call through a service for its own history; children are named machine/label
        like = {"kms:EncryptionContext:aws:states:stateMachineArn": f"{names.machine_arn(machine)}*"}
        found += [
            iam.Statement(sid="UseKey", actions=use, resources=ours, services=by),
            iam.Statement(sid="UseKeyForItself", actions=use, resources=ours, like=like),
        ]
    return tuple(found)


# -- what Step Functions would refuse ----------------------------------------------------------------------------------


def _check(spec: MapSpec) -> None:
    """Refuse a map that Step Functions cannot express; `MapSpec` checks the ranges."""
    reader = spec.reader
    text = reader.format in ("csv", "json", "jsonl")
    for what, wrong in (
        (f"encoding={reader.encoding!r}", text and reader.encoding not in ("utf-8", "ascii")),
        (f"quote={reader.quote!r}", reader.format == "csv" and reader.quote != '"'),
    ):
        if wrong:
            raise errors.UsageError(
                f"Map {spec.name} reads its items with {what}.",
                meaning="Step Functions reads UTF-8, and only the double quote as the quote character.",
                todo="Convert the file, or keep it outside S3 and run onefold map.",
            )
    for queue in _operations_queues(spec):
        names.check_length(f"Tell-{queue}", NAME_CHARS_MAX, f"A state of map {spec.name}")
    for one in spec.retry:
        if one.max_delay_ms is not None and seconds_up(one.max_delay_ms) <= seconds_up(one.interval_ms):
            raise errors.UsageError(
                f"Map {spec.name} has a longest pause of {one.max_delay_ms} ms over an interval of {one.interval_ms} ms.",
                meaning="Step Functions counts whole seconds, and requires the longest pause to exceed the interval.",
                todo="Choose whole seconds that differ.",
            )
    bucket, key = _s3_of(spec.source, spec.name)
    written_to, prefix = _results_of(spec)
    if reader.format == "listing" and written_to == bucket and f"{prefix}/".startswith(key):
        raise errors.UsageError(
            f"Map {spec.name} writes its results to s3://{written_to}/{prefix}/, which it lists as items.",
            todo="Give results=, another prefix or bucket, or list a folder below.",
        )
