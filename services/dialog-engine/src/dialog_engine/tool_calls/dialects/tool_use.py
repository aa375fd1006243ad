"""`<tool_use>` blocks with JSON arguments."""

from collections.abc import Sequence

from dialog_engine.model import ToolCall, ToolMessage
from dialog_engine.tool_calls.dialects.dialect import Dialect, defused, in_tags, listed
from dialog_engine.tool_calls.parsers.json_text import as_object
from dialog_engine.tool_calls.parsers.tool_use import CLOSER, ToolUseGrammar
from plugins_contract.catalog import ToolEntry

_DESCRIPTION = """\
You can use tools. To use one, end your message with a block of exactly this form:

<tool_use>
<name>name of the tool</name>
<arguments>{{"name of a parameter": "its value"}}</arguments>
</tool_use>

The arguments are one JSON object that fits the parameters_schema of the tool.
{how_many}
Write nothing after that, and never a result of your own: stop and wait. The next message has the result:

<tool_use_result>
<name>name of the tool</name>
<result>what the tool returned</result>
</tool_use_result>

Write the block as it is, not in a code fence, and do not speak of these tags. Use a tool only when it helps, and only
these tools; otherwise just answer.

{tools}"""

_ONE = "One block per message: for several calls, wait for each result first."
_SEVERAL = "For several calls that do not need each other's results, write one block right after the other."


def _describe(tools: Sequence[ToolEntry], ends_with_first: bool) -> str:
    return _DESCRIPTION.format(how_many=_ONE if ends_with_first else _SEVERAL, tools=listed(tools))


def _call(call: ToolCall) -> str:
    sound = as_object(call.arguments or "{}")
    arguments = call.arguments if sound is None else in_tags(sound)
    return f"<tool_use>\n<name>{call.name}</name>\n<arguments>{arguments}</arguments>\n</tool_use>"


def _result(result: ToolMessage) -> str:
    content = defused(result.content, "result", "tool_use_result")
    return f"<tool_use_result>\n<name>{result.name}</name>\n<result>{content}</result>\n</tool_use_result>"


def _grammar(_: Sequence[ToolEntry]) -> ToolUseGrammar:
    return ToolUseGrammar()


TOOL_USE = Dialect(
    name="tool_use",
    describe=_describe,
    no_tools="Tools cannot be used in your next message: answer in words, with what you have, and no <tool_use> block.",
    calls=lambda calls: "\n".join(map(_call, calls)),
    results=lambda results: "\n".join(map(_result, results)),
    grammar=_grammar,
    stop=CLOSER,
)
