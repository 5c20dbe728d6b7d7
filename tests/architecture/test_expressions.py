"""Every regular expression of the package takes linear time: one message must not freeze a worker.

The interpreter's lock is held while one matches. The patterns are found in the source, so that a new one is tested by
itself: the first argument of each `re.search(...)` and of each `re.compile(...)`, with the ways it is matched. For each,
texts are made from its own characters: one of them repeated, two alternating, a long run behind what the pattern begins
with, and each part of it repeated behind what leads there, followed by what cannot match. What counts is how the time
grows with the text, not the time; the thread's own is measured, which a busy machine does not lengthen.
"""

from __future__ import annotations

import ast
import importlib
import re
import time
from collections.abc import Iterator
from functools import cache, partial
from re import _constants as codes  # the parser's tree: there is no public one
from re import _parser as parser
from typing import Any, NamedTuple

import pytest

from tests.architecture.source import modules, tree

CHARS = 8_000
WORTH_A_LOOK_S = 0.003  # linear time is below that, but for the dearest patterns
SURE_S = 0.05  # no pattern that looks ahead by a bounded number of characters takes that long
GROWTH_MAX = 9.0  # for four times the text: linear 4, quadratic 16
WAYS = frozenset({"search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer"})

# Patterns that stand in a variable where they are used, by module: an expression that gives all of them.
ELSEWHERE = {
    "onefold.record.failures": ["list(NEVER_SENT.values())"],
    "onefold.deploy.changes": ["[pattern for pattern, _ in _ADVICE]"],
    "onefold.redact": ["[_SLIP, _NO_SCHEME, _QUOTED_LOGIN]"],
}


class Use(NamedTuple):
    where: str
    pattern: str | bytes
    flags: int
    ways: frozenset[str]


@cache
def found() -> list[Use]:
    uses: dict[tuple[str | bytes, int], Use] = {}
    compiled: dict[str, list[tuple[str, re.Pattern[Any]]]] = {}
    called: dict[str, set[str]] = {}
    for name, path in modules().items():
        source = tree(path)
        for node in ast.walk(source):
            if isinstance(node, ast.ImportFrom):
                assert node.module != "re", f"{name}: write re.search(...), so that this test finds the pattern"
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner, way = node.func.value, node.func.attr
            if isinstance(owner, ast.Name) and owner.id == "re" and way in WAYS | {"compile"}:
                for pattern in values(name, node):
                    flags = pattern.flags & ~re.UNICODE if isinstance(pattern, re.Pattern) else 0
                    text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
                    ways = frozenset() if way == "compile" else frozenset({way})
                    before = uses.get((text, flags), Use(f"{name}:{node.lineno}", text, flags, frozenset()))
                    uses[text, flags] = before._replace(ways=before.ways | ways)
            elif way in WAYS:
                target = (
                    owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
                )
                called.setdefault(target, set()).add(way)
        for held in vars(importlib.import_module(name)).items() if mentions_re(source) else ():
            if isinstance(held[1], re.Pattern):
                compiled.setdefault(held[0], []).append((name, held[1]))
    for target, patterns in compiled.items():
        for name, pattern in patterns:
            ways = frozenset(called.get(target, {"search"}))
            key = (pattern.pattern, pattern.flags & ~re.UNICODE)
            before = uses.get(key, Use(f"{name}.{target}", *key, frozenset()))
            uses[key] = before._replace(ways=before.ways | ways)
    return [use._replace(ways=use.ways or frozenset({"search"})) for use in uses.values()]


def mentions_re(source: ast.Module) -> bool:
    return any(
        isinstance(node, ast.Import) and any(one.name == "re" for one in node.names) for node in ast.walk(source)
    )


def values(module: str, call: ast.Call) -> list[Any]:
    """What the first argument of a call may be."""
    names = vars(importlib.import_module(module))
    try:
        value = eval(compile(ast.Expression(call.args[0]), module, "eval"), dict(names))
    except NameError:
        assert module in ELSEWHERE, f"{module}:{call.lineno}: name the pattern's values in ELSEWHERE"
        return [one for text in ELSEWHERE[module] for one in eval(text, dict(names))]
    if call.func.attr == "compile" and len(call.args) > 1:  # type: ignore[attr-defined]
        return [eval(compile(ast.Expression(call), module, "eval"), dict(names))]
    return [value]


# ---------------------------------------------------------------------------------------------------- adversarial texts


def texts(use: Use) -> Iterator[str]:
    """Of `CHARS` characters, made for one pattern."""
    parsed = parser.parse(use.pattern, use.flags)
    letters = sorted(set(alphabet(parsed)) | {"a", " "})[:12]
    ends = ("", "\x00", "\n", "!")
    for first in letters:
        yield first * CHARS
        yield first * CHARS + "\x00"
        for second in letters:
            if first != second:
                yield (first + second) * (CHARS // 2)
                yield first + second * CHARS
    for lead, body in runs(parsed, ""):
        for end in ends:
            yield lead + body * (CHARS // max(len(body), 1)) + end
            if lead:
                yield (lead + body) * (CHARS // len(lead + body)) + end
                yield lead * (CHARS // len(lead)) + end


def alphabet(parsed: Any) -> Iterator[str]:
    """The literal characters of a pattern, and one or two of each class."""
    for code, argument in parsed:
        if code is codes.LITERAL:
            yield chr(argument)
        elif code is codes.IN:
            yield from members(argument)
        elif code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            yield from alphabet(argument[2])
        elif code is codes.SUBPATTERN:
            yield from alphabet(argument[3])
        elif code is codes.BRANCH:
            for branch in argument[1]:
                yield from alphabet(branch)
        elif code in (codes.ASSERT, codes.ASSERT_NOT):
            yield from alphabet(argument[1])


CATEGORIES = {codes.CATEGORY_DIGIT: "0", codes.CATEGORY_SPACE: " ", codes.CATEGORY_WORD: "a"}


def members(argument: Any) -> list[str]:
    """Characters that a class takes."""
    negated = argument[0][0] is codes.NEGATE
    kept: list[str] = []
    for code, value in argument:
        if code is codes.LITERAL:
            kept.append(chr(value))
        elif code is codes.RANGE:
            kept += [chr(value[0]), chr(value[1])]
        elif code is codes.CATEGORY:
            kept.append(CATEGORIES.get(value, "\x00"))
    if not negated:
        return kept
    return [one for one in ("a", "0", "?", "=", ":", "/", "-", "@", ".", "[", "<", "{", "(", " ") if one not in kept]


def sample(parsed: Any) -> str:
    """A short text that the pattern takes, or nearly."""
    parts = []
    for code, argument in parsed:
        if code is codes.LITERAL:
            parts.append(chr(argument))
        elif code is codes.NOT_LITERAL:
            parts.append("a" if argument != ord("a") else "b")
        elif code is codes.ANY:
            parts.append("a")
        elif code is codes.IN:
            parts.append((members(argument) or ["a"])[0])
        elif code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            parts.append(sample(argument[2]) * max(argument[0], min(1, argument[1])))
        elif code is codes.SUBPATTERN:
            parts.append(sample(argument[3]))
        elif code is codes.BRANCH:
            parts.append(sample(argument[1][0]))
    return "".join(parts)


def runs(parsed: Any, lead: str) -> Iterator[tuple[str, str]]:
    """For each repetition: what leads to it, and what it repeats."""
    for place, (code, argument) in enumerate(parsed):
        before = lead + sample(parsed[:place])
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            inner = argument[2]
            bodies = {sample(inner)}
            if len(inner) == 1 and inner[0][0] is codes.IN:
                bodies |= set(members(inner[0][1])[:16])
            bodies |= {body[:-1] + before[-1] for body in bodies if body and before}  # begins anew at each of them
            for body in sorted(bodies - {""}):
                yield before, body
            yield from runs(inner, before)
        elif code is codes.SUBPATTERN:
            yield from runs(argument[3], before)
        elif code is codes.BRANCH:
            for branch in argument[1]:
                yield before, sample(branch) or "a"
                yield from runs(branch, before)


def slow(use: Use) -> str | None:
    """What shows that a pattern takes more than linear time; None when nothing does."""
    pattern = re.compile(use.pattern, use.flags)
    for text in dict.fromkeys(texts(use)):
        given: Any = text if isinstance(use.pattern, str) else text.encode("latin-1", "replace")
        for way in sorted(use.ways):
            call = getattr(pattern, way)
            if way in ("sub", "subn"):
                call = partial(call, given[:0])
            if taken_s(call, given) > WORTH_A_LOOK_S:
                quarter, whole = least_s(call, cut(given)), least_s(call, given)
                if whole <= max(WORTH_A_LOOK_S, GROWTH_MAX * quarter):
                    continue
                longer = taken_s(call, fourfold(given)) if whole < SURE_S else None
                if longer is None or longer > GROWTH_MAX * whole:
                    times = ", ".join(f"{one * 1e3:.1f} ms" for one in (quarter, whole, longer) if one is not None)
                    return (
                        f"{use.where}: re.{way}({use.pattern!r}) on {text[:16]!r}..., each four times longer: {times}"
                    )
    return None


def cut(text: Any) -> Any:
    """A quarter of a text that repeats itself, with its own beginning and end."""
    return text[: CHARS // 4 - 1] + text[-1:]


def fourfold(text: Any) -> Any:
    """Four times a text that repeats itself.

    A pattern that looks ahead by a bounded number of characters grows faster than a text that is shorter than that.
    """
    return text[:-1] * 4 + text[-1:]


def least_s(call: Any, text: Any) -> float:
    return min(taken_s(call, text) for _ in range(3))


def taken_s(call: Any, text: Any) -> float:
    began = time.thread_time()
    answer = call(text)
    if hasattr(answer, "__next__"):
        for _ in answer:
            pass
    return time.thread_time() - began


def test_the_walk_knows_a_quadratic_pattern_from_a_linear_one() -> None:
    quadratic = [r"\?[^\s'\"()=]+=[^\s'\")]*", r"(a+)b", r"\s+$", r"<(\$[^<>]*|[a-z]+)>.*x", r"(?:a|b)*c"]
    quadratic += [r'"(?:\\.|[^"\\])*"']
    for pattern in quadratic:
        assert slow(Use("here", pattern, 0, frozenset({"search"}))), pattern
    for pattern in [r"[A-Za-z0-9_-]{1,80}", r"(?<=://)[^/\s@'\"]{0,80}@", r"[0-9]+(?:\.[0-9]+)?"]:
        assert not slow(Use("here", pattern, 0, frozenset({"fullmatch"}))), pattern


def test_the_walk_finds_the_patterns_of_the_package() -> None:
    patterns = {str(use.pattern) for use in found()}
    assert len(patterns) > 80
    assert r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo" in patterns  # compiled
    assert r"[!-~]{1,128}" in patterns  # a constant
    assert "connection failed|failed to resolve host" in patterns  # of a table


@pytest.mark.slow
def test_every_expression_takes_linear_time() -> None:
    bad = [line for use in found() if (line := slow(use)) is not None]
    assert not bad, "\n".join(bad)
