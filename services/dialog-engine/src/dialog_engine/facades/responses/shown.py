"""How calls, and the requests for their approval, are sent as items of one response. Nothing is sent twice. Pure."""

from typing import Any

from dialog_engine.facades.responses.calls import Call
from dialog_engine.facades.responses.sent import Sent


def show(sent: Sent, call: Call) -> None:
    """Send what is new of a call, whoever runs it."""
    if call.by_client:
        _show_function(sent, call)
    elif call.asked:
        _show_request(sent, call)
    elif call.started:
        _show_mcp_call(sent, call)


def _show_function(sent: Sent, call: Call) -> None:
    """A call that the client runs, as long as it waits for that."""
    if call.place >= 0 or call.ended or not sent.begun:
        return
    call.is_done = True
    arguments = call.item["arguments"]
    call.place = sent.added(call.item | {"arguments": "", "status": "in_progress"})
    at: dict[str, Any] = {"item_id": call.item["id"], "output_index": call.place}
    sent.event("response.function_call_arguments.delta", delta=arguments, **at)
    sent.event("response.function_call_arguments.done", arguments=arguments, name=call.item["name"], **at)
    sent.done(call.place, dict(call.item))


def _show_request(sent: Sent, call: Call) -> None:
    if not call.asked or call.shown_request == call.asked["id"] or not sent.begun:
        return
    call.shown_request = request_id = call.asked["id"]
    if request_id in call.requests:
        sent.put_back(call.requests[request_id], call.asked)
    else:
        call.requests[request_id] = sent.added(call.asked)
        sent.done(call.requests[request_id], call.asked)


def _show_mcp_call(sent: Sent, call: Call) -> None:
    if call.declined or call.earlier or not sent.begun or (call.place >= 0 and not call.ended):
        return
    at = {"item_id": call.item["id"]}
    if call.place < 0:
        beginning = {"arguments": "", "output": None, "error": None, "status": "in_progress"}
        call.place = sent.added(call.item | beginning, call.item)
        sent.event("response.mcp_call.in_progress", output_index=call.place, **at)
        sent.event("response.mcp_call_arguments.done", output_index=call.place, arguments=call.item["arguments"], **at)
    if call.ended and not call.is_done:
        call.is_done = True
        sent.event(f"response.mcp_call.{call.item['status']}", output_index=call.place, **at)
        sent.done(call.place, dict(call.item))
