"""The facts of a Lambda function in a template, and whether its code is here to run.

Never here: running it. Invariant: code that is not on this machine, is not Python, or does not have the handler's module is
`Unresolved` with the reason.
Sources: AWS::Lambda::Function and AWS::Serverless::Function; Lambda quotas for the size of a package.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from onefold.check.facts import FunctionFacts, InlineCode, LocalCode, ResourceSetting, Unresolved, ZippedCode
from onefold.check.intrinsics import list_of, text_of, whole_number, why_not
from onefold.check.scope import Properties
from onefold.limits import FUNCTION_MEMORY_MIB_DEFAULT, FUNCTION_TIMEOUT_MS_DEFAULT, SECOND_MS

UNZIPPED_BYTES_MAX: Final = 262_144_000  # Lambda quotas: deployment package, unzipped
READ_OF_FUNCTIONS: Final = frozenset(
    {
        *(
            "Code",
            "CodeUri",
            "Environment",
            "Events",
            "FunctionName",
            "Handler",
            "ImageUri",
            "InlineCode",
            "MemorySize",
        ),
        *("PackageType", "ReservedConcurrentExecutions", "Runtime", "Timeout"),
        *("Description", "Tags"),  # which have no effect anywhere
    }
)
IGNORED_BY_FUNCTIONS: Final = {
    "Architectures": "it runs on this machine's processor",
    "Policies": "nobody is asked for permissions here",
    "Role": "nobody is asked for permissions here",
    "Tracing": "nothing is traced here",
    "TracingConfig": "nothing is traced here",
    "DeadLetterConfig": "for asynchronous invocations; messages of a queue go to the queue's own dead-letter queue",
    "DeadLetterQueue": "for asynchronous invocations; messages of a queue go to the queue's own dead-letter queue",
    "EventInvokeConfig": "for asynchronous invocations",
    "FileSystemConfigs": "no file system is mounted",
    "Layers": "layers are not loaded; install what they hold into this environment",
    "VpcConfig": "there is no VPC here",
}


def function_of(properties: Properties, asset: str | None) -> FunctionFacts:
    """The facts of a function. `asset`: directory that the CDK noted as the code's origin, relative to the template."""
    name, why = properties.scope.name_of(properties.logical_id)
    if why is not None:
        properties.unresolved["FunctionName"] = Unresolved(f"{why.why}; the function is named {name}")
    for key in properties.raw:
        if key not in READ_OF_FUNCTIONS:
            properties.leave_out(key, IGNORED_BY_FUNCTIONS.get(key, "without effect here"))
    runtime, handler = properties.text("Runtime", ""), properties.text("Handler", "")
    return FunctionFacts(
        location=properties.location(),
        logical_id=properties.logical_id,
        name=name,
        type=properties.kind,
        runtime=runtime,
        handler=handler,
        code=_code(properties, runtime, handler, asset),
        timeout_ms=properties.number("Timeout", FUNCTION_TIMEOUT_MS_DEFAULT // SECOND_MS) * SECOND_MS,
        memory_mib=properties.number("MemorySize", FUNCTION_MEMORY_MIB_DEFAULT),
        environment=_environment(properties),
        reserved_concurrency=properties.number_or_none("ReservedConcurrentExecutions"),
        reserved=properties.setting("ReservedConcurrentExecutions", whole_number),
        dead_letter_arn=_dead_letter_arn(properties),
        on_failure=on_failure_of(properties.inner("EventInvokeConfig")),
        durable_s=properties.inner("DurableConfig").setting("ExecutionTimeout", whole_number),
        tenancy=properties.inner("TenancyConfig").setting("TenantIsolationMode", text_of),
        on_instances="CapacityProviderConfig" in properties.raw,
        role_arn=properties.setting("Role", text_of),
        permissions=properties.setting("Policies", list_of),
        loops_allowed=properties.setting("RecursiveLoop", text_of, "Terminate").value != "Terminate",
        unresolved=properties.unresolved,
    )


def _dead_letter_arn(properties: Properties) -> ResourceSetting[str]:
    key = "DeadLetterQueue" if properties.kind == "AWS::Serverless::Function" else "DeadLetterConfig"
    return properties.inner(key).setting("TargetArn", text_of)


def on_failure_of(properties: Properties) -> ResourceSetting[str]:
    """The destination of failed asynchronous invocations; SAM creates one if only its type is given."""
    failure = properties.inner("DestinationConfig").inner("OnFailure")
    found = failure.setting("Destination", text_of)
    made = found.is_absent and "Type" in failure.raw
    return replace(found, why="SAM makes it") if made else found


def _environment(properties: Properties) -> dict[str, str]:
    outer = properties.inner("Environment")
    inner = outer.inner("Variables")
    found: dict[str, str] = {}
    for name in inner.raw:
        value = inner.get(name)
        text = None if value is None else text_of(value)
        if isinstance(text, str):
            found[name] = text
        elif text is not None:
            inner.unresolved[name] = text
    outer.took(inner)
    properties.took(outer)
    return found


def _code(
    properties: Properties, runtime: str, handler: str, asset: str | None
) -> LocalCode | ZippedCode | InlineCode | Unresolved:
    if properties.text("PackageType", "Zip") == "Image" or "ImageUri" in properties.raw:
        return Unresolved("a container image")
    for key in ("Runtime", "Handler"):
        if key in properties.unresolved:
            return properties.unresolved[key]
    if not runtime.startswith("python"):
        return Unresolved(f"runtime {runtime or 'not given'}; only Python runs here")
    if "." not in handler:
        return Unresolved(f"handler {handler!r} is not file.function")
    serverless = properties.kind == "AWS::Serverless::Function"
    source = _source(properties, "CodeUri" if serverless else "Code", "." if serverless else asset)
    if isinstance(source, InlineCode):
        fits = handler.rpartition(".")[0] == "index"
        return source if fits else Unresolved(f"handler {handler!r} is not in index, which is where inline code goes")
    return source if isinstance(source, Unresolved) else _local(properties, source, handler)


def _source(properties: Properties, key: str, fallback: str | None) -> str | InlineCode | Unresolved:
    """Directory as written, or inline code."""
    value: Any = properties.get(key)
    if key in properties.unresolved:
        return properties.unresolved[key]
    inline = (
        properties.get("InlineCode") if key == "CodeUri" else value.get("ZipFile") if isinstance(value, dict) else None
    )
    if isinstance(inline, str):
        return InlineCode(inline, "index.py")
    if why := why_not([value, inline]) or properties.unresolved.get("InlineCode"):
        return why
    if isinstance(value, str):
        return value
    if fallback is None or (value is not None and key == "CodeUri"):
        return Unresolved(f"{key} is not in a local directory")
    return fallback


def _local(properties: Properties, source: str, handler: str) -> LocalCode | ZippedCode | Unresolved:
    if source.startswith(("s3://", "https://", "http://")):
        return Unresolved(f"code in {source.partition(':')[0]}, not in a local directory")
    module = handler.rpartition(".")[0].replace(".", "/")
    try:
        directory = (Path(properties.scope.document.file).parent / source).resolve()
        if directory.is_file() and zipfile.is_zipfile(directory):  # a device or a FIFO has no end
            return _zipped(directory, module)
        if not directory.is_dir():
            return Unresolved(f"there is no directory {directory}")
        for file in (directory / f"{module}.py", directory / module / "__init__.py"):
            if file.is_file():
                return LocalCode(directory, file)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        return Unresolved(f"the code's directory cannot be read: {error}")
    return Unresolved(f"there is no {module}.py in {directory}")


def _zipped(archive: Path, module: str) -> ZippedCode | Unresolved:
    with zipfile.ZipFile(archive) as opened:
        size = sum(one.file_size for one in opened.infolist())
        if size > UNZIPPED_BYTES_MAX:
            return Unresolved(f"{archive.name} has {size:,} bytes unzipped; Lambda allows {UNZIPPED_BYTES_MAX:,}")
        if not {f"{module}.py", f"{module}/__init__.py"} & set(opened.namelist()):
            return Unresolved(f"there is no {module}.py in {archive}")
    return ZippedCode(archive)
