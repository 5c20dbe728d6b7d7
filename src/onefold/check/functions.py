"""Functions of a template, CloudFormation's and SAM's, and where their code is.

Never here: running them. Only Python runs here, from a directory of this machine or inline; anything else is a fact
all the same, with the reason in `code`. Defaults are Lambda's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from onefold.check.facts import FunctionFacts, InlineCode, LocalCode, Unresolved
from onefold.check.intrinsics import text_of, why_not
from onefold.check.properties import Properties
from onefold.lambdas.settings import MEMORY_MIB_DEFAULT, TIMEOUT_MS_DEFAULT
from onefold.limits import SECOND_MS

INEFFECTIVE: Final = {
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
    for key, reason in INEFFECTIVE.items():
        properties.leave_out(key, reason)
    runtime, handler = properties.text("Runtime", ""), properties.text("Handler", "")
    return FunctionFacts(
        place=properties.place(),
        logical_id=properties.logical_id,
        name=name,
        type=properties.kind,
        runtime=runtime,
        handler=handler,
        code=_code(properties, runtime, handler, asset),
        timeout_ms=properties.number("Timeout", TIMEOUT_MS_DEFAULT // SECOND_MS) * SECOND_MS,
        memory_mib=properties.number("MemorySize", MEMORY_MIB_DEFAULT),
        environment=_environment(properties),
        reserved_concurrency=properties.number_or_none("ReservedConcurrentExecutions"),
        unresolved=properties.unresolved,
    )


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


def _code(properties: Properties, runtime: str, handler: str, asset: str | None) -> LocalCode | InlineCode | Unresolved:
    if properties.text("PackageType", "Zip") == "Image" or "ImageUri" in properties.raw:
        return Unresolved("a container image")
    for key in ("Runtime", "Handler"):
        if key in properties.unresolved:
            return properties.unresolved[key]
    if not runtime.startswith("python"):
        return Unresolved(f"runtime {runtime or 'not given'}; only Python runs here")
    if "." not in handler:
        return Unresolved(f"handler {handler!r} is no file.function")
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


def _local(properties: Properties, source: str, handler: str) -> LocalCode | Unresolved:
    if source.startswith(("s3://", "https://", "http://")):
        return Unresolved(f"code in {source.partition(':')[0]}, not in a local directory")
    module = handler.rpartition(".")[0].replace(".", "/")
    try:
        directory = (Path(properties.scope.document.file).parent / source).resolve()
        if not directory.is_dir():
            return Unresolved(f"there is no directory {directory}")
        for file in (directory / f"{module}.py", directory / module / "__init__.py"):
            if file.is_file():
                return LocalCode(directory, file)
    except (OSError, ValueError) as error:
        return Unresolved(f"the code's directory cannot be read: {error}")
    return Unresolved(f"there is no {module}.py in {directory}")
