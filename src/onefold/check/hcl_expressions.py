"""Evaluates HCL's expressions, as far as the files allow.

The module (hcl_modules.py) says what names stand for.
Never here: files, functions and kinds of values (hcl_values.py). Invariants: an expression of a kind that is not listed
here is not known; the number of steps, and the size of all values produced, are bounded.

Sources: HCL Native Syntax Specification, "Expressions" and "Templates"; Terraform documentation, "Expressions".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Struct

from onefold.check.hcl_files import can_read_hcl, nodes, word
from onefold.check.hcl_values import (
    ARITHMETIC,
    ITEMS_MAX,
    NUMBER_MAX,
    TEXT_MAX,
    OfLoop,
    Splat,
    called,
    flag_of,
    followed,
    is_known,
    number_of,
    size_of,
    text_of,
    unknown,
    whole,
)
from onefold.check.terraform_plan import Encoded, Perhaps, Pieces, PlanTarget
from onefold.errors import UsageError

if TYPE_CHECKING:
    from lark import Token, Tree

STEPS_MAX: Final = 300_000  # ours: expressions evaluated for a directory, and blocks and instances looked at
VALUES_MAX: Final = 3_000_000  # ours: values in all their results, by `size_of`
_PLAN_INSTEAD: Final = "Check a plan: terraform show -json plan > plan.json."
_ESCAPE: Final = re.compile(r'\\(?:([nrt"\\])|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8}))')
_ESCAPED: Final = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
_PLAIN: Final = re.compile(r"""([A-Za-z_][\w-]{0,255})((?:\.[A-Za-z_][\w-]*|\[(?:[0-9]{1,9}|"[^"$%\\]*")\])+)""")
_PLAIN_STEP: Final = re.compile(r"""\.([\w-]+)|\[([0-9]+)\]|\["([^"]*)"\]""")
_SPECIAL: Final = re.compile(r"\$\$\{|%%\{|\$\{|%\{")


class Names(Protocol):
    """What names stand for in one place."""

    def named(self, root: str, steps: Sequence[Any], scope: Scope) -> Any:
        """The value of `root.step[step]`, for a root that is not in the scope."""

    def read(self, path: str) -> str | None:
        """The text of a file of the module; None if there is none, or it may not be read."""

    def parsed(self, text: str) -> Tree[Token]:
        """The syntax tree of an expression in a text.

        Raises:
            UsageError: it is not an expression.
        """


class Scope(Struct, frozen=True):
    """Names that exist only in one place: in `for`, `each`, `count` and dynamic blocks. `loop`: a resource's, as written."""

    names: Mapping[str, Any] = {}
    loop: str = ""

    def beside(self, **names: Any) -> Scope:
        """The same scope with more names."""
        return Scope({**self.names, **names}, self.loop)


class Evaluator:
    """Evaluates expressions; one for a directory and the modules that it calls."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._steps = 0
        self._values = 0

    def value(self, node: Any, scope: Scope, names: Names) -> Any:
        """The value of an expression: a syntax tree, or JSON's value.

        Raises:
            UsageError: there are more than `STEPS_MAX` to evaluate.
        """
        try:
            return _Expressions(self, names).value(node, scope)
        except RecursionError:
            return unknown("names that refer to one another too deeply")

    def step(self, count: int = 1) -> None:
        """Count steps.

        Raises:
            UsageError: there are more than `STEPS_MAX`.
        """
        self._steps += count
        if self._steps > STEPS_MAX:
            raise UsageError(
                f"The files in {self._folder} have more than {STEPS_MAX:,} expressions to evaluate.", todo=_PLAN_INSTEAD
            )

    def measured(self, value: Any) -> Any:
        """A value that was produced, counted by its size; one that is too large is not known.

        Raises:
            UsageError: more values were produced than `VALUES_MAX`.
        """
        if isinstance(value, (bool, int, float, PlanTarget, type(None))):
            return value
        size = size_of(value)
        self.made(size)
        return unknown("a value that is too large") if size > ITEMS_MAX else value

    def made(self, size: int) -> None:
        """Count the size of what was produced, or read for it; raises as `measured` does."""
        self._values += size
        if self._values > VALUES_MAX:
            raise UsageError(
                f"The files in {self._folder} produce more than {VALUES_MAX:,} values.", todo=_PLAN_INSTEAD
            )


class _Expressions:
    def __init__(self, evaluator: Evaluator, names: Names) -> None:
        self._evaluator = evaluator
        self._names = names
        self._kinds: Mapping[str, Callable[[Tree[Token], Scope], Any]] = {
            "attr_splat_expr_term": self._reference,
            "binary_op": self._binary,
            "conditional": self._conditional,
            "expr_term": self._term,
            "float_lit": lambda node, _: float(word(node)),
            "for_object_expr": self._for,
            "for_tuple_expr": self._for,
            "full_splat_expr_term": self._reference,
            "function_call": self._call,
            "get_attr_expr_term": self._reference,
            "heredoc_template": self._heredoc,
            "heredoc_template_trim": self._heredoc,
            "identifier": self._reference,
            "index_expr_term": self._reference,
            "int_lit": self._integer,
            "literal_value": lambda node, _: {"true": True, "false": False}.get(word(node)),
            "object": self._object,
            "string": lambda node, scope: self._joined([self._part(one, scope) for one in nodes(node)]),
            "tuple": lambda node, scope: [self.value(one, scope) for one in nodes(node)],
            "unary_op": self._unary,
        }

    def value(self, node: Any, scope: Scope) -> Any:
        self._evaluator.step()
        match node:
            case str():
                return self._template(node, scope)
            case list():
                return self._evaluator.measured([self.value(one, scope) for one in node])
            case dict():
                return self._evaluator.measured({name: self.value(one, scope) for name, one in node.items()})
            case None | bool() | int() | float():
                return node
            case _:
                pass
        evaluate = self._kinds.get(str(node.data))
        if evaluate is None:
            return unknown("an expression that is not evaluated here")
        made = evaluate(node, scope)
        return made if node.data == "expr_term" else self._evaluator.measured(made)

    def _term(self, node: Tree[Token], scope: Scope) -> Any:
        return self.value(nodes(node)[0], scope)

    def _integer(self, node: Tree[Token], _: Scope) -> Any:
        return int(word(node)) if len(word(node)) < 19 else unknown("a number that is too long")

    # -- texts ---------------------------------------------------------------------------------------------------------

    def _part(self, part: Tree[Token], scope: Scope) -> Any:
        if len(part.children) != 1:
            return unknown("a text with directives")
        one: Any = part.children[0]
        if isinstance(one, str):
            if one.startswith(("$${", "%%{")):
                return one[1:]
            return _ESCAPE.sub(_unescaped, one)
        if one.data == "interpolation":
            return self.value(nodes(one)[0], scope)
        return unknown("a text with directives")

    def _heredoc(self, node: Tree[Token], scope: Scope) -> Any:
        first, *lines = word(node).replace("\r\n", "\n").removesuffix("\n").split("\n")
        lines = [*lines[:-1], ""] if len(lines) > 1 else [""]  # without the line of the mark
        if first.startswith("<<-"):
            spaces = min((len(one) - len(one.lstrip()) for one in lines if one.strip()), default=0)
            lines = [one[spaces:] for one in lines]
        return self._template("\n".join(lines), scope)

    def _template(self, text: str, scope: Scope) -> Any:
        """A text with `${...}` in it."""
        self._evaluator.made(len(text) // 64)
        parts: list[Any] = []
        at = 0
        while (match := _SPECIAL.search(text, at)) is not None:
            parts.append(text[at : match.start()])
            if match[0] in ("$${", "%%{"):
                parts.append(match[0][1:])
                at = match.end()
                continue
            ends = _end_of(text, match.end())
            if match[0] == "%{" or ends is None:
                return unknown("a text with directives")
            written, at = text[match.end() : ends].strip(), ends + 1
            if (plain := _PLAIN.fullmatch(written)) is not None:
                steps = [int(one[2]) if one[2] else one[1] or one[3] for one in _PLAIN_STEP.finditer(plain[2])]
                parts.append(self._named(plain[1], steps, scope))
                continue
            try:
                node = self._names.parsed(written)
            except UsageError:
                if not can_read_hcl():
                    raise
                return unknown("a text that is not understood")
            parts.append(self.value(node, scope))
        return self._joined([*parts, text[at:]] if parts else [text])

    def _joined(self, parts: list[Any]) -> Any:
        parts = [one for one in parts if one != ""]
        if len(parts) == 1:  # "${x}" alone is x, whatever it is
            return parts[0]
        found: list[Any] = []
        size = 0
        for one in parts:
            shown = text_of(one)
            if shown is None and not isinstance(one, (PlanTarget, Perhaps, Pieces, Encoded)):
                return unknown("no text where one is needed", one)
            found += one.parts if isinstance(one, Pieces) else [one if shown is None else shown]
            size += len(shown or "") + 1
            if size > TEXT_MAX or len(found) > ITEMS_MAX:
                return unknown("a text that is too long")
        return "".join(found) if all(isinstance(one, str) for one in found) else Pieces(tuple(found))

    # -- operators -----------------------------------------------------------------------------------------------------

    def _object(self, node: Tree[Token], scope: Scope) -> Any:
        found: dict[str, Any] = {}
        for one in nodes(node):
            key, written = nodes(one)
            inner = key
            while (
                len(nodes(inner)) == 1 and inner.data in ("object_elem_key", "expr_term") and len(inner.children) == 1
            ):
                inner = nodes(inner)[0]
            is_word = inner.data in ("identifier", "keyword", "object_elem_key", "literal_value")
            name = word(inner) if is_word else text_of(self.value(inner, scope))
            value = self.value(written, scope)
            if name is None:
                return unknown("an object whose keys are not known", value, *found.values())
            found[name] = value
        return found

    def _conditional(self, node: Tree[Token], scope: Scope) -> Any:
        condition, first, second = nodes(node)
        holds = flag_of(self.value(condition, scope))
        if isinstance(holds, bool):
            return self.value(first if holds else second, scope)
        one, other = self.value(first, scope), self.value(second, scope)
        return one if one == other and is_known(one) else unknown("a condition that is not known", holds, one, other)

    def _unary(self, node: Tree[Token], scope: Scope) -> Any:
        value = self.value(nodes(node)[0], scope)
        if str(node.children[0]) == "!":
            flag = flag_of(value)
            return not flag if isinstance(flag, bool) else flag
        number = number_of(value)
        return -number if isinstance(number, (int, float)) else number

    def _binary(self, node: Tree[Token], scope: Scope) -> Any:
        left, term = nodes(node)
        sign, right = word(nodes(term)[0]), nodes(term)[1]
        one, other = self.value(left, scope), self.value(right, scope)
        if sign in ("&&", "||"):
            flags = (flag_of(one), flag_of(other))
            decides = sign == "||"
            if any(flag is decides for flag in flags):
                return decides
            return not decides if all(isinstance(flag, bool) for flag in flags) else unknown("no condition", *flags)
        if sign in ("==", "!="):
            if not (is_known(one) and is_known(other)):
                return unknown("a comparison of what is not known", one, other)
            return (one == other and isinstance(one, bool) == isinstance(other, bool)) is (sign == "==")
        first, second = number_of(one), number_of(other)
        if not isinstance(first, (int, float)) or not isinstance(second, (int, float)):
            return unknown("no number where one is needed", first, second)
        try:
            made = ARITHMETIC[sign](first, second)
        except (ArithmeticError, KeyError, ValueError):
            return unknown("an arithmetic error")
        if isinstance(made, bool):
            return made
        return whole(made) if abs(made) < NUMBER_MAX else unknown("a number that is too large")

    def _for(self, node: Tree[Token], scope: Scope) -> Any:
        inner = nodes(node)
        intro, rest = nodes(inner[0]), list(inner[1:])
        condition = rest.pop() if rest[-1].data == "for_cond" else None
        many = self.value(intro[-1], scope)
        if not isinstance(many, (list, dict)) or any(isinstance(one, str) and one == "..." for one in node.children):
            return unknown("a loop over what is not known", many)
        names = [word(one) for one in intro[:-1]]
        self._evaluator.made(len(many) * len(scope.names))
        pairs = sorted(many.items()) if isinstance(many, dict) else list(enumerate(many))
        made: list[tuple[Any, Any]] = []
        for key, value in pairs:
            inside = scope.beside(**({names[0]: key, names[1]: value} if len(names) == 2 else {names[0]: value}))
            holds = True if condition is None else flag_of(self.value(nodes(condition)[0], inside))
            if not isinstance(holds, bool):
                return unknown("a loop with a condition that is not known", holds, many)
            if holds:
                name = self.value(rest[0], inside)
                made.append((name, self.value(rest[1], inside) if len(rest) == 2 else None))
        if node.data == "for_tuple_expr":
            return [name for name, _ in made]
        keys = [text_of(name) for name, _ in made]
        if None in keys:
            return unknown("an object whose keys are not known", many)
        return {str(key): value for key, (_, value) in zip(keys, made, strict=True)}

    # -- names and functions ---------------------------------------------------------------------------------------------

    def _reference(self, node: Tree[Token], scope: Scope) -> Any:
        steps: list[Any] = []
        while True:
            inner = nodes(node)
            match str(node.data):
                case "identifier":
                    break
                case "expr_term" if len(inner) == 1:
                    node = inner[0]
                case "get_attr_expr_term" | "index_expr_term":
                    steps.append(self._step(inner[1], scope))
                    node = inner[0]
                case "attr_splat_expr_term" | "full_splat_expr_term":
                    after = nodes(inner[1])
                    is_full = node.data == "full_splat_expr_term"
                    ends = next(
                        (at for at, one in enumerate(after) if one.data == "braces_index" and not is_full), None
                    )
                    found = [self._step(one, scope) for one in after]
                    steps += [*reversed(found[ends:] if ends is not None else ()), Splat(found[:ends])]
                    node = inner[0]
                case _:
                    return followed(self.value(node, scope), steps[::-1])
        return self._named(word(node), steps[::-1], scope)

    def _named(self, root: str, steps: Sequence[Any], scope: Scope) -> Any:
        if root in scope.names:
            return followed(scope.names[root], steps)
        return self._names.named(root, steps, scope)

    def _step(self, step: Tree[Token], scope: Scope) -> Any:
        if step.data == "get_attr":
            return word(nodes(step)[0])
        if step.data == "short_index":
            return int(word(step).lstrip("."))
        value = self.value(nodes(step)[0], scope)
        if not isinstance(value, Perhaps):
            return value
        written = word(nodes(step)[0])
        self._evaluator.made(len(written))
        return OfLoop if re.sub(r"\s", "", written) in ("each.key", "each.value", "count.index") else value

    def _call(self, node: Tree[Token], scope: Scope) -> Any:
        inner = nodes(node)
        name = word(inner[0])
        listed = inner[-1] if inner[-1].data == "arguments" else None
        written = nodes(listed) if listed is not None else []
        values = [self.value(one, scope) for one in written]
        if len([one for one in inner if one.data == "identifier"]) > 1:
            return unknown("a function of a provider", *values)
        if listed is not None and any(isinstance(one, str) and one == "..." for one in listed.children):
            if not values or not isinstance(values[-1], list):
                return unknown("arguments that are not known", *values)
            values = [*values[:-1], *values[-1]]
        if name in ("file", "templatefile") and values and isinstance(values[0], str):
            text = self._names.read(values[0])
            given = values[1] if len(values) == 2 and isinstance(values[1], dict) else {}
            if text is None:
                return unknown(f"the file {values[0]!r:.80} is not read here", *values)
            return text if name == "file" else self._template(text, Scope(given))
        return called(name, values)


def _unescaped(match: re.Match[str]) -> str:
    if match[1]:
        return _ESCAPED[match[1]]
    number = int(match[2] or match[3], 16)
    return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else "\N{REPLACEMENT CHARACTER}"


def _end_of(text: str, at: int) -> int | None:
    """The position of the closing brace of what begins at `at`; texts inside are skipped."""
    depth, is_quoted = 1, False
    while at < len(text):
        one = text[at]
        if is_quoted:
            at += one == "\\"
            is_quoted = one != '"'
        elif one == '"':
            is_quoted = True
        else:
            depth += {"{": 1, "}": -1}.get(one, 0)
            if depth == 0:
                return at
        at += 1
    return None
