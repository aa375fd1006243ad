"""What users and models may see of a server's results: secrets of its configuration are removed."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import msgspec
from mcp.types import CallToolResult, EmbeddedResource, ResourceLink, TextContent, TextResourceContents
from mcp.types import ContentBlock as McpBlock

from callstream_runtime.long_texts import LOOP_CHARACTERS, reading
from plugins_contract.outcomes import CallProgress
from plugins_contract.questions import InputRequired
from plugins_mcp.mcp.calls import Ambiguous, Answered, CallResult, InputAsked, NotSent, Rejected, RetryLater, TimedOut
from plugins_mcp.mcp.content import size_of
from plugins_mcp.mcp.spec import ServerSpec


def redacted_progress(progress: CallProgress, spec: ServerSpec) -> CallProgress:
    """`progress` without the credentials of the server."""
    message = progress.message and spec.redact_answer(progress.message)
    return progress if message == progress.message else msgspec.structs.replace(progress, message=message)


def redacted(result: CallResult, spec: ServerSpec) -> CallResult:
    """`result` as users and models may see it. An answer belongs to the tool: only credentials are removed from it."""
    match result:
        case NotSent(reason) | RetryLater(reason) | Ambiguous(reason):
            return replace(result, reason=spec.redact_for_users(reason[:LOOP_CHARACTERS]))
        case Rejected(_, message):
            return replace(result, message=spec.redact_for_users(message[:LOOP_CHARACTERS]))
        case Answered(answer):
            return Answered(_redacted_answer(answer, spec.redact_answer)) if spec.credentials else result
        case InputAsked(required):
            return InputAsked(_redacted_questions(required, spec.redact_answer)) if spec.credentials else result
        case TimedOut():
            return result


async def without_secrets(result: CallResult, spec: ServerSpec) -> CallResult:
    """The same outside of the event loop where the answer is long."""
    if isinstance(result, Answered) and not spec.credentials:
        return result
    return await reading(size_of(result.result) if isinstance(result, Answered) else 0, redacted, result, spec)


def _redacted_questions(required: InputRequired, redact: Callable[[str], str]) -> InputRequired:
    """The questions with `redact` applied to all that people see. The state goes back to the server as it came."""
    questions = [
        msgspec.structs.replace(
            each,
            message=redact(each.message),
            form=_redacted_value(each.form, redact),
            url=each.url and redact(each.url),
        )
        for each in required.questions
    ]
    return msgspec.structs.replace(required, questions=tuple(questions))


def _redacted_answer(result: CallToolResult, redact: Callable[[str], str]) -> CallToolResult:
    """The answer with `redact` applied to its texts, links and structured content. Media stay as they are."""
    content = [_redacted_block(block, redact) for block in result.content]
    structured = _redacted_value(result.structured_content, redact)
    return result.model_copy(update={"content": content, "structured_content": structured})


def _redacted_block(block: McpBlock, redact: Callable[[str], str]) -> McpBlock:
    match block:
        case TextContent(text=text):
            return block.model_copy(update={"text": redact(text)})
        case EmbeddedResource(resource=TextResourceContents(uri=uri, text=text) as resource):
            changed = resource.model_copy(update={"uri": redact(uri), "text": redact(text)})
            return block.model_copy(update={"resource": changed})
        case ResourceLink():
            parts = {name: getattr(block, name) for name in ("uri", "name", "title", "description")}
            return block.model_copy(update={name: redact(part) for name, part in parts.items() if part})
        case _:
            return block


def _redacted_value(value: Any, redact: Callable[[str], str]) -> Any:
    match value:
        case str():
            return redact(value)
        case list():
            return [_redacted_value(each, redact) for each in cast("list[Any]", value)]
        case dict():
            pairs = cast("dict[str, Any]", value).items()
            return {redact(key): _redacted_value(each, redact) for key, each in pairs}
        case _:
            return value
