"""`<function_calls>` blocks with one tag per parameter."""

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from dialog_engine.model import ToolCall, ToolMessage
from dialog_engine.tool_calls.dialects.dialect import Dialect, defused, in_tags, listed
from dialog_engine.tool_calls.parsers.function_calls import CLOSER, FunctionCallsGrammar
from dialog_engine.tool_calls.parsers.json_text import as_object
from dialog_engine.tool_calls.parsers.values import with_layout
from plugins_contract.catalog import ToolEntry

_DESCRIPTION = """\
You can use tools. To use one, end your message with a block of exactly this form:

<function_calls>
<invoke name="name of the tool">
<parameter name="name of a parameter">its value</parameter>
</invoke>
</function_calls>

Write text values as they are, and all others as JSON; they must fit the parameters_schema of the tool.
For several calls that do not need each other's results, write several <invoke> into the one block.
Write nothing after that, and never a result of your own: stop and wait. The next message has the result:

<function_results>
<result>
<tool_name>name of the tool</tool_name>
<stdout>what the tool returned</stdout>
</result>
</function_results>

Write the block as it is, not in a code fence, and do not speak of these tags. Use a tool only when it helps, and only
these tools; otherwise just answer.

"""


def _call(call: ToolCall) -> str:
    sound = as_object(call.arguments or "{}")
    lines = [call.arguments]
    if sound is not None:
        values = cast("dict[str, Any]", msgspec.json.decode(sound))
        lines = [f'<parameter name="{name}">{_value(value)}</parameter>' for name, value in values.items()]
    return "\n".join([f'<invoke name="{call.name}">', *lines, "</invoke>"])


def _value(value: object) -> str:
    return with_layout(value) if isinstance(value, str) else in_tags(msgspec.json.encode(value).decode())


def _result(result: ToolMessage) -> str:
    content = defused(result.content, "stdout", "error", "result", "function_results")
    tag = "error" if result.failed else "stdout"
    return f"<result>\n<tool_name>{result.name}</tool_name>\n<{tag}>{content}</{tag}>\n</result>"


def _grammar(tools: Sequence[ToolEntry]) -> FunctionCallsGrammar:
    return FunctionCallsGrammar({tool.name: tool.input_schema for tool in tools})


FUNCTION_CALLS = Dialect(
    name="function_calls",
    describe=lambda tools, _: _DESCRIPTION + listed(tools),
    no_tools="Tools cannot be used in your next message: answer in words, with what you have, and no <invoke> block.",
    calls=lambda calls: "\n".join(["<function_calls>", *map(_call, calls), "</function_calls>"]),
    results=lambda results: "\n".join(["<function_results>", *map(_result, results), "</function_results>"]),
    grammar=_grammar,
    stop=CLOSER,
)
