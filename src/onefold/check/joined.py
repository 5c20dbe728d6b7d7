"""A template together with the Python code of its functions: the handler of a mapping, the queue that a call sends to.

They are joined by handler paths (`CodeUri` and `Handler` name a file and a function), and by environment variables, which
the template sets and the code reads.
Never here: rules. Invariant: only what is certain is joined; an ambiguous name is not.
"""

from __future__ import annotations

import os
from collections import abc
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from onefold.check.code_facts import Argument, CodeCall, CodeHandler
from onefold.check.collect_python import HandlerEntry
from onefold.check.facts import FunctionFacts, InlineCode, LocalCode, TemplateFacts
from onefold.check.model import Model, ModelFunction, ModelMapping, ModelQueue
from onefold.check.python_modules import Inside


class Joined(Struct, frozen=True, kw_only=True):
    """The model of a template, and the handlers of queues whose code was read, by the function's name."""

    model: Model
    handlers: abc.Mapping[str, CodeHandler]

    def mapped(self) -> Iterator[tuple[ModelMapping, CodeHandler]]:
        """The mappings whose handler was read."""
        for mapping in self.model.mappings:
            handler = self.handlers.get(mapping.facts.function)
            if handler is not None:
                yield mapping, handler

    def queue_of(self, call: CodeCall, mapping: ModelMapping) -> ModelQueue | None:
        """The queue that a call uses, by its URL in the code or in an environment variable of the mapping's function."""
        name = self._named(call.arguments.get("QueueUrl"), mapping)
        found = [one for one in self.model.queues if one.facts.name == name]
        return found[0] if len(found) == 1 else None

    def function_called(self, call: CodeCall, mapping: ModelMapping) -> ModelFunction | None:
        """The function that a call invokes, by its name in the code or in such a variable."""
        name = self._named(call.arguments.get("FunctionName"), mapping)
        found = [one for one in self.model.functions if one.facts.name == name]
        return found[0] if len(found) == 1 else None

    def _named(self, argument: Argument | None, mapping: ModelMapping) -> str | None:
        """The last part of a name, URL or ARN."""
        if argument is None or mapping.function is None:
            return None
        if "own-queue" in argument.origins:
            return mapping.facts.queue
        written = argument.constant
        if argument.variable is not None:
            written = mapping.function.facts.environment.get(argument.variable)
        if not isinstance(written, str):
            return None
        name = written.rpartition("/")[2]
        if name.startswith("arn:"):
            name = name.partition(":function:")[2].partition(":")[0] or name.rpartition(":")[2]
        return name or None


def entries_of(facts: TemplateFacts) -> dict[str, HandlerEntry]:
    """The handlers of queues whose code is in a local directory or in the template, by the function's name."""
    mapped = {one.function for one in facts.mappings}
    found: dict[str, HandlerEntry] = {}
    for one in facts.functions:
        function = one.handler.rpartition(".")[2]
        if one.name in mapped and isinstance(one.code, LocalCode):
            file, root = (_beside(path, facts.file) for path in (one.code.file, one.code.directory))
            found[one.name] = HandlerEntry(file, root, function, on_instances=one.on_instances)
        elif one.name in mapped and isinstance(one.code, InlineCode):
            inside = _inside(one, one.code.text, facts)
            path = (
                Path(facts.file).parent / f"{one.logical_id}.py"
            )  # there is no such file; inline code imports no other
            found[one.name] = HandlerEntry(path, path, function, one.code.text, inside, one.on_instances)
    return found


def _inside(function: FunctionFacts, text: str, facts: TemplateFacts) -> Inside:
    """The place of inline code in a template; with its lines if it is a block scalar."""
    document = facts.document
    key = ("InlineCode",) if document.has((*function.location.parts, "InlineCode")) else ("Code", "ZipFile")
    source = document.source((*function.location.parts, *key))
    written, code = document.text.split("\n")[source.start_line :], text.rstrip("\n").split("\n")
    first = next((number for number, line in enumerate(code) if line.strip()), 0)
    if len(written) <= first or not written[first].endswith(code[first]):
        return Inside(source, None, 0)
    columns = len(written[first]) - len(code[first])
    is_block = not written[first][:columns].strip() and all(
        len(shown) >= len(line) or "${" in shown for shown, line in zip(written, code, strict=False)
    )
    return Inside(source, source.start_line if is_block else None, columns)


def _beside(path: Path, template: str) -> Path:
    """A path relative to the same directory as the path of the template."""
    folder = Path(template).parent
    return Path(os.path.normpath(folder / os.path.relpath(path, folder.resolve())))
