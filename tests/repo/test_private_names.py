"""The private names of other libraries that the services use. A release of a library may change them without notice."""

import ast
import importlib
import inspect
import pkgutil
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from types import ModuleType

import pytest

from tests.support.processes import ROOT

OURS = ("dialog_engine", "callstream_runtime", "plugins_contract", "plugins_mcp")
DATABASE = "aiosqlite.core.Connection"
PROTOCOL = "uvicorn.protocols.http.httptools_impl.HttpToolsProtocol"
RESPONSE = "sse_starlette.sse.EventSourceResponse"
PRIVATE = {
    f"{DATABASE}._conn": "units of work are given the connection of sqlite3 itself",
    f"{DATABASE}._execute": "a unit runs in the connection's thread as a whole, not statement by statement",
    f"{DATABASE}._thread": "a store that is closed has to have left its file",
    f"{DATABASE}._tx": "a batch is begun without a future of its own",
    f"{RESPONSE}._listen_for_exit_signal_with_grace": "the one task of a stream that may end it",
    f"{RESPONSE}._send_with_timeout": "one check each second for all streams costs a tenth less for each token",
    f"{PROTOCOL}._unset_keepalive_if_required": "connections that are idle have a limit of ours",
    f"{PROTOCOL}._unsupported_upgrade_warning": "a stranger could write a line into the log with each request",
}
"""Each with its reason. They are those that our classes use of the classes that they inherit from."""


def modules() -> Iterator[ModuleType]:
    for name in OURS:
        for found in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
            if not found.name.endswith("__main__"):
                yield importlib.import_module(found.name)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@cache
def classes_in(module: str) -> dict[str, ast.ClassDef]:
    """The syntax of the classes of a module; nothing where there is no source code."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):
        return {}
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def nodes_of(cls: type) -> list[ast.AST]:
    found = classes_in(cls.__module__).get(cls.__name__)
    return [*ast.walk(found)] if found else []


@cache
def used_in(cls: type) -> set[str]:
    nodes = nodes_of(cls)
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    methods = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    return set(filter(is_private, attributes | methods))


@cache
def defined_in(cls: type) -> set[str]:
    stored = [node for node in nodes_of(cls) if isinstance(node, ast.Attribute)]
    return {*vars(cls), *(node.attr for node in stored if isinstance(node.ctx, ast.Store))}


def is_of_a_library(cls: type) -> bool:
    top = cls.__module__.partition(".")[0]
    return top not in (*OURS, *sys.stdlib_module_names, "pydantic", "pydantic_settings")


def test_the_private_names_of_libraries_are_these_and_are_still_there() -> None:
    found = {
        f"{base.__module__}.{base.__qualname__}.{name}"
        for module in modules()
        for cls in vars(module).values()
        if inspect.isclass(cls) and cls.__module__ == module.__name__
        for base in filter(is_of_a_library, cls.__mro__)
        if used_in(cls)
        for name in used_in(cls) & defined_in(base)
    }
    assert found == PRIVATE.keys()


@pytest.mark.parametrize("service", ["callstream-runtime", "dialog-engine", "plugins-mcp"])
def test_a_library_whose_private_names_are_used_has_an_upper_bound(service: str) -> None:
    project = tomllib.loads((ROOT / "services" / service / "pyproject.toml").read_text())["project"]
    libraries = {name.partition(".")[0].replace("_", "-") for name in PRIVATE}
    dependencies: list[str] = project["dependencies"]
    unbounded = [each for each in dependencies if re.split("[^a-z-]", each)[0] in libraries and "<" not in each]
    assert unbounded == []
