"""Reading a template: short tags, lines, and refusals that name file and line, whatever the file holds."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.check.documents import FILE_BYTES_MAX, read_document
from onefold.errors import NotFoundError, UsageError


def read(folder: Path, text: str | bytes, name: str = "t.yaml") -> dict[str, object]:
    file = folder / name
    file.write_bytes(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
    return read_document(file).data


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("!Ref A", {"Ref": "A"}),
        ("!Condition A", {"Condition": "A"}),
        ("!GetAtt A.B.C", {"Fn::GetAtt": ["A", "B.C"]}),
        ("!GetAtt [A, B]", {"Fn::GetAtt": ["A", "B"]}),
        ("!Sub ${A}", {"Fn::Sub": "${A}"}),
        ("!Sub ['${x}', {x: !Ref A}]", {"Fn::Sub": ["${x}", {"x": {"Ref": "A"}}]}),
        ("!Join [',', [!Ref A, 7]]", {"Fn::Join": [",", [{"Ref": "A"}, 7]]}),
        ("!If [C, !Ref A, !Ref 'AWS::NoValue']", {"Fn::If": ["C", {"Ref": "A"}, {"Ref": "AWS::NoValue"}]}),
        ("!Base64\n  Fn::Sub: x", {"Fn::Base64": {"Fn::Sub": "x"}}),
        ("!Ref 012", {"Ref": "012"}),
    ],
)
def test_short_tags_come_out_long(tmp_path: Path, short: str, long: object) -> None:
    assert read(tmp_path, f"a: {short}\n") == {"a": long}


@pytest.mark.parametrize(
    ("written", "value"),
    [("7", 7), ("-7", -7), ("1.5", 1.5), ("true", True), ("Yes", True), ("off", False), ("~", None), ("", None),
     ("2010-09-09", "2010-09-09"), ("012345678901", "012345678901"), ("0x1F", "0x1F"), ("1:30", "1:30"), ("1_000", "1_000"),
     (".inf", ".inf"), ("9" * 5_000, "9" * 5_000), ("'7'", "7"), ("! x", "x"),
     ("!!str 7", "7"), ("|\n  a\n  b\n", "a\nb\n")],
)  # fmt: skip
def test_scalars(tmp_path: Path, written: str, value: object) -> None:
    assert read(tmp_path, f"a: {written}\n") == {"a": value}


def test_keys_stay_text(tmp_path: Path) -> None:
    assert read(tmp_path, "012345678901: 1\ntrue: 2\n") == {"012345678901": 1, "true": 2}


def test_aliases_and_merge_keys_are_followed(tmp_path: Path) -> None:
    text = "x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}\nz: {<<: [{b: 9}, *x]}\nw: [*x, *x]\n"
    document = read(tmp_path, text)
    assert document["y"] == {"a": 1, "b": 3}
    assert document["z"] == {"a": 1, "b": 9}
    assert document["w"] == [{"a": 1, "b": 2}] * 2


def test_lines_are_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("a:\n  b: 1\n  c:\n    - !Ref x\n    - !Join\n      - ''\n      - [y]\n")
    document = read_document(file)
    assert document.line(("a", "b")) == 2
    assert document.line(("a", "c", 1)) == 5
    assert document.line(("a", "c", 1, "Fn::Join", 1)) == 7
    assert document.line(("a", "b", "not", "there")) == 2


def test_json_is_read_whatever_yaml_thinks_of_it(tmp_path: Path) -> None:
    given = {"a": {"b": ["\U0001f600", "\t", 1.0, None]}}
    assert read(tmp_path, json.dumps(given)) == given
    assert read(tmp_path, json.dumps(given, indent="\t").replace("\t", "\t\t")) == given
    assert read(tmp_path, b"\xef\xbb\xbf" + json.dumps(given).encode()) == given


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {k: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join(['*' + before] * 10)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "its top level is not a mapping"),
        ("- 1\n", "its top level is not a mapping"),
        ("a: 1\nb: [\n", r"t.yaml:3 is not YAML"),
        ("a: 1\n b: 2\n", r"t.yaml:2 is not YAML"),
        ("a: \x00\n", "is not YAML"),
        ("a: *nothing\n", r"t.yaml:1 is not YAML: .*alias"),
        ("a: 1\n---\nb: 2\n", r"t.yaml:2 is not YAML"),
        ("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n", r"t.yaml:5 has the key 'c' again \(first: line 3\)"),
        ("a: !!python/object/apply:os.system [ls]\n", "has the tag !!python/object/apply:os.system"),
        ("a: !!set {x, y}\n", "has the tag !!set"),
        ("a: !!binary aGk=\n", "has the tag !!binary"),
        ("? [a, b]\n: 1\n", "has a key that is not text"),
        ("a: {<<: 7}\n", "merges something that is not a mapping"),
        ("a: &a [*a]\n", "deeper than 100 levels"),
        ("a: &a {<<: *a}\n", "deeper than 100 levels"),
        ("a: " + "[" * 500 + "]" * 500, "deeper than 100 levels|nested too deep"),
        ("a: " + "[" * 100_000, "deeper than 100 levels"),
        (BOMB, "expands to more than"),
        (MERGES, "expands to more than"),
        (f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 1_000)}]\n", "expands to more than"),
        ('{"a": 1,\n"a": 2}', r"t.yaml:2 has the key 'a' again"),
        ('{\t"a": 1,\n"a": 2}', "has the key 'a' (twice|again)"),
        ('{\n\t"a": "\\ud83d\\ude00",\n"b" 2}', r"t.yaml:3 is not JSON"),
        ('{\t"a": "\\ud83d\\ude00", "b": ' + "[" * 100_000, "is no"),
        ('{\t"a": ' + "[" * 300 + '"\\ud83d\\ude00"' + "]" * 300 + "}", "deeper than 100 levels"),
        ('{"a": "\\ud83d"}', "is not a template"),
        (b"a: 1\nb: \xff\n", r"t.yaml:2 is not UTF-8"),
        (b" " * (FILE_BYTES_MAX + 1), "larger than"),
    ],
)  # fmt: skip
def test_what_is_no_template_is_refused_with_its_line(tmp_path: Path, text: str | bytes, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read(tmp_path, text)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "none", tmp_path / "pipe"):
        with pytest.raises(NotFoundError, match="There is no file"):
            read_document(path)


@given(st.binary(max_size=200) | st.text(alphabet="ab:-[]{}!&*<?|>'\" \n\t#%,0", max_size=80).map(str.encode))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    file = Path(os.environ.get("TMPDIR", "/tmp")) / f"onefold-template-{os.getpid()}"
    file.write_bytes(raw)
    with contextlib.suppress(UsageError):
        assert isinstance(read_document(file).data, dict)
    file.unlink()
