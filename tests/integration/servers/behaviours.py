"""How the tools of a scripted server answer, well and badly, and what each answer says about the call."""

from plugins_contract.errors import ErrorCode
from plugins_mcp.mcp import Ambiguous, CallResult, Rejected, RetryLater
from plugins_mcp.mcp.content import MAX_ANSWER_BYTES
from tests.integration.servers.scripted import Behaviour, Request


def status(code: int, body: bytes = b"", kind: str = "text/plain", **headers: str) -> Behaviour:
    async def behave(request: Request) -> None:
        await request.respond(code, body, kind, **headers)

    return behave


def error(code: int, message: str, http: int = 200) -> Behaviour:
    async def behave(request: Request) -> None:
        await request.error(code, message, http)

    return behave


async def cut_before_the_head(request: Request) -> None:
    await request.hang_up()


async def cut_within_json(request: Request) -> None:
    await request.raw(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n{"jsonrpc"')
    await request.hang_up()


async def cut_within_events(request: Request) -> None:
    await request.event_stream()
    await request.event(
        b'{"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}}'
    )
    await request.hang_up()


async def end_events_without_an_answer(request: Request) -> None:
    await request.event_stream()
    await request.raw(b"0\r\n\r\n")


async def answer_in_events_with_nonsense(request: Request) -> None:
    await request.event_stream()
    await request.event(b"nonsense")
    await request.raw(b"0\r\n\r\n")


async def answer_too_large(request: Request) -> None:
    await request.text("x" * MAX_ANSWER_BYTES)


async def answer_too_large_in_events(request: Request) -> None:
    await request.event_stream()
    content = [{"type": "text", "text": "x" * MAX_ANSWER_BYTES}]
    await request.event(request.envelope(result={"content": content, "resultType": "complete"}))
    await request.raw(b"0\r\n\r\n")


async def answer(request: Request) -> None:
    await request.text("fine")


async def never(request: Request) -> None:
    await request.gone.wait()


# What the errors and the nonsense of any transport mean is in tests/contract/test_every_mcp_transport.py.
FATES: list[tuple[str, Behaviour, CallResult | type[CallResult]]] = [
    ("401", status(401), Rejected(ErrorCode.PERMISSION_DENIED, "HTTP 401")),
    ("403", error(-32000, "no scope", 403), Rejected(ErrorCode.PERMISSION_DENIED, "HTTP 403: no scope")),
    ("429", status(429, retry_after="7"), RetryLater("HTTP 429", 7.0)),
    ("503", status(503), RetryLater("HTTP 503", None)),
    ("404", status(405), Rejected),
    ("413", status(413), Rejected),
    ("500", status(500, b"oops"), Ambiguous("HTTP 500")),
    ("502", status(502), Ambiguous("HTTP 502")),
    ("500 with an error", error(-32603, "broken", 500), Rejected(ErrorCode.TOOL_EXECUTION_FAILED, "broken")),
    ("202", status(202, kind=""), Ambiguous),
    ("a web page", status(200, b"<html>", "text/html"), Ambiguous),
    ("a redirect elsewhere", status(307, location="http://example.com/"), Rejected),
    ("cut before the head", cut_before_the_head, Ambiguous),
    ("cut within JSON", cut_within_json, Ambiguous),
    ("cut within events", cut_within_events, Ambiguous),
    ("no answer in events", end_events_without_an_answer, Ambiguous),
    ("nonsense in events", answer_in_events_with_nonsense, Ambiguous),
    ("nonsense as JSON", status(200, b"nonsense", "application/json"), Ambiguous),
    ("too large", answer_too_large, Ambiguous),
    ("too large in events", answer_too_large_in_events, Ambiguous),
    ("no such method", error(-32601, "what?"), Rejected(ErrorCode.TOOL_NOT_FOUND, "what?")),
    # Codes that the SDK uses for its own troubles mean nothing when a healthy server sends them.
    ("-32000", error(-32000, "tired"), Rejected(ErrorCode.TOOL_EXECUTION_FAILED, "tired")),
    ("-32600", error(-32600, "odd"), Rejected(ErrorCode.TOOL_EXECUTION_FAILED, "odd")),
    ("-32099", error(-32099, "forged"), Rejected(ErrorCode.TOOL_EXECUTION_FAILED, "forged")),
]
