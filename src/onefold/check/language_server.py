"""`onefold check --lsp`: findings in an editor, by the Language Server Protocol over standard input and output.

A template or Python file is checked when it is opened, and all open ones when one is saved. An editor then shows findings
at their lines, the page of a rule where the pointer is on one, and its fix as a quick fix. Why not a library:
docs/decisions/0052.

Never here: rules, or which of them run; the caller passes what looks at a file. Invariants: nothing is written to a file; a
fix is offered only while the text is the one that was checked; whatever an editor sends is bounded, and a message that is
not understood is answered with an error, or ends the program where the next one cannot be found.

Source: Microsoft, Language Server Protocol 3.17, "Base Protocol", "Server lifecycle", "Document Synchronization", "Publish
Diagnostics", "Hover Request", "Code Action Request".
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Struct

from onefold.check.candidates import TEMPLATES
from onefold.check.checking import CheckedInput
from onefold.check.documents import FILE_BYTES_MAX
from onefold.check.facts import rows
from onefold.check.findings import Finding, FindingSource
from onefold.check.formats import rule_address, whole
from onefold.check.hcl_files import is_hcl
from onefold.check.rules import rule_named
from onefold.errors import OnefoldError

BODY_BYTES_MAX: Final = 64 * 1_048_576  # ours: a template of 1 MB, and large Python files
HEADER_BYTES_MAX: Final = 8_192
_SEVERITIES: Final = {"error": 1, "warning": 2, "info": 3}
_PARSE_ERROR, _INVALID_REQUEST, _NO_METHOD, _INVALID_PARAMS = -32700, -32600, -32601, -32602
_NOT_INITIALIZED: Final = -32002

Look = Callable[[Path, Mapping[Path, str]], CheckedInput]
Answer = dict[str, Any]


class _Position(Struct, frozen=True, order=True):
    line: int
    character: int


class _Range(Struct, frozen=True):
    start: _Position
    end: _Position


class _Item(Struct, frozen=True):
    uri: str
    text: str = ""


class _Change(Struct, frozen=True):
    text: str


class _Context(Struct, frozen=True):
    only: list[str] | None = None


class _Params(Struct, frozen=True, rename="camel"):
    """What the messages that are understood have, together."""

    text_document: _Item
    content_changes: list[_Change] = []
    position: _Position | None = None
    range: _Range | None = None
    context: _Context = _Context()


class _Message(Struct, frozen=True):
    method: str = ""
    id: int | str | None = None
    params: Any = None


class _Refused(Exception):
    """A request that cannot be answered: JSON-RPC's code, and why."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class _OpenFile:
    """A file that the editor has open: its text there, and the one that was checked."""

    def __init__(self, uri: str, text: str) -> None:
        self.uri = uri
        self.text = text
        self.checked = ""
        self.findings: list[Finding] = []
        self.unread = ""


class LanguageServer:
    """One editor's session.

    Args:
        look: checks a file, with texts to use instead of those of templates.
        reader, writer: the editor's messages, and the answers.
    """

    def __init__(self, look: Look, reader: BinaryIO, writer: BinaryIO) -> None:
        self._look = look
        self._reader = reader
        self._writer = writer
        self._open: dict[Path, _OpenFile] = {}
        self._shown: set[Path] = set()
        self._state = "new"
        self._counts_utf16 = True
        self._takes_related = False
        self._said: set[str] = set()
        self._requests: Mapping[str, Callable[[Any], Any]] = {
            "initialize": self._initialize,
            "shutdown": self._shutdown,
            "textDocument/hover": lambda params: self._hover(_params(params)),
            "textDocument/codeAction": lambda params: self._actions(_params(params)),
        }
        self._notices: Mapping[str, Callable[[_Params], None]] = {
            "textDocument/didOpen": self._opened,
            "textDocument/didChange": self._changed,
            "textDocument/didSave": self._saved,
            "textDocument/didClose": self._closed,
        }

    def serve(self) -> int:
        """Answer until the editor ends the session, or is gone; returns the exit code that the protocol asks for."""
        try:
            return self._session()
        except BrokenPipeError:
            return 1

    def _session(self) -> int:
        while True:
            body = self._next()
            if body is None:
                return 1
            try:
                message = msgspec.json.decode(body, type=_Message)
            except (msgspec.DecodeError, RecursionError):
                self._send({"id": None, "error": {"code": _PARSE_ERROR, "message": "The message is not JSON-RPC."}})
                continue
            if message.method == "exit":
                return 0 if self._state == "shut down" else 1
            self._take(message)

    # ----------------------------------------------------------------------------------------- messages

    def _next(self) -> bytes | None:
        """The body of the next message; None: there is none, or where it ends is not known."""
        length = None
        read = 0
        while True:
            header = self._reader.readline(HEADER_BYTES_MAX)
            read += len(header)
            if not header.endswith(b"\n") or read > HEADER_BYTES_MAX:
                return None
            if not header.strip():
                break
            name, _, value = header.partition(b":")
            if name.strip().lower() == b"content-length":
                length = int(value) if value.strip().isdigit() and len(value) < 20 else None
        if length is None or length > BODY_BYTES_MAX:
            return None
        body = self._reader.read(length)
        return body if len(body) == length else None

    def _send(self, message: Answer) -> None:
        body = msgspec.json.encode({"jsonrpc": "2.0", **message})
        self._writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self._writer.flush()

    def _take(self, message: _Message) -> None:
        if message.id is None:
            notice = self._notices.get(message.method)
            if notice is not None and self._state == "ready":
                try:
                    notice(_params(message.params))
                except _Refused as refused:
                    self._say(str(refused))
            return
        try:
            self._send({"id": message.id, "result": self._result(message)})
        except _Refused as refused:
            self._send({"id": message.id, "error": {"code": refused.code, "message": str(refused)}})

    def _result(self, message: _Message) -> Any:
        if message.method not in self._requests:
            raise _Refused(_NO_METHOD, f"{message.method:.80} is not answered here.")
        if self._state == "new" and message.method != "initialize":
            raise _Refused(_NOT_INITIALIZED, "The session is not initialized.")
        if self._state == "shut down" or (self._state == "ready" and message.method == "initialize"):
            raise _Refused(_INVALID_REQUEST, f"{message.method:.80} comes too late.")
        return self._requests[message.method](message.params)

    def _initialize(self, params: Any) -> Answer:
        offered = _inside(params, "capabilities", "general", "positionEncodings")
        self._counts_utf16 = not (isinstance(offered, list) and "utf-32" in offered)
        self._takes_related = bool(
            _inside(params, "capabilities", "textDocument", "publishDiagnostics", "relatedInformation")
        )
        self._state = "ready"
        return {
            "capabilities": {
                "positionEncoding": "utf-16" if self._counts_utf16 else "utf-32",
                "textDocumentSync": {"openClose": True, "change": 1, "save": {"includeText": False}},
                "hoverProvider": True,
                "codeActionProvider": {"codeActionKinds": ["quickfix"]},
            },
            "serverInfo": {"name": "onefold check", "version": version("onefold")},
        }

    def _shutdown(self, _: Any) -> None:
        self._state = "shut down"

    # -------------------------------------------------------------------------------------------- files

    def _opened(self, params: _Params) -> None:
        path = _path_of(params.text_document.uri)
        if path is not None and not _is_no_file(path):
            self._open[path] = _OpenFile(params.text_document.uri, params.text_document.text)
            self._check([path])

    def _changed(self, params: _Params) -> None:
        one = self._open.get(_path_of(params.text_document.uri) or Path())
        if one is not None and params.content_changes:
            one.text = params.content_changes[-1].text

    def _saved(self, params: _Params) -> None:
        if _path_of(params.text_document.uri) in self._open:
            self._check(self._open)  # a template is checked with the code that it names

    def _closed(self, params: _Params) -> None:
        if self._open.pop(_path_of(params.text_document.uri) or Path(), None) is not None:
            self._check([])

    def _check(self, paths: Iterable[Path]) -> None:
        """Check some files, and show what is found in all."""
        for path in paths:
            one = self._open[path]
            is_terraform = is_hcl(path.name)
            is_template = path.suffix in TEMPLATES and not is_terraform
            written = _text_of(path)
            one.checked = one.text if is_template else written
            one.findings, one.unread = [], ""
            if is_template and "Resources" not in one.text and "planned_values" not in one.text:
                continue
            try:
                checked = self._look(path, {} if one.text == written else {path: one.text})
            except OnefoldError as error:
                self._say(" ".join(part for part in (error.what, error.meaning, error.todo) if part))
                continue
            except OSError as error:
                self._say(f"{path} cannot be read: {error.strerror}.")
                continue
            one.findings = checked.open
            if is_terraform or (is_template and "AWS::" in one.text):
                one.unread = " ".join(f"{each.why} {each.todo}" for each in checked.unread if each.is_named)
        self._show()

    def _show(self) -> None:
        """Send the findings of each file that has some, has had some, or is open."""
        found = self._found()
        for path in sorted({*found, *self._shown, *self._open}):
            shown = [self._diagnostic(one) for one in found.get(path, [])]
            if path in self._open and self._open[path].unread:
                zero = {"line": 0, "character": 0}
                unread = {"range": {"start": zero, "end": zero}, "severity": 3, "source": "onefold"}
                shown.append({**unread, "message": self._open[path].unread})
            self._send(
                {
                    "method": "textDocument/publishDiagnostics",
                    "params": {"uri": self._uri(path), "diagnostics": shown},
                }
            )
        self._shown = set(found)

    def _found(self) -> dict[Path, list[Finding]]:
        """The findings of all open files by the file they are in, each once."""
        found: dict[Path, dict[object, Finding]] = {}
        for one in self._open.values():
            for each in one.findings:
                path = _real(each.source.file)
                found.setdefault(path, {})[each.rule, each.source, each.message] = each
        return {path: list(each.values()) for path, each in found.items()}

    def _say(self, text: str) -> None:
        """Show a message, once."""
        if text not in self._said:
            self._said.add(text)
            self._send({"method": "window/showMessage", "params": {"type": 1, "message": f"onefold check: {text}"}})

    # ------------------------------------------------------------------------------------------ answers

    def _diagnostic(self, one: Finding) -> Answer:
        found: Answer = {
            "range": self._range(one.source),
            "severity": _SEVERITIES[one.severity],
            "code": one.rule,
            "codeDescription": {"href": rule_address(one.rule)},
            "source": "onefold",
            "message": whole(one),
        }
        if self._takes_related and one.related:
            found["relatedInformation"] = [
                {
                    "location": {"uri": self._uri(Path(each.source.file)), "range": self._range(each.source)},
                    "message": each.text or each.resource,
                }
                for each in one.related
            ]
        return found

    def _hover(self, params: _Params) -> Answer | None:
        """The pages of the rules that have found something at a place."""
        if params.position is None:
            raise _Refused(_INVALID_PARAMS, "A hover has a position.")
        here = list(self._at(params.text_document.uri, _Range(params.position, params.position)))
        if not here:
            return None
        pages = [rule_named(rule).page for rule in dict.fromkeys(one.rule for one in here)]
        return {"contents": {"kind": "markdown", "value": "\n\n".join(pages)}, "range": self._range(here[0].source)}

    def _actions(self, params: _Params) -> list[Answer]:
        """The fixes of what was found in a range, each one edit of the texts that were checked."""
        if params.range is None:
            raise _Refused(_INVALID_PARAMS, "A code action has a range.")
        only = params.context.only
        if only is not None and not {"", "quickfix"} & set(only):
            return []
        found: list[Answer] = []
        for one in self._at(params.text_document.uri, params.range):
            if one.fix is None or not one.fix.edits or any(self._is_stale(each.source) for each in one.fix.edits):
                continue
            changes: dict[str, list[Answer]] = {}
            for edit in one.fix.edits:
                uri = self._uri(Path(edit.source.file))
                changes.setdefault(uri, []).append({"range": self._range(edit.source), "newText": edit.text})
            is_safe = one.fix.safety == "safe"
            found.append(
                {
                    "title": one.fix.description if is_safe else f"{one.fix.description} (unsafe)",
                    "kind": "quickfix",
                    "isPreferred": is_safe,
                    "diagnostics": [self._diagnostic(one)],
                    "edit": {"changes": changes},
                }
            )
        return found

    def _at(self, uri: str, place: _Range) -> Iterator[Finding]:
        path = _path_of(uri)
        for one in self._found().get(path, []) if path is not None else []:
            span = msgspec.convert(self._range(one.source), _Range)
            if span.start <= place.end and place.start <= span.end:
                yield one

    def _is_stale(self, source: FindingSource) -> bool:
        """Whether a file's text in the editor is no longer the one in which a place was found."""
        one = self._open.get(_real(source.file))
        return one is not None and one.text != one.checked

    # ------------------------------------------------------------------------------------------- places

    def _uri(self, path: Path) -> str:
        """What the editor calls a file."""
        path = _real(path)
        return self._open[path].uri if path in self._open else path.as_uri()

    def _range(self, source: FindingSource) -> Answer:
        path = _real(source.file)
        text = self._open[path].checked if path in self._open else _text_of(path)
        lines = rows(text.removeprefix("\ufeff"))
        return {
            "start": self._position(lines, source.start_line, source.start_column),
            "end": self._position(lines, source.end_line, source.end_column),
        }

    def _position(self, lines: list[str], line: int, column: int) -> Answer:
        character = column - 1
        if self._counts_utf16 and line <= len(lines):
            before = lines[line - 1][:character]
            character += sum(one > "\uffff" for one in before)
        return {"line": line - 1, "character": character}


def _params(params: Any) -> _Params:
    try:
        return msgspec.convert(params, _Params)
    except msgspec.ValidationError as error:
        raise _Refused(_INVALID_PARAMS, f"The parameters are not those of the protocol: {error}.") from None


def _path_of(uri: str) -> Path | None:
    """The file that a URI names; None: it names none, as `untitled:` does."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    path = unquote(parts.path)
    if parts.scheme != "file" or not path.startswith("/") or "\0" in path:
        return None
    return _real(path)


def _real(path: str | Path) -> Path:
    """A file without links on its way; `Path.resolve` would raise for a link to itself."""
    return Path(os.path.realpath(path))


def _is_no_file(path: Path) -> bool:
    """Whether a path leads to a directory or a device, or cannot lead to anything; a file may not have been saved yet."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True


def _text_of(path: Path) -> str:
    """The beginning of a file's text, longer than any file that is checked; "" if it cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            return file.read(FILE_BYTES_MAX + 1)
    except OSError:
        return ""


def _inside(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value
