"""The blocking twin of the SDK, made from the async one: `poe sync-client` writes `runlane/client/sync.py`."""

import ast
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import runlane.client

PACKAGE = Path(runlane.client.__file__).parent
TARGET = PACKAGE / "sync.py"
ROOT = Path(__file__).parents[2]

HEAD = '''"""The SDK for code without asyncio: the same names, the same promises, and calls that wait.

    from runlane.client.sync import HttpTransport, RunReader

    with HttpTransport(url, token) as transport, RunReader(transport, "run_1") as reader:
        for item in reader:
            print(item)

Agents, effects and `reconcile` are plain functions here; each runs in a thread of its own. Made from the async classes
by `poe sync-client`, and not to be edited.
"""
'''


@dataclass(frozen=True)
class Twin:
    """Which class, and which of its public methods are for callers of the twin."""

    module: str
    name: str
    methods: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    """Public, but for the SDK's own parts."""


TWINS = (
    Twin("transports.http", "HttpTransport", ("aclose", "get_json", "put_content", "get_content"),
         ("start_run", "take_lease", "confirm_lease", "release_lease", "append", "publish_previews", "claim", "submit",
          "find_command", "watch", "re_execute")),
    Twin("reader", "RunReader",
         ("cursor", "pending_cursor", "sequence", "connect", "outcome", "mark_applied", "aclose")),
    Twin("commands", "RunActions",
         ("resolve_approval", "revoke_approval", "cancel", "pause", "resume", "retry_tool", "reconcile_tool", "send",
          "provide_input", "send_intent", "recover", "cancel_run", "reconcile", "settled")),
    Twin("client", "Client",
         ("runs", "state", "connection", "input", "pending", "forget", "follow", "start_run", "actions", "recover",
          "flush"),
         ("hold", "release")),
    Twin("items", "MessageInProgress", ("content", "preview", "complete")),
    Twin("items", "ReasoningInProgress", ("preview", "complete")),
    Twin("items", "ToolInProgress",
         ("result", "preview", "complete", "finish", "failed", "outcome_unknown"), ("failed_by",)),
    Twin("writer", "RunWriter",
         ("start", "attach", "lease_ok", "lease_lost", "is_over", "append", "publish_preview", "dropped_previews",
          "message", "reasoning", "tool", "requested_tool", "complete", "fail", "cancelled", "keeps_content",
          "put_content",
          "get_content"),
         ("abandon", "masked")),
    Twin("context", "RunContext",
         ("state", "attempt", "cancelled", "lease_ok", "boundary", "messages", "retries", "approval", "ask", "call",
          "call_again", "put_content", "get_content", "checkpoint", "checkpointed",
          "append", "publish_preview", "message", "reasoning", "tool",
          "requested_tool"),
         ("waiting_for", "check", "until", "require_finished", "append_at_head")),
    Twin("worker", "Worker", ("stop", "run")),
)  # fmt: skip
_NAMES = {twin.name for twin in TWINS}
_TRANSPORTS = {"WriterTransport", "ReaderTransport", "WorkTransport", "CommandTransport", "ClientTransport"}
_CALLBACKS = {"Agent": "RunContext", "Effect": "ToolInProgress", "Reconcile": "RunContext"}
"""Functions of the caller, and what their first argument is."""
_OWN = {*_NAMES, *_CALLBACKS, "Any", "Callable", "Iterator", "Self"}
_SKIPPED = {"desk", "factory", "unsettled", "state", "latest", "on_change"}
"""Fields of a dataclass that callers of the twin have no use for."""


def sync_client() -> str:
    """The text of `sync.py`."""
    imports = _Imports()
    classes = [_Class(twin, imports).text() for twin in TWINS]
    text = HEAD + imports.text() + CALLBACKS + "".join(classes) + _exports()
    for verb in (["check", "--fix", "--quiet", "--select", "I,F401"], ["format"]):
        text = subprocess.run(
            [Path(sys.executable).with_name("ruff"), *verb, "--stdin-filename", TARGET, "-"],
            input=text, capture_output=True, text=True, check=True, cwd=ROOT,
        ).stdout  # fmt: skip
    return text


CALLBACKS = '''

Agent = Callable[["RunContext"], Any]
"""Does the work of one run. What it returns is the run's output."""

Effect = Callable[["ToolInProgress"], Any]
"""Does it. Is given the call: its `arguments`, its `operation_id`, and `preview` to show how far it is."""

Reconcile = Callable[["RunContext", UnknownCall], Executed | NotExecuted | None]
"""Finds out what became of a call. None: it cannot be told from here, a person has to say."""
'''


def _exports() -> str:
    names = sorted({*_NAMES, *_CALLBACKS})
    return "\n\n__all__ = [\n" + "".join(f'    "{name}",\n' for name in names) + "]\n"


class _Imports:
    """Names that annotations and defaults use, and where they come from."""

    def __init__(self) -> None:
        self._found: dict[str, set[str]] = {"runlane.client.effects": {"Executed", "NotExecuted", "UnknownCall"}}
        self._modules: set[str] = set()

    def use(self, node: ast.AST, module: "_Module") -> None:
        """Every name of an expression."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str) and inner.value.isidentifier():
                self._use_name(inner.value, module)
            elif isinstance(inner, ast.Name):
                self._use_name(inner.id, module)

    def _use_name(self, name: str, module: "_Module") -> None:
        if name in _OWN or name in _TRANSPORTS or name in module.builtins:
            return
        home = module.homes.get(name)
        if home == "":
            self._modules.add(name)
        elif home is not None:
            self._found.setdefault(home, set()).add(name)

    def text(self) -> str:
        """As statements."""
        lines = ["\nfrom collections.abc import Callable, Iterator", "from typing import Any, Self\n"]
        lines += [f"import {name}" for name in sorted(self._modules - {"asyncio"})]
        for twin in sorted({one.module for one in TWINS}):
            package, _, name = f"runlane.client.{twin}".rpartition(".")
            lines.append(f"from {package} import {name} as _{name}")
        for home, names in sorted(self._found.items()):
            lines.append(f"from {home} import {', '.join(sorted(names))}")
        lines.append(
            "from runlane.client.blocking import Blocking, BlockingContext, BlockingIterator, each, in_thread, "
            "on_loop, plain, wait_for"
        )
        return "\n".join(lines) + "\n"


@dataclass
class _Module:
    """A source file, and where each name in it comes from."""

    name: str
    tree: ast.Module
    homes: dict[str, str] = field(default_factory=dict)
    builtins: frozenset[str] = frozenset(dir(__builtins__) if not isinstance(__builtins__, dict) else __builtins__)

    @classmethod
    def read(cls, name: str) -> "_Module":
        tree = ast.parse((PACKAGE / f"{name.replace('.', '/')}.py").read_text())
        module = cls(name, tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                module.homes |= dict.fromkeys((alias.name for alias in node.names), "")
            elif isinstance(node, ast.ImportFrom) and node.module:
                module.homes |= {alias.asname or alias.name: node.module for alias in node.names}
        for node in tree.body:
            module.homes |= dict.fromkeys(_defined(node), f"runlane.client.{name}")
        return module


def _defined(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=[ast.Name(id=name)]):
            yield name
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


Method = ast.FunctionDef | ast.AsyncFunctionDef


class _Class:
    """One twin as text."""

    def __init__(self, twin: Twin, imports: _Imports) -> None:
        self._twin = twin
        self._imports = imports
        self._module = _Module.read(twin.module)
        self._source = f"_{twin.module.rpartition('.')[2]}.{twin.name}"
        self._node = _class(self._module, twin.name)
        self._methods = {one.name: one for one in _methods(self._module, self._node)}

    def text(self) -> str:
        return f"\n\nclass {self._twin.name}({self._base()}):\n" + textwrap.indent(self._body(), "    ")

    def _base(self) -> str:
        if "__anext__" in self._methods:
            item = self._methods["__anext__"].returns
            assert item is not None
            self._imports.use(item, self._module)
            return f"BlockingIterator[{self._source}, {ast.unparse(item)}]"
        return f"Blocking{'Context' if '__aenter__' in self._methods else ''}[{self._source}]"

    def _body(self) -> str:
        parts = [f'"""{ast.get_docstring(self._node, clean=True)}\n"""'] if ast.get_docstring(self._node) else []
        if not any(one.name.endswith("InProgress") or one.name == "RunContext" for one in [self._node]):
            parts.append(self._constructor())
        self._check_named()
        parts += [self._method(self._methods[name]) for name in self._twin.methods]
        return "\n\n".join(parts) + "\n"

    def _check_named(self) -> None:
        public = {name for name in self._methods if not name.startswith("_")}
        named = {*self._twin.methods, *self._twin.left_out}
        if public != named:
            raise SystemExit(f"{self._twin.name}: say of {sorted(public ^ named)} whether the twin has them")

    # -- constructors ---------------------------------------------------------------------------------------

    def _constructor(self) -> str:
        init = self._methods.get("__init__") or _of_fields(self._node)
        head, passed = self._parameters(init)
        return f"def __init__({head}) -> None:\n    self.of = on_loop(lambda: {self._source}({passed}))"

    # -- methods --------------------------------------------------------------------------------------------

    def _method(self, node: Method) -> str:
        decorators = {ast.unparse(one) for one in node.decorator_list}
        returns = self._returns(node)
        text = ast.get_docstring(node, clean=True) or ""
        doc = f'"""{text}"""' if "\n" not in text else f'"""{text}\n"""'
        head, passed = self._parameters(node)
        if "property" in decorators:
            body = f"return {self._wrapped(node, f'self.of.{node.name}')}"
            return f"@property\ndef {node.name}(self) -> {returns}:\n{textwrap.indent(doc, '    ')}\n    {body}"
        if "classmethod" in decorators:
            call = f"{self._source}.{node.name}({passed})"
            made = f"wait_for({call})" if isinstance(node, ast.AsyncFunctionDef) else f"on_loop(lambda: {call})"
            head = head.replace("self", "cls", 1)
            return (
                f"@classmethod\ndef {node.name}({head}) -> Self:\n{textwrap.indent(doc, '    ')}\n"
                f"    return cls.around({made})"
            )
        call = f"self.of.{node.name}({passed})"
        if returns.startswith("Iterator["):
            body = f"return each({call})"
        elif isinstance(node, ast.AsyncFunctionDef):
            body = f"return {self._wrapped(node, f'wait_for({call})')}"
        else:
            body = f"return {self._wrapped(node, f'on_loop(lambda: {call})')}"
        return f"def {node.name}({head}) -> {returns}:\n{textwrap.indent(doc, '    ')}\n    {body}"

    def _returns(self, node: Method) -> str:
        assert node.returns is not None, f"{self._twin.name}.{node.name} does not say what it returns"
        self._imports.use(node.returns, self._module)
        text = ast.unparse(node.returns)
        if text == "asyncio.Event":
            return "bool"
        if text.startswith("AsyncGenerator["):
            return f"Iterator[{text.removeprefix('AsyncGenerator[').rpartition(',')[0]}]"
        return text

    def _wrapped(self, node: Method, call: str) -> str:
        returns = ast.unparse(node.returns) if node.returns else ""
        if returns in _NAMES:
            return f"{returns}.around({call})"
        return f"{call}.is_set()" if returns == "asyncio.Event" else call

    def _parameters(self, node: Method) -> tuple[str, str]:
        """As they stand in the head, and as they are passed on."""
        arguments = node.args
        passed = [self._passed(one) for one in [*arguments.posonlyargs, *arguments.args][1:]]
        if arguments.vararg:
            passed.append(f"*{arguments.vararg.arg}")
        passed += [f"{one.arg}={self._passed(one)}" for one in arguments.kwonlyargs]
        if arguments.kwarg:
            passed.append(f"**{arguments.kwarg.arg}")
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        for one in [*every, *filter(None, [arguments.vararg, arguments.kwarg])]:
            if one.annotation is not None:
                self._imports.use(one.annotation, self._module)
                one.annotation = _OwnTypes().visit(one.annotation)
        for default in [*arguments.defaults, *filter(None, arguments.kw_defaults)]:
            self._imports.use(default, self._module)
        arguments.args[0].arg = "self"
        return ast.unparse(arguments), ", ".join(passed)

    def _passed(self, one: ast.arg) -> str:
        if one.annotation is None:
            return one.arg
        kind = {inner.id for inner in ast.walk(one.annotation) if isinstance(inner, ast.Name)}
        for callback in kind & _CALLBACKS.keys():
            made = f"in_thread({one.arg}, {_CALLBACKS[callback]})"
            return made if callback != "Reconcile" else f"None if {one.arg} is None else {made}"
        return f"plain({one.arg})" if kind & (_TRANSPORTS | _NAMES) else one.arg


class _OwnTypes(ast.NodeTransformer):
    """Where the async side names a transport's role, the twin has its one transport."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name("HttpTransport") if node.id in _TRANSPORTS else node


def _class(module: _Module, name: str) -> ast.ClassDef:
    return next(node for node in module.tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def _methods(module: _Module, node: ast.ClassDef) -> Iterator[Method]:
    """Its methods, after those of its bases in the same file."""
    for base in node.bases:
        if isinstance(base, ast.Name) and module.homes.get(base.id, "").endswith(f".{module.name}"):
            yield from _methods(module, _class(module, base.id))
    for one in node.body:
        if isinstance(one, Method) and not any("abstract" in ast.unparse(how) for how in one.decorator_list):
            yield one


def _of_fields(node: ast.ClassDef) -> ast.FunctionDef:
    """What `dataclass` makes of the fields."""
    fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and one.target.id not in _SKIPPED]  # type: ignore[union-attr]
    arguments = ast.arguments(
        posonlyargs=[], args=[ast.arg("self"), *(ast.arg(one.target.id, one.annotation) for one in fields)],  # type: ignore[union-attr]
        kwonlyargs=[], kw_defaults=[], defaults=[one.value for one in fields if one.value is not None],
    )  # fmt: skip
    return ast.FunctionDef("__init__", arguments, [ast.Pass()], [], returns=ast.Constant(None))


if __name__ == "__main__":
    TARGET.write_text(sync_client())
    sys.exit(0)
