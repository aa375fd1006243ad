"""The package `openai`, with Responses: the conversation is known by the id of its last response."""

import json
from typing import Any

from openai import OpenAI

from tests.e2e.clients.driver import answers, asked, elsewhere, run, said, tools

left: dict[str, Any] = {}
"""The response that the client has left: its id, the number of its last event, and its text so far."""


def ask(question: str, url: str, cut: bool) -> dict[str, Any]:
    return rest(url) if left and asked["again"] is not None else answer(url, question, cut)


def client_at(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key=asked["key"], default_headers=asked["headers"])


def rest(url: str) -> dict[str, Any]:
    """The answer that was left, with what follows on its last event."""
    text: str = left["text"]
    found = client_at(url).responses.retrieve(left["id"], stream=True, starting_after=left["number"])
    for event in found:
        if event.type == "response.output_text.delta":
            text += event.delta
        if event.type == "response.completed":
            return {"text": text}
    raise RuntimeError("the stream has no end")


def answer(url: str, said_now: Any, cut: bool) -> dict[str, Any]:
    client = client_at(url)
    wanted: dict[str, Any] = {"model": asked["model"], "input": said_now}
    if said:
        wanted["previous_response_id"] = said[-1]
    if own := tools():
        wanted["tools"] = [{"type": "function", **each["function"]} for each in own]
    text = ""
    with client.responses.create(stream=True, **wanted) as stream:
        for event in stream:
            if event.type == "response.created":
                said.append(event.response.id)
            if event.type == "response.output_text.delta":
                text += event.delta
            if cut and text:
                left.update(id=said[-1], number=event.sequence_number, text=text)
                return {"text": text}
            if event.type == "response.completed":
                given = [each for item in event.response.output if (each := answer_to(item.to_dict()))]
                if given:
                    return answer(elsewhere, given, False)
                spent = event.response.usage
                return {"text": event.response.output_text, "tokens": spent.output_tokens if spent else 0}
    raise RuntimeError("the stream has no end")


def answer_to(item: dict[str, Any]) -> dict[str, Any] | None:
    """What the user says to a request for approval, or the tool of the client to its call."""
    match item["type"]:
        case "mcp_approval_request":
            kind = "mcp_approval_response"
            return {"type": kind, "approval_request_id": item["id"], "approve": asked["approves"]}
        case "function_call":
            output = run(json.loads(item["arguments"]))
            return {"type": "function_call_output", "call_id": item["call_id"], "output": output}
        case _:
            return None


answers(ask)
