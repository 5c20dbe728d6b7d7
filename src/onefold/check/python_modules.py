"""Python files as modules: reading and parsing them within bounds, their scopes and names, and their imports.

No user code is run. Imports are followed to files in the folder of the importing file or in a folder above it, up to the
root. Modules of the standard library, packages that rules know by name, and packages installed next to the code
(`*.dist-info`) are not followed and stay dotted names.
Never here: the values of expressions (python_values.py), rules. Invariants: a file that cannot be parsed is an error
with file and line; sizes and counts are bounded.
"""

from __future__ import annotations

import ast
import io
import os
import sys
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from onefold.check.files import contents
from onefold.check.findings import FindingSource
from onefold.errors import NotFoundError, UsageError

FILE_BYTES_MAX: Final = 1_048_576  # ours; larger files are generated
# Ours, for files read together: imports after that are not followed. Takes about 600 MB of memory.
CHARS_MAX: Final = 12_000_000
FOLDERS_MAX: Final = 20  # ours: how many folders up imports are looked for
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSION = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
ScopeNode = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.expr

# Never followed, even if there is a copy next to the code: rules know these packages by name.
_KNOWN: Final = frozenset(
    {
        *("aioboto3", "aws_durable_execution_sdk_python", "aws_lambda_powertools", "aws_xray_sdk", "boto3", "botocore"),
        *("celery", "kombu", "onefold", "redis", "sqs_extended_client", "valkey"),
    }
)


class BrokenModule(Struct, frozen=True):
    """A file that could not be read: what is wrong, what it means, and what to do."""

    what: str
    meaning: str
    todo: str


def broken(error: UsageError) -> BrokenModule:
    """The texts of an error, without its traceback, which would keep all modules in memory."""
    return BrokenModule(error.what, error.meaning, error.todo)


class Inside(Struct, frozen=True):
    """The place of a module that is written inside another file, a template.

    Attributes:
        source: the place of the whole module. lines, columns: added to positions in it; None: only `source` is known.
    """

    source: FindingSource
    lines: int | None
    columns: int


class Binding(Struct, frozen=True):
    """One way in which a name gets a value.

    Attributes:
        how: `value`: the value of the expression `node`. `item`: an item of it. `parameter`, `function`, `class`: `node`.
            `import`: `dotted`, relative if `level` is not 0. `other`: not followed.
        path: indexes of a target in an unpacking: `for number, record in enumerate(...)` binds `record` with (1,).
    """

    how: str
    node: ast.AST | None = None
    dotted: str = ""
    level: int = 0
    path: tuple[int, ...] = ()


class ModuleScope:
    """The names of a module, class, function, lambda or comprehension.

    Attributes:
        bindings: for each name all its bindings in this scope. outside: names declared global or nonlocal.
    """

    def __init__(self, node: ScopeNode, parent: ModuleScope | None, module: Module) -> None:
        self.node = node
        self.parent = parent
        self.module = module
        self.bindings: dict[str, list[Binding]] = {}
        self.outside: set[str] = set()

    def bind(self, name: str, binding: Binding) -> None:
        """Add a binding of a name."""
        self.bindings.setdefault(name, []).append(binding)

    def find(self, name: str) -> tuple[ModuleScope, list[Binding]] | None:
        """The scope in which a name is found, and its bindings there; None if there is none."""
        scope: ModuleScope | None = self
        while scope is not None:
            if name in scope.bindings and name not in scope.outside:
                is_seen = scope is self or not isinstance(scope.node, ast.ClassDef)
                if is_seen:
                    return scope, scope.bindings[name]
            scope = scope.parent
        return None


class Module:
    """One parsed file.

    Attributes:
        root: imports are not followed above it. inside: its place in a template; None for a file of its own.
        scopes: by the nodes that open them. parents: each node's parent. owned: the nodes of the module and of each
            function and class, without those of inner ones; lambdas belong to the function around them.
        of_self: for each class, the values assigned to attributes of `self`, by attribute name.
    """

    def __init__(self, path: Path, root: Path, text: str, tree: ast.Module, inside: Inside | None = None) -> None:
        self.path = path
        self.root = root
        self.inside = inside
        self.file = str(path) if inside is None else inside.source.file
        self.text = text
        self.tree = tree
        self.lines = text.split("\n")
        self.scopes: dict[ast.AST, ModuleScope] = {}
        self.parents: dict[ast.AST, ast.AST] = {}
        self.star_imports: list[Binding] = []
        self.of_self: dict[ast.ClassDef, dict[str, list[ast.expr]]] = {}
        self.owned: dict[ast.AST, list[ast.AST]] = {tree: []}
        self._own(tree)
        self.top = _Binder(self).module()

    def _own(self, tree: ast.Module) -> None:
        waiting: list[tuple[ast.AST, ast.AST]] = [(tree, tree)]
        while waiting:
            node, owner = waiting.pop()
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
                self.owned[owner].append(child)
                inner = owner
                if isinstance(child, (*FUNCTION, ast.ClassDef)):
                    inner = child
                    self.owned[child] = []
                waiting.append((child, inner))

    def scope_of(self, node: ast.AST) -> ModuleScope:
        """The scope in which a node is evaluated; for decorators and defaults, the scope around the function."""
        inner, outer = node, self.parents.get(node)
        while outer is not None:
            if outer in self.scopes and not _is_of_header(inner, outer):
                return self.scopes[outer]
            inner, outer = outer, self.parents.get(outer)
        return self.top

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The ancestors of a node, the nearest first."""
        outer = self.parents.get(node)
        while outer is not None:
            yield outer
            outer = self.parents.get(outer)

    def source(self, node: ast.AST) -> FindingSource:
        """The place of a node: its first line; for a function or class, its `def` line."""
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        end_line, end_column = getattr(node, "end_lineno", None) or line, getattr(node, "end_col_offset", None) or 0
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        if end_line != line or isinstance(node, (*FUNCTION, ast.ClassDef)):
            end = len(text.rstrip())
        else:
            end = _characters(text, end_column)
        begin = _characters(text, column)
        if self.inside is None:
            return FindingSource(self.file, line, begin + 1, line, max(end, begin) + 1)
        if self.inside.lines is None:
            return self.inside.source
        line, columns = line + self.inside.lines, self.inside.columns
        return FindingSource(self.file, line, begin + 1 + columns, line, max(end, begin) + 1 + columns)

    def text_of(self, node: ast.AST | None, chars_max: int = 60) -> str:
        """The source text of a node on one line, shortened; "" for None."""
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", None) or 0
        if not 0 < first <= last <= len(self.lines):
            return ""
        lines = self.lines[first - 1 : last]
        lines[-1] = lines[-1][: _characters(lines[-1], getattr(node, "end_col_offset", None) or 0)]
        lines[0] = lines[0][_characters(self.lines[first - 1], getattr(node, "col_offset", 0)) :]
        written = " ".join(" ".join(lines).split())
        return written if len(written) <= chars_max else f"{written[: chars_max - 3]}..."


def last_name(node: ast.AST | None) -> str:
    """The last part of a dotted name, even if it is quoted; "" for other expressions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.rpartition(".")[2]
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _characters(line: str, column: int) -> int:
    """Convert a column in bytes of UTF-8 to one in characters."""
    return column if line.isascii() else len(line.encode()[:column].decode(errors="ignore"))


def _is_of_header(inner: ast.AST, outer: ast.AST) -> bool:
    """Whether a child of a scope's node is evaluated in the scope around it: decorators, defaults, annotations, bases."""
    if isinstance(outer, FUNCTION):
        return inner in outer.decorator_list or inner is outer.args or inner is outer.returns
    if isinstance(outer, ast.Lambda):
        return inner is outer.args
    if isinstance(outer, ast.ClassDef):
        return inner in outer.decorator_list or inner in outer.bases or inner in outer.keywords
    return False


class Modules:
    """The modules that were read, each once."""

    def __init__(self) -> None:
        self._read: dict[Path, Module | None] = {}
        self._folders: dict[Path, frozenset[str]] = {}
        self._imported: dict[tuple[Path, Path, str, int], Module | None] = {}
        self._chars = 0
        self.unread: dict[str, BrokenModule] = {}

    def read(self, path: Path, root: Path) -> Module:
        """Read a file as a module.

        Raises:
            NotFoundError: it does not exist. StorageError: it cannot be read.
            UsageError: too large, not text, not Python of this version or an earlier one.
        """
        place = path.resolve()
        known = self._read.get(place)
        if known is not None:
            return known
        self._read[place] = None
        module = self._read[place] = parsed(path, root)
        self._chars += len(module.text)
        return module

    def add(self, path: Path, root: Path, text: str, inside: Inside) -> Module:
        """Parse a module that is written inside another file; `path` is its name. Errors as for `read`."""
        place = Path(f"{path.resolve()}:{inside.source}")
        if self._read.get(place) is None:
            self._read[place] = module_of(path, root, text, inside)
        found = self._read[place]
        assert found is not None
        return found

    def quietly(self, path: Path, root: Path) -> Module | None:
        """A file that an import leads to; what is wrong with it is kept in `unread`."""
        if self._read.get(path.resolve(), self) is None or self._chars > CHARS_MAX:
            return None  # being read, not readable, or too much
        try:
            return self.read(path, root)
        except NotFoundError:
            return None
        except UsageError as error:
            self.unread[str(path)] = broken(error)
            return None

    def imported(self, module: Module, dotted: str, level: int) -> Module | None:
        """The local file that an import leads to; None if there is none."""
        if module.inside is not None:
            return None
        key = (module.path.parent, module.root, dotted, level)
        if key not in self._imported:
            self._imported[key] = self._found(module, [part for part in dotted.split(".") if part], level)
        return self._imported[key]

    def _found(self, module: Module, parts: list[str], level: int) -> Module | None:
        if level:
            folder = module.path.parent
            for _ in range(level - 1):
                folder = above(folder)
            return self._below(folder, parts, module.root)
        if not parts or parts[0] in _KNOWN or parts[0] in sys.stdlib_module_names:
            return None
        for folder in _folders(module):
            names = self._names_in(folder)
            if any(one.startswith(f"{parts[0]}-") and one.endswith(".dist-info") for one in names):
                return None
            if parts[0] not in names and f"{parts[0]}.py" not in names:
                continue
            if (found := self._below(folder, parts, module.root)) is not None:
                return found
        return None

    def _names_in(self, folder: Path) -> frozenset[str]:
        """The names of what is in a folder, read once."""
        if folder not in self._folders:
            try:
                self._folders[folder] = frozenset(os.listdir(folder))
            except OSError:
                self._folders[folder] = frozenset()
        return self._folders[folder]

    def _below(self, folder: Path, parts: list[str], root: Path) -> Module | None:
        path = folder.joinpath(*parts)
        for one in (path.with_name(f"{path.name}.py"), path / "__init__.py") if parts else (path / "__init__.py",):
            if one.is_file():
                return self.quietly(one, root)
        return None

    def all(self) -> list[Module]:
        """Everything that was read, in the order of paths."""
        return [one for _, one in sorted(self._read.items()) if one is not None]


def _folders(module: Module) -> Iterator[Path]:
    folder = module.path.parent
    for _ in range(FOLDERS_MAX):
        yield folder
        if folder == module.root:
            return
        folder = above(folder)


def above(folder: Path) -> Path:
    """The folder that a folder is in, even if it is called `.` or `..`."""
    return folder.parent if folder.name not in {"", ".."} else folder / ".."


def parsed(path: Path, root: Path) -> Module:
    """Read and parse a file; errors as for `Modules.read`."""
    raw = _bytes(path)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = raw.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        line = raw.count(b"\n", 0, error.start) + 1 if isinstance(error, UnicodeDecodeError) else 1
        raise UsageError(
            f"{path}:{line} is not text in the encoding that it names.", todo="Save it as UTF-8, or exclude it."
        ) from None
    return module_of(path, root, text.replace("\r\n", "\n").replace("\r", "\n"))


def module_of(path: Path, root: Path, text: str, inside: Inside | None = None) -> Module:
    """Parse a text as a module; errors as for `Modules.read`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # linters report what Python warns of in the user's code
            tree = ast.parse(text, filename=str(path))
        return Module(path, root, text, tree, inside)
    except SyntaxError as error:
        where = f"{path}:{error.lineno or 1}"
        if inside is not None:
            line = inside.source.start_line if inside.lines is None else (error.lineno or 1) + inside.lines
            where = f"{inside.source.file}:{line}"
        raise UsageError(
            f"{where} is not Python {sys.version_info.major}.{sys.version_info.minor}: {error.msg}.",
            meaning="Nothing in this file was checked.",
            todo="Correct the line, or run onefold with a Python version that has this syntax.",
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:
        what = "it contains null characters" if isinstance(error, ValueError) else "it is nested too deeply"
        raise UsageError(f"{path} is not Python: {what}.", todo="Correct it, or exclude it.") from None


def _bytes(path: Path) -> bytes:
    if not path.is_file():
        raise NotFoundError(f"There is no file {path}.", todo="Name a Python file, a template or a directory.")
    return contents(path, FILE_BYTES_MAX, todo="Exclude it, or name other files.")


class _Binder(ast.NodeVisitor):
    """Collects the bindings of all names in all scopes."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._scope = ModuleScope(module.tree, None, module)

    def module(self) -> ModuleScope:
        top = self._scope
        self._module.scopes[self._module.tree] = top
        self.generic_visit(self._module.tree)
        return top

    def _inside(
        self, node: ScopeNode, children: Iterator[ast.AST] | list[ast.AST], arguments: ast.arguments | None
    ) -> None:
        outer = self._scope
        self._scope = self._module.scopes[node] = ModuleScope(node, outer, self._module)
        if arguments is not None:
            listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            for one in listed:
                self._scope.bind(one.arg, Binding("parameter", one))
            for other in (arguments.vararg, arguments.kwarg):
                if other is not None:
                    self._scope.bind(other.arg, Binding("other", other))
        for child in children:
            self.visit(child)
        self._scope = outer

    def _function(self, node: FunctionNode) -> None:
        self._scope.bind(node.name, Binding("function", node))
        for outside in (*node.decorator_list, node.args, *([node.returns] if node.returns else [])):
            self.visit(outside)
        self._inside(node, list(node.body), node.args)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.args)
        self._inside(node, [node.body], node.args)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scope.bind(node.name, Binding("class", node))
        for outside in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(outside)
        self._inside(node, list(node.body), None)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        self._inside(node, ast.iter_child_nodes(node), None)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension  # noqa: N815 - as ast calls them

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._target(node.target, "item", node.iter)
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for one in node.names:
            dotted = one.name if one.asname else one.name.partition(".")[0]
            self._scope.bind(one.asname or dotted, Binding("import", node, dotted))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for one in node.names:
            if one.name == "*":
                self._module.star_imports.append(Binding("import", node, node.module or "", node.level))
            else:
                dotted = f"{node.module or ''}.{one.name}".lstrip(".")
                self._scope.bind(one.asname or one.name, Binding("import", node, dotted, node.level))

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._target(target, "value", node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._target(node.target, "value", node.value)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._target(node.target, "other", node.value)
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._target(node.target, "value", node.value)
        self.generic_visit(node)

    def _loop(self, node: ast.For | ast.AsyncFor) -> None:
        self._target(node.target, "item", node.iter)
        self.generic_visit(node)

    visit_For = visit_AsyncFor = _loop  # noqa: N815 - as ast calls them

    def visit_withitem(self, node: ast.withitem) -> None:
        if node.optional_vars is not None:
            self._target(node.optional_vars, "other", node.context_expr)
        self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name is not None:
            self._scope.bind(node.name, Binding("other", node))
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> None:
        self._scope.outside.update(node.names)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self._scope.outside.update(node.names)
        scope = self._scope.parent
        while scope is not None:
            for name in node.names:
                if name in scope.bindings:
                    scope.bind(name, Binding("other", node))
            scope = scope.parent

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        if node.name is not None:
            self._scope.bind(node.name, Binding("other", node))
        self.generic_visit(node)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        if node.name is not None:
            self._scope.bind(node.name, Binding("other", node))

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._scope.bind(target.id, Binding("other", node))
        self.generic_visit(node)

    def _target(self, target: ast.expr, how: str, value: ast.expr, path: tuple[int, ...] = ()) -> None:
        if isinstance(target, ast.Name):
            scope = self._scope
            while how == "value" and isinstance(scope.node, COMPREHENSION) and scope.parent is not None:
                scope = scope.parent  # a walrus in a comprehension binds outside of it
            if target.id in scope.outside:
                scope = self._module.scopes[
                    self._module.tree
                ]  # global; for nonlocal names there is a binding `other` as well
            scope.bind(target.id, Binding(how, value, path=path))
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
            owner = next((one for one in self._module.above(target) if isinstance(one, ast.ClassDef)), None)
            if owner is not None and how == "value":
                self._module.of_self.setdefault(owner, {}).setdefault(target.attr, []).append(value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            starred = any(isinstance(one, ast.Starred) for one in target.elts)
            for number, one in enumerate(target.elts):
                inner = one.value if isinstance(one, ast.Starred) else one
                self._target(inner, "other" if starred else how, value, (*path, number))
