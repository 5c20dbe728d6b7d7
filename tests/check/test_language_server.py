"""`onefold check --lsp`: with the client of pygls over pipes, and with messages of our own that it would never send."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from onefold.check.checking import CheckedInput, check
from onefold.check.language_server import BODY_BYTES_MAX, LanguageServer
from onefold.check.rules import RULES
from onefold.errors import UsageError
from tests.check.test_check import CORPUS, TODAY
from tests.check.test_where_people_are import ONEFOLD, ROOT

Json = dict[str, Any]
PUBLISHED = CORPUS / "wrong" / "published.yaml"


@pytest.mark.slow
def test_an_editor_is_shown_findings_pages_and_fixes(tmp_path: Path) -> None:
    (tmp_path / "template.yaml").write_text(PUBLISHED.read_text())
    client = [ROOT / ".venv-tools" / "bin" / "python", Path(__file__).with_name("lsp_client.py"), ONEFOLD, tmp_path]
    ran = subprocess.run(client, capture_output=True, text=True, check=False, timeout=100)
    assert ran.returncode == 0, ran.stderr
    answers = json.loads(ran.stdout)
    assert answers["capabilities"]["hoverProvider"] is True
    assert [one["code"] for one in answers["opened"]] == ["DUP002", "LOS004", "DUP003"]
    first = answers["opened"][0]
    assert first["severity"] == 1
    assert "6 x 30 s timeout + 1 s batching window = 181 s" in first["message"]
    assert first["range"] == {"start": {"line": 17, "character": 25}, "end": {"line": 17, "character": 27}}
    [other] = first["relatedInformation"]
    assert other["location"]["uri"] == (tmp_path / "template.yaml").as_uri()
    assert answers["hover"]["contents"]["value"].startswith("# DUP002: ")
    assert answers["beside"] is None
    [action] = answers["actions"]
    assert action["title"] == "Set VisibilityTimeout of DocumentQueue to 181."
    assert action["isPreferred"] is True
    assert answers["stale"] == []
    assert "VisibilityTimeout: 181 " in answers["fixed"] or "VisibilityTimeout: 181\n" in answers["fixed"]
    assert [one["code"] for one in answers["saved"]] == ["LOS004"]
    assert answers["closed"] == []
    assert answers["code"] == 0


def look(path: Path, texts: Mapping[Path, str]) -> CheckedInput:
    return check([path], RULES, TODAY, texts=texts)


def framed(message: object) -> bytes:
    body = message if isinstance(message, bytes) else json.dumps({"jsonrpc": "2.0", **message}).encode()  # type: ignore[dict-item]
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


START = framed({"id": 1, "method": "initialize", "params": {"capabilities": {}}})
END = framed({"id": 9, "method": "shutdown"}) + framed({"method": "exit"})


def session(sent: bytes, looks: Any = look) -> tuple[int, list[Json]]:
    """The exit code, and what the server sent."""
    answers = io.BytesIO()
    code = LanguageServer(looks, io.BytesIO(sent), answers).serve()
    found: list[Json] = []
    rest = answers.getvalue()
    while rest:
        head, _, rest = rest.partition(b"\r\n\r\n")
        length = int(head.removeprefix(b"Content-Length: "))
        found.append(json.loads(rest[:length]))
        rest = rest[length:]
    return code, found


def opens(path: Path, text: str | None = None) -> bytes:
    item = {
        "uri": path.as_uri(),
        "languageId": "yaml",
        "version": 1,
        "text": path.read_text() if text is None else text,
    }
    return framed({"method": "textDocument/didOpen", "params": {"textDocument": item}})


def shown(answers: list[Json]) -> list[Json]:
    """The diagnostics of all files that were shown."""
    return [
        diagnostic
        for one in answers
        if one.get("method") == "textDocument/publishDiagnostics"
        for diagnostic in one["params"]["diagnostics"]
    ]


def test_a_session_ends_as_the_protocol_says() -> None:
    assert session(START + END)[0] == 0
    assert session(START + framed({"method": "exit"}))[0] == 1
    assert session(START)[0] == 1
    assert session(b"")[0] == 1


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"id": 2, "method": "workspace/symbol", "params": {}}, -32601),
        ({"id": 2, "method": "textDocument/hover", "params": {"textDocument": {"uri": "file:///a"}}}, -32602),
        ({"id": 2, "method": "textDocument/hover", "params": [1]}, -32602),
        ({"id": 2, "method": "textDocument/hover"}, -32602),
        ({"id": 2, "method": "textDocument/codeAction", "params": {"textDocument": {"uri": "file:///a"}}}, -32602),
        ({"id": 2, "method": "initialize", "params": {}}, -32600),
        (b'{"jsonrpc": "2.0", "id": 2,', -32700),
        (b"[" * 100_000, -32700),
        (b"\xff\xfe", -32700),
    ],
)
def test_what_is_not_understood_is_answered_with_an_error_and_the_session_goes_on(message: Any, code: int) -> None:
    ended, answers = session(START + framed(message) + END)
    assert answers[1]["error"]["code"] == code
    assert answers[-1] == {"jsonrpc": "2.0", "id": 9, "result": None}
    assert ended == 0


def test_a_request_before_the_session_or_after_it_is_refused() -> None:
    hover = {"method": "textDocument/hover", "params": {}}
    _, early = session(framed({"id": 5, **hover}))
    assert early[0]["error"]["code"] == -32002
    _, late = session(START + framed({"id": 6, "method": "shutdown"}) + framed({"id": 7, **hover}))
    assert late[2]["error"]["code"] == -32600


@pytest.mark.parametrize(
    "sent",
    [
        b"no header\r\n\r\n{}", b"Content-Length: x\r\n\r\n{}", b"Content-Length: -1\r\n\r\n{}", b"x" * 10_000,
        b"Content-Length: %d\r\n\r\n{}" % (BODY_BYTES_MAX + 1), b"Content-Length: 5000\r\n\r\n{}", b"A: b\r\n" * 5_000,
    ],
)  # fmt: skip
def test_a_message_whose_end_is_not_known_ends_the_session(sent: bytes) -> None:
    assert session(START + sent + END) == session(START)


@pytest.mark.parametrize(
    "uri", ["untitled:Untitled-1", "file://[", "http://example.org/template.yaml", "file:a", "", "file:///a%00b"]
)
def test_what_is_no_file_is_not_checked(uri: str) -> None:
    item = {"uri": uri, "languageId": "yaml", "version": 1, "text": PUBLISHED.read_text()}
    code, answers = session(START + framed({"method": "textDocument/didOpen", "params": {"textDocument": item}}) + END)
    assert code == 0
    assert len(answers) == 2


def test_the_text_of_the_editor_is_checked_and_not_the_file(tmp_path: Path) -> None:
    file = tmp_path / "template.yaml"
    file.write_text("Resources: {}\n")
    assert len(shown(session(START + opens(file, PUBLISHED.read_text()) + END)[1])) == 3


def test_a_file_that_is_no_template_is_left_alone_and_a_broken_template_is_said(tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    file.write_text("services: {web: {image: x}}\n")
    assert shown(session(START + opens(file) + END)[1]) == []
    file.write_text("Resources:\n  A: {Type: AWS::SQS::Queue\n")
    [said] = shown(session(START + opens(file) + END)[1])
    assert said["severity"] == 3
    assert "is not YAML" in said["message"]


def test_a_plan_is_checked_and_what_it_finds_is_shown_where_it_is_written(tmp_path: Path) -> None:
    shutil.copytree(CORPUS.parent / "terraform" / "shop", tmp_path, dirs_exist_ok=True)
    _, answers = session(START + opens(tmp_path / "plan.json") + END)
    places = {one["params"]["uri"] for one in answers if "params" in one and one["params"]["diagnostics"]}
    assert (tmp_path / "modules" / "q" / "main.tf").as_uri() in places


def test_findings_in_the_code_that_a_template_names_are_shown_there(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    case = CORPUS.parent / "code" / "wrong" / "DUP005"
    for name in ("template.yaml", "src/app.py"):
        (tmp_path / name).write_text((case / name).read_text())
    file = tmp_path / "template.yaml"
    closing = framed({"method": "textDocument/didClose", "params": {"textDocument": {"uri": file.as_uri()}}})
    _, answers = session(START + opens(file) + closing + END)
    places = [(one["params"]["uri"], len(one["params"]["diagnostics"])) for one in answers if "params" in one]
    assert places[-1][1] == 0
    assert sum(number for _, number in places) == 1


def test_columns_are_counted_as_the_editor_counts(tmp_path: Path) -> None:
    file = tmp_path / "template.yaml"
    mapping = (
        "{Type: AWS::Lambda::EventSourceMapping, Properties: {EventSourceArn: !GetAtt Q.Arn, FunctionName: !Ref F}}"
    )
    file.write_text(
        '{Description: "\N{GRINNING FACE}", Resources: {Q: {Type: AWS::SQS::Queue}, M: '
        + mapping
        + ", F: {Type: AWS::Lambda::Function, Properties: {Handler: i.h, Runtime: python3.12, Timeout: 30}}}}"
    )
    wide = {"capabilities": {"general": {"positionEncodings": ["utf-32", "utf-16"]}}}
    starts = (START, framed({"id": 1, "method": "initialize", "params": wide}))
    in_16, in_32 = (shown(session(start + opens(file) + END)[1])[0]["range"]["start"]["character"] for start in starts)
    assert in_16 == in_32 + 1


def test_an_error_of_the_configuration_is_shown_once(tmp_path: Path) -> None:
    def refuses(path: Path, texts: Mapping[Path, str]) -> CheckedInput:
        raise UsageError("pyproject.toml has no option x.", todo="Remove it.")

    file = tmp_path / "template.yaml"
    file.write_text(PUBLISHED.read_text())
    _, answers = session(START + opens(file) + opens(file) + END, refuses)
    said = [one["params"]["message"] for one in answers if one.get("method") == "window/showMessage"]
    assert said == ["onefold check: pyproject.toml has no option x. Remove it."]


def test_an_editor_that_is_gone_ends_the_program_without_a_traceback(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:
        command = [sys.executable, "-m", "onefold", "check", "--lsp"]
        ran = subprocess.run(command, input=START + END, stdout=gone, stderr=subprocess.PIPE, cwd=tmp_path, check=False)
    assert ran.returncode == 1
    assert b"Traceback" not in ran.stderr


def test_the_command_takes_the_configuration_and_no_paths(tmp_path: Path) -> None:
    (tmp_path / ".onefold.toml").write_text('[check]\nignore = ["DUP"]\n')
    file = tmp_path / "template.yaml"
    file.write_text(PUBLISHED.read_text())
    command = [sys.executable, "-m", "onefold", "check", "--lsp"]
    ran = subprocess.run(command, cwd=tmp_path, input=START + opens(file) + END, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert b'"LOS004"' in ran.stdout
    assert b'"DUP002"' not in ran.stdout
    for more in ([str(file)], ["--fix"], ["--write-baseline", "b.json"]):
        refused = subprocess.run([*command, *more], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert refused.returncode == 2
        assert "--lsp takes no paths" in refused.stderr


def test_a_file_of_terraform_is_read_with_its_directory(tmp_path: Path) -> None:
    shutil.copytree(Path(__file__).parent / "hcl" / "right" / "modules", tmp_path, dirs_exist_ok=True)
    module = tmp_path / "queue" / "main.tf"
    module.write_text(module.read_text().replace("var.timeout * 6", "var.timeout * 5"))
    _, answers = session(START + opens(tmp_path / "main.tf") + END)
    assert [one["code"] for one in shown(answers)] == ["DUP002"]
    assert module.as_uri() in {one["params"]["uri"] for one in answers if one.get("method", "").endswith("Diagnostics")}


def test_terraform_in_json_is_read_and_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    file = tmp_path / "main.tf.json"
    text = (Path(__file__).parent / "hcl" / "right" / "json" / "main.tf.json").read_text()
    file.write_text(text.replace("var.timeout * 6", "var.timeout * 5"))
    _, answers = session(START + opens(file) + END)
    assert [one["code"] for one in shown(answers)] == ["DUP002"]
    for name, bad, says in (("main.tf.json", '{"resource": ', "main.tf.json:1"), ("main.tf", "a = \n", "main.tf:1")):
        file.unlink(missing_ok=True)
        file = tmp_path / name
        file.write_text(bad)
        _, answers = session(START + opens(file) + END)
        [one] = shown(answers)
        assert says in one["message"]


def test_a_link_to_itself_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").symlink_to("a.yaml")
    code, answers = session(START + opens(tmp_path / "a.yaml", "Resources: {}") + END)
    assert code == 0
    assert shown(answers) == []


@pytest.mark.parametrize("kind", ["a name that is too long", "a device", "a link to a device", "a directory"])
def test_what_is_no_regular_file_is_not_checked_and_the_session_goes_on(tmp_path: Path, kind: str) -> None:
    path = {"a device": Path("/dev/zero"), "a directory": tmp_path, "a link to a device": tmp_path / "a.yaml"}.get(
        kind, tmp_path / f"{'a' * 300}.yaml"
    )
    if kind == "a link to a device":
        path.symlink_to("/dev/zero")
    looked: list[Path] = []

    def seen(path: Path, texts: Mapping[Path, str]) -> CheckedInput:
        looked.append(path)
        return look(path, texts)

    code, answers = session(START + opens(path, PUBLISHED.read_text()) + END, seen)
    assert (code, looked) == (0, [])
    assert [one["id"] for one in answers if "id" in one] == [1, 9]


def test_a_file_that_cannot_be_read_any_more_is_said(tmp_path: Path) -> None:
    def gone(path: Path, texts: Mapping[Path, str]) -> CheckedInput:
        raise PermissionError(13, "Permission denied")

    code, answers = session(START + opens(tmp_path / "a.yaml", PUBLISHED.read_text()) + END, gone)
    assert code == 0
    assert any("cannot be read: Permission denied" in json.dumps(one) for one in answers)
