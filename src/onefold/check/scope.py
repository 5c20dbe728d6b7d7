"""What names in a template refer to: parameters, pseudo parameters, conditions, tables, names and ARNs of resources.

Never here: what a queue or function consists of. A resource gets the name its template gives it, or its logical id
(CloudFormation would add the stack's name and a random part); queues and functions have URLs and ARNs. Everything else
that is referred to stays unresolved for a local SQS, where it does not exist; rules ask for everything (kinds.py).
`Properties` gives the properties of one resource, resolved one by one, with a note of each that could not be.
Invariants: a name that refers to itself is unresolved, never a loop; an accessor always gives a value of its type: when
the template's own is unresolved or malformed, it is the default, and `unresolved` has the reason under the property's path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from onefold.check.facts import Document, LeftOut, PropertyPath, ResourceSetting, TemplateLocation, Unresolved
from onefold.check.intrinsics import NO_VALUE, Intrinsics, flag, is_function, text_of, whole_number
from onefold.check.kinds import ARN_ATTRIBUTES, KINDS, NAME_ATTRIBUTES, QUALIFIED, SERVED
from onefold.errors import UsageError

QUEUE: Final = "AWS::SQS::Queue"
FUNCTIONS: Final = frozenset({"AWS::Lambda::Function", "AWS::Serverless::Function"})
PARAMETER_CHARS_MAX: Final = 4_096  # CloudFormation quotas: parameter value, 4,096 bytes
STACK_NAME: Final = "local"
ACCOUNT, REGION, STACK = "AWS::AccountId", "AWS::Region", "AWS::StackName"  # pseudo parameters
LEFT_OUT: Final = "it is left out under the conditions that hold here, and others may hold"
T = TypeVar("T")


class Scope:
    """The names of one template.

    Args:
        endpoint: the beginning of the URLs that `Ref` of a queue returns.
        everything: resources other than queues and functions can be referred to as well.
        values: values of parameters, over the given ones; Unresolved: only values that it is not are known. They may
            include `ACCOUNT`, `REGION` and `STACK`.
    """

    def __init__(
        self, document: Document, *, parameters: Mapping[str, str], account: str, region: str, endpoint: str = "",
        everything: bool = False, values: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        values = values or {}
        account, region = values.get(ACCOUNT, account), values.get(REGION, region)
        stack = values.get(STACK, STACK_NAME)
        self.document = document
        self.everything = everything
        self.account = account
        self.region = region
        self.functions = Intrinsics(self)
        self._endpoint = endpoint.rstrip("/") or f"https://sqs.{region}.amazonaws.com"
        self._stack_id = f"arn:aws:cloudformation:{region}:{account}:stack/{stack}/{stack}"
        self._pseudo: dict[str, Any] = {
            ACCOUNT: account,
            "AWS::NoValue": NO_VALUE,
            "AWS::NotificationARNs": [],
            "AWS::Partition": _partition(region),
            REGION: region,
            "AWS::StackId": self._stack_id,
            STACK: stack,
            "AWS::URLSuffix": "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com",
        }
        self.resources = self.section("Resources")
        self._conditions = self.section("Conditions")
        self._tables = self.section("Mappings")
        self._decided: dict[str, bool | Unresolved] = {}
        self._named: dict[str, tuple[str, Unresolved | None]] = {}
        self._naming: set[str] = set()
        self._circles: set[str] = set()
        self.parameters = {**self._parameters(parameters), **values}

    def section(self, name: str) -> dict[str, Any]:
        """A section of the template, empty when it has none.

        Raises:
            UsageError: the section is not a mapping.
        """
        found = self.document.data.get(name)
        if found is None:
            return {}
        if not isinstance(found, dict):
            line = self.document.line((name,))
            raise UsageError(
                f"{self.document.file}:{line} section {name} is not a mapping.", todo="Correct it; nothing was read."
            )
        return found

    def resolve(self, value: Any) -> Any:
        """The value with every function in it evaluated; unresolved if names refer to one another too deeply."""
        try:
            return self.functions.resolve(value)
        except RecursionError:
            return Unresolved("functions and names are nested too deeply")

    # -------------------------------------------------------------------------------------- parameters

    def _parameters(self, given: Mapping[str, str]) -> dict[str, Any]:
        declared = self.section("Parameters")
        if unknown := sorted(set(given) - set(declared)):
            raise UsageError(
                f"{self.document.file} has no parameter {', '.join(unknown)}.",
                todo=f"It has: {', '.join(sorted(declared)) or 'none'}.",
            )
        return {name: self._parameter(name, about, given.get(name)) for name, about in declared.items()}

    def _parameter(self, name: str, about: Any, given: str | None) -> Any:
        about = about if isinstance(about, dict) else {}
        kind = str(about.get("Type", "String"))
        allowed = about.get("AllowedValues")
        if given is not None:
            if len(given) > PARAMETER_CHARS_MAX:
                raise UsageError(
                    f"Parameter {name} is longer than {PARAMETER_CHARS_MAX} characters.", todo="Shorten it."
                )
            if isinstance(allowed, list) and given not in (choices := [text_of(choice) for choice in allowed]):
                raise UsageError(f"Parameter {name} is {given!r}.", todo=f"It may be one of {choices}.")
            value: Any = given
        elif kind.startswith("AWS::SSM::Parameter::Value"):
            return Unresolved(f"parameter {name} is read from SSM at deployment")
        elif "Default" in about:
            value = text_of(about["Default"])
            if isinstance(value, str) and len(value) > PARAMETER_CHARS_MAX:
                raise UsageError(
                    f"The default of parameter {name} is longer than {PARAMETER_CHARS_MAX} characters.",
                    todo="Shorten it.",
                )
        else:
            return Unresolved(f"parameter {name} has no default and was not given")
        if isinstance(value, str) and (kind == "CommaDelimitedList" or "List<" in kind):
            return [part.strip() for part in value.split(",")]
        return value

    # ---------------------------------------------------------------------------------- names of things

    def ref(self, name: str) -> Any:
        """`Ref`: a parameter's value, a queue's URL, a function's name."""
        if name in self._pseudo:
            return self._pseudo[name]
        if name in self.parameters:
            return self.parameters[name]
        match self.type_of(name):
            case None:
                return Unresolved(f"{name} is neither a parameter nor a resource of this template")
            case kind if kind == QUEUE:
                return f"{self._endpoint}/{self.account}/{self.name_of(name)[0]}"
            case kind if kind in FUNCTIONS:
                return self.name_of(name)[0]
            case kind if kind in KINDS and (self.everything or kind in SERVED):
                return self.arn_of(name) if KINDS[kind].ref == "arn" else self.name_of(name)[0]
            case kind if self.everything and kind in QUALIFIED:
                return self._qualified_arn(name, kind)
            case kind:
                return Unresolved(f"{name} is a resource of type {kind}, which does not exist here")

    def attribute(self, name: str, attribute: str) -> Any:
        """`Fn::GetAtt`: ARN, name and URL of queues, ARN of functions."""
        kind = self.type_of(name)
        if kind == QUEUE and attribute in {"Arn", "QueueName", "QueueUrl"}:
            known = self.name_of(name)[0]
            return {"Arn": self.queue_arn(known), "QueueName": known, "QueueUrl": self.ref(name)}[attribute]
        if kind in FUNCTIONS and attribute == "Arn":
            return self.function_arn(self.name_of(name)[0])
        is_here = kind in KINDS and (self.everything or kind in SERVED)
        if is_here and attribute in ARN_ATTRIBUTES:
            return self.arn_of(name)
        if is_here and attribute in NAME_ATTRIBUTES:
            return self.name_of(name)[0]
        if kind is None:
            return Unresolved(f"{name} is not a resource of this template")
        return Unresolved(f"attribute {attribute} of {name} ({kind}) does not exist here")

    def queue_arn(self, name: str) -> str:
        """ARN of a queue of this account and region."""
        return f"arn:{_partition(self.region)}:sqs:{self.region}:{self.account}:{name}"

    def function_arn(self, name: str) -> str:
        """ARN of a function of this account and region."""
        return f"arn:{_partition(self.region)}:lambda:{self.region}:{self.account}:function:{name}"

    def arn_of(self, logical_id: str) -> str | Unresolved:
        """ARN of a resource that is neither queue nor function, of one of the `KINDS`."""
        kind = KINDS[str(self.type_of(logical_id))]
        inside = ""
        if kind.inside is not None:
            properties = self.resources[logical_id].get("Properties")
            written = properties.get(kind.inside[0]) if isinstance(properties, dict) else None
            group = self.resolve(written)
            if isinstance(group, Unresolved):
                return group
            inside = group.rsplit("/", 1)[-1] if isinstance(group, str) else kind.inside[1]
            inside = "" if inside == "default" != kind.inside[1] else inside
        tail = kind.arn.format(
            region=self.region,
            account=self.account,
            name=self.name_of(logical_id)[0],
            inside=f"{inside}/" if inside else "",
        )
        return f"arn:{_partition(self.region)}:{tail}"

    def _qualified_arn(self, logical_id: str, kind: str) -> str | Unresolved:
        """ARN of a version or alias of a function."""
        properties = self.resources[logical_id].get("Properties")
        properties = properties if isinstance(properties, dict) else {}
        function = text_of(self.resolve(properties.get("FunctionName")))
        if isinstance(function, Unresolved):
            return function
        name = function.rsplit(":", 1)[-1] if function.startswith("arn:") else function
        if kind == "AWS::Lambda::Version":
            return f"{self.function_arn(name)}:1"
        alias = text_of(self.resolve(properties.get("Name")))
        return alias if isinstance(alias, Unresolved) else f"{self.function_arn(name)}:{alias}"

    def type_of(self, logical_id: str) -> str | None:
        """A resource's type; None if the resource does not exist."""
        resource = self.resources.get(logical_id)
        kind = resource.get("Type") if isinstance(resource, dict) else None
        return kind if isinstance(kind, str) else None

    def name_of(self, logical_id: str) -> tuple[str, Unresolved | None]:
        """Name of a queue or function, and why it is not the one the template gives, if so."""
        if logical_id in self._naming:
            self._circles.add(logical_id)
            return self._logical_name(logical_id), None
        if logical_id not in self._named:
            self._naming.add(logical_id)
            given = self._given_name(logical_id)
            self._naming.discard(logical_id)
            if logical_id in self._circles:
                given = Unresolved(f"the name of {logical_id} refers to itself")
            why = given if isinstance(given, Unresolved) else None
            name = given if isinstance(given, str) and given else self._logical_name(logical_id)
            self._named[logical_id] = name, why
        return self._named[logical_id]

    def _given_name(self, logical_id: str) -> str | Unresolved | None:
        properties = self.resources[logical_id].get("Properties")
        kind = str(self.type_of(logical_id))
        key = KINDS[kind].name if kind in KINDS else "QueueName" if kind == QUEUE else "FunctionName"
        if not isinstance(properties, dict) or key not in properties:
            return None
        value = self.resolve(properties[key])
        return None if value is NO_VALUE else text_of(value)

    def _logical_name(self, logical_id: str) -> str:
        properties = self.resources[logical_id].get("Properties")
        fifo = self.resolve(properties.get("FifoQueue")) if isinstance(properties, dict) else None
        queue = self.type_of(logical_id) == QUEUE
        return f"{logical_id}.fifo" if queue and text_of(fifo or False) == "true" else logical_id

    # -------------------------------------------------------------------------------- conditions, tables

    def condition(self, name: str) -> bool | Unresolved:
        """Whether a condition holds. It is evaluated once; one that refers to itself is unresolved."""
        if name not in self._conditions:
            return Unresolved(f"there is no condition {name}")
        if name not in self._decided:
            self._decided[name] = Unresolved(f"condition {name} refers to itself")
            self._decided[name] = flag(self.resolve(self._conditions[name]))
        return self._decided[name]

    def decided(self) -> dict[str, bool]:
        """The conditions that are known, and whether each holds."""
        return {name: value for name in self._conditions if isinstance(value := self.condition(name), bool)}

    def mapping(self, name: str) -> Mapping[str, Any] | Unresolved:
        """A table of the section Mappings."""
        table = self._tables.get(name)
        return table if isinstance(table, dict) else Unresolved(f"there is no table {name} in Mappings")


def _partition(region: str) -> str:
    known = {"cn": "aws-cn", "us-gov": "aws-us-gov"}
    return next((name for prefix, name in known.items() if region.startswith(f"{prefix}-")), "aws")


class Properties:
    """Properties of a resource, or of a mapping inside them.

    Args:
        scope: the names of the template.
        kind: the resource's type, for what is left out.
        logical_id: the resource.
        path: where in the document `raw` is.
        raw: the mapping as written; anything else counts as empty and is noted.
        why: the reason why nothing is known about the mapping around it; "" if it is known.
    """

    def __init__(
        self, scope: Scope, kind: str, logical_id: str, path: PropertyPath, raw: Any, why: str = ""
    ) -> None:  # fmt: skip
        self.scope = scope
        self.kind = kind
        self.logical_id = logical_id
        self.path = path
        self.unresolved: dict[str, Unresolved] = {}
        self._notes: list[LeftOut] = []
        found = scope.resolve(raw) if is_function(raw) else raw
        self._why = LEFT_OUT if found is NO_VALUE else why
        found = {} if found is None or found is NO_VALUE else found
        if not isinstance(found, dict):
            unresolved = found if isinstance(found, Unresolved) else Unresolved("no mapping of properties")
            self.unresolved[""] = unresolved
            self._why = unresolved.why
            found = {}
        self.raw: dict[str, Any] = found

    def location(self, *parts: str | int) -> TemplateLocation:
        """Where the resource, or a property of it, is."""
        path = (*self.path, *parts)
        document = self.scope.document
        return TemplateLocation(document.file, document.line(path), self.logical_id, path)

    def get(self, name: str) -> Any:
        """The resolved value; None when it is absent, NoValue or unresolved as a whole. Unresolved values inside stay."""
        value = self.scope.resolve(self.raw.get(name))
        if isinstance(value, Unresolved):
            self.unresolved[name] = value
            return None
        return None if value is NO_VALUE else value

    def text(self, name: str, default: str) -> str:
        """A text."""
        return str(self._typed(name, text_of, default))

    def number(self, name: str, default: int) -> int:
        """A whole number."""
        return int(self._typed(name, whole_number, default))

    def number_or_none(self, name: str) -> int | None:
        """A whole number that has no default."""
        value = self._typed(name, whole_number, None)
        return None if value is None else int(value)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean."""
        return bool(self._typed(name, flag, default))

    def setting(
        self, name: str, convert: Callable[[Any], T | Unresolved], default: T | None = None
    ) -> ResourceSetting[T]:
        """A property with its position: known, absent, or with the reason why it is unknown.

        Args:
            convert: returns the value, or the reason why it has none. default: AWS's, where the property is not written.
        """
        at = self._place(name)
        document = self.scope.document
        if name not in self.raw:
            is_default = not self._why or (self._why == LEFT_OUT and default is not None)
            return document.setting(at, default) if is_default else document.setting(at, None, self._why)
        raw = self.raw[name]
        value = self.scope.resolve(raw)
        if value is None or value is NO_VALUE:
            return document.setting(at, default, LEFT_OUT if default is None and value is NO_VALUE else "")
        if isinstance(raw, list) and raw and value == []:
            return document.setting(at, None, LEFT_OUT)
        converted = value if isinstance(value, Unresolved) else convert(value)
        if isinstance(converted, Unresolved):
            return document.setting(at, None, converted.why)
        return document.setting(at, converted)

    def items(self, name: str) -> list[Properties] | None:
        """The mappings of a list; None when the list is not known."""
        value = self.raw.get(name)
        value = self.scope.resolve(value) if is_function(value) else value
        if name not in self.raw and self._why:
            return None
        if value is None or value is NO_VALUE:
            return []
        if not isinstance(value, list):
            return None
        return [
            Properties(self.scope, self.kind, self.logical_id, (*self.path, name, number), item)
            for number, item in enumerate(value)
            if not (is_function(item) and self.scope.resolve(item) is NO_VALUE)
        ]

    def _place(self, name: str) -> PropertyPath:
        """Where a property is written: at the resource, or in SAM's Globals."""
        own = (*self.path, name)
        shared: PropertyPath = ("Globals", "Function", name)
        document = self.scope.document
        is_shared = len(self.path) == 3 and self.kind == "AWS::Serverless::Function"
        return shared if is_shared and not document.has(own) and document.has(shared) else own

    def inner(self, name: str) -> Properties:
        """A mapping among the properties; what is unresolved in it is noted here too, see `took`."""
        path = (*self.path, name)
        return Properties(
            self.scope, self.kind, self.logical_id, path, self.raw.get(name), "" if name in self.raw else self._why
        )

    def took(self, inner: Properties) -> None:
        """Take over the notes of an inner mapping, under its longer path."""
        prefix = ".".join(map(str, inner.path[len(self.path) :]))
        for name, why in inner.unresolved.items():
            self.unresolved[f"{prefix}.{name}" if name else prefix] = why

    def refuse(self, name: str, why: str) -> None:
        """Note that a property is not usable."""
        self.unresolved[name] = Unresolved(why)

    def leave_out(self, name: str, why: str) -> None:
        """Note that a property is well understood and has no effect here."""
        if name in self.raw:
            self._notes.append(LeftOut(self.location(name), self.kind, why))

    def left_out(self) -> Iterator[LeftOut]:
        """Everything noted, for people."""
        yield from self._notes
        for name, value in self.unresolved.items():
            yield LeftOut(self.location(*name.split(".")) if name else self.location(), self.kind, value.why)

    def _typed(self, name: str, convert: Any, default: Any) -> Any:
        value = self.get(name)
        if value is None:
            return default
        converted = convert(value)
        if isinstance(converted, Unresolved):
            self.unresolved[name] = converted
            return default
        return converted
