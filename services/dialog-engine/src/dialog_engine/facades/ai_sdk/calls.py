"""The tool calls of a turn, for the encoder of the Vercel AI SDK.

The correlation id of a call is its `toolCallId`, because providers reuse their ids. The id of an approval also has the
hash of what was asked, so that an answer to an earlier question is noticed.
"""

from collections.abc import Iterator
from typing import Any

from dialog_engine.facades.ai_sdk.types import ApprovalResponse, Chunk, ToolError, ToolInput, ToolOutput

_GIVEN = ("succeeded", "failed")
"""The ends of a call that its client has answered."""
_OPEN = ("pending", "queued", "running")
_PROGRESS = ("progress", "total", "message")


def approval_id(correlation_id: str, question_hash: str) -> str:
    """The id of the approval of a call, for what was asked."""
    return f"{correlation_id}:{question_hash}"


def asked_for(given: str) -> tuple[str, str]:
    """The call and the hash of the id of an approval; without a hash, '' for that."""
    correlation_id, _, question_hash = given.partition(":")
    return correlation_id, question_hash


class Calls:
    """What was shown of each call."""

    def __init__(self, *, answers: bool) -> None:
        """`answers`: the version has a chunk for what people have said."""
        self._answers = answers
        self._shown: set[str] = set()
        self._ended: set[str] = set()
        self._asked: dict[str, str] = {}
        """The id of the last request for approval, by call."""
        self._refused: set[str] = set()
        self._of_client: set[str] = set()
        """The calls that the page runs."""

    def step(self, step: dict[str, Any]) -> Iterator[Chunk]:
        """What follows from a step of a call, or of its approval."""
        call = step["correlationId"]
        if call in self._ended:
            return
        if call not in self._shown and "arguments" in step:
            self._shown.add(call)
            if step.get("waitsFor") == "client":
                self._of_client.add(call)
            yield _input(call, step, here=call not in self._of_client)
        if call not in self._shown:
            return
        if step["type"] == "approval":
            yield from self._approval(call, step)
        elif step["status"] == "progress":
            shown = {name: step[name] for name in _PROGRESS if name in step}
            yield {**_output(call, shown), "preliminary": True}
        elif step["status"] not in _OPEN:
            self._ended.add(call)
            yield from self._end(call, step)

    def _approval(self, call: str, step: dict[str, Any]) -> Iterator[Chunk]:
        if step["status"] == "asked":
            asked = approval_id(call, step["hash"])
            if self._asked.get(call) != asked:
                self._asked[call] = asked
                yield {"type": "tool-approval-request", "approvalId": asked, "toolCallId": call}
            return
        if step["status"] == "refused":
            self._refused.add(call)
        if (asked := self._asked.pop(call, "")) and self._answers:
            yield _response(asked, step)

    def _end(self, call: str, step: dict[str, Any]) -> Iterator[Chunk]:
        result = step.get("result")
        if call in self._of_client:
            if step["status"] not in _GIVEN:  # the page has what it has given itself
                yield {"type": "tool-output-error", "toolCallId": call, "errorText": step["error"]["message"]}
            return
        if call in self._refused:
            yield {"type": "tool-output-denied", "toolCallId": call}
        elif step["status"] == "succeeded":
            yield _output(call, result)
        else:
            yield _error(call, step["error"]["message"])
        for each in result["media"] if result else ():
            yield {"type": "file", "url": each["url"], "mediaType": each["mimeType"]}


def _input(call: str, step: dict[str, Any], *, here: bool) -> ToolInput:
    chunk: ToolInput = {
        "type": "tool-input-available",
        "toolCallId": call,
        "toolName": step["toolName"],
        "input": step["arguments"],
    }
    if here:
        chunk["dynamic"] = chunk["providerExecuted"] = True
    if title := step.get("title"):
        chunk["title"] = title
    return chunk


def _output(call: str, output: Any) -> ToolOutput:
    return {
        "type": "tool-output-available",
        "toolCallId": call,
        "output": output,
        "dynamic": True,
        "providerExecuted": True,
    }


def _error(call: str, text: str) -> ToolError:
    return {
        "type": "tool-output-error",
        "toolCallId": call,
        "errorText": text,
        "dynamic": True,
        "providerExecuted": True,
    }


def _response(asked: str, step: dict[str, Any]) -> ApprovalResponse:
    approved = step["status"] in ("approved", "edited")
    chunk: ApprovalResponse = {"type": "tool-approval-response", "approvalId": asked, "approved": approved}
    if reason := step.get("reason"):
        chunk["reason"] = reason
    return chunk
