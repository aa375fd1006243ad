"""What catches every error: each place is known, and none hides a mistake of the program."""

import ast
from collections.abc import Iterator
from functools import cache

from tests.support.processes import ROOT

TOPS = {
    "callstream_runtime/loops.py keep": "any loop",
    "dialog_engine/calls/executor.py _asked": "a question about a call",
    "dialog_engine/chat/running_turn.py _committed_end": "the loop that commits an end which its user has seen",
    "dialog_engine/chat/running_turn.py _reply": "a reply that is being cancelled; other errors are raised again",
    "dialog_engine/chat/running_turn.py run": "a turn",
    "dialog_engine/http/sse.py __call__": "a stream of events",
    "dialog_engine/storage/sqlite.py _commit_in": "a unit of work: its caller is given the error",
    "dialog_engine/tool_calls/local_tools.py _outcome": "a call of a local tool",
    "plugins_mcp/consumer.py process": "an entry of the request stream",
    "plugins_mcp/leases.py _renew_all": "the thread of the leases",
    "plugins_mcp/mcp/server.py _keep_connected": "the connection to an MCP server",
    "plugins_mcp/mcp/session.py call": "a call of an MCP server",
}
"""Of which loop or request each place is the top."""
GIVES_IT_ON = "dialog_engine/storage/sqlite.py _commit_in"


def caught(node: ast.AST, function: str = "") -> Iterator[tuple[str, ast.ExceptHandler]]:
    """Each handler of every error in a tree, with the function that it is in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from caught(child, child.name)
        else:
            if isinstance(child, ast.ExceptHandler) and catches_all(child.type):
                yield function, child
            yield from caught(child, function)


def catches_all(kind: ast.expr | None) -> bool:
    names = {node.id for node in ast.walk(kind) if isinstance(node, ast.Name)} if kind else {"BaseException"}
    return bool(names & {"Exception", "BaseException"})


def raises_it_again(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    returns = any(isinstance(node, ast.Return) for node in ast.walk(handler))
    return isinstance(last, ast.Raise) and last.exc is None and not returns


@cache
def handlers() -> list[tuple[str, ast.ExceptHandler]]:
    return [
        (f"{path.relative_to(ROOT).as_posix().partition('/src/')[2]} {function}", handler)
        for path in sorted(ROOT.glob("services/*/src/**/*.py"))
        for function, handler in caught(ast.parse(path.read_text()))
        if not raises_it_again(handler)
    ]


def test_only_the_top_of_a_loop_or_request_catches_every_error() -> None:
    assert sorted(place for place, _ in handlers()) == sorted(TOPS)
    assert len(TOPS) <= 12


def test_whoever_catches_every_error_logs_its_traceback() -> None:
    silent = [
        place
        for place, handler in handlers()
        if "log.exception(" not in ast.unparse(handler) and "exc_info=True" not in ast.unparse(handler)
    ]
    assert silent == [GIVES_IT_ON]
