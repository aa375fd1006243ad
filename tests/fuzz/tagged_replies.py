"""Replies such as a model might write: some built so that it is known what must come of them, others pure noise."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any
from xml.sax.saxutils import quoteattr

from dialog_engine.tool_calls.prompt_mode.values import with_layout
from tests.support.corpus import PromptCase, files_of, read_case

CORPUS = ["\n".join(read_case(path, PromptCase).reply) for path in files_of("prompt")]

PIECES = (
    *("<tool_use>", "</tool_use>", "<name>", "</name>", "<arguments>", "</arguments>", "<function_calls>"),
    *("</function_calls>", '<invoke name="add">', "<invoke name='now'>", "</invoke>", '<parameter name="a">'),
    *('<parameter name="tags">', '<parameter name="content">', "</parameter>", "<think>", "</think>", "<thinking>"),
    *("<tool_use_result>", "</tool_use_result>", "<function_results>", "</function_results>", "<result>", "</result>"),
    *("<tool_name>", "</tool_name>", "<stdout>", "</stdout>", "<![CDATA[", "]]>", '<invoke name="now"/>'),
    *("<tool_call>", "</tool_call>", '<invoke name="add" a="1"', '<tool_use name="now"', ' b="2"', " value='", "/>"),
    *('{"name": "now"}', '{"name": "add", "arguments": {', '<parameter name="path"/>', "add", "now", "write"),
    *("nonsense", '{"a": 1}', '{"path": "', '"}', "[1, ", "]", "{", "}", '"', "\\", '\\"', "1", "```", "```xml\n"),
    *("~~~\n", "`", "\n", "\n\n", " ", "> ", "- ", "<", ">", "</", "<t", "<in", "a", "Hello, ", "é🙂"),
)
PROSE = (
    *("Hello.", " Let me see.\n", "a < b\n", "\n", "1. one\n2. two\n", "<b>bold</b> ", "grün 🙂 ", "</tool_use>"),
    "<name>",
)
QUOTED = (
    "```xml\n<tool_use><name>add</name><arguments>{}</arguments></tool_use>\n```\n",
    '~~~~\n```\n<function_calls><invoke name="now"></invoke></function_calls>\n~~~~\n',
    "Say `<tool_use><name>now</name></tool_use>` or `<invoke name='now'>`.\n",
    "The tags <tool_use> and <function_calls> open a block.\n",
    "```\n<tool_use_result><name>add</name><result>3</result></tool_use_result>\n```\n",
    "Say `<function_results><result>`, or: <tool_use_result> and <function_results> hold results.\n",
)
STRINGS = (
    *("", "a", "</arguments></tool_use>", '"', "\\", "\n", "<tool_use><name>now</name></tool_use>", "é🙂", "{}", "5"),
)
RESULTS = {
    "<tool_use_result>\n<name>add</name>\n<result>3</result>\n</tool_use_result>\n": "add",
    "<tool_use_result><name>nonsense</name><result>a < b</result></tool_use_result>": "nonsense",
    "<function_results>\n<result><tool_name>now</tool_name>\n<error>late</error>\n</result></function_results>": "now",
    "<function_results><result><tool_name>add</tool_name><stdout>```</stdout></result></function_results>\n": "add",
}
"""With the tool that they name. On a line of its own none of these is shown, nor the white space after it."""


@dataclass(frozen=True, slots=True)
class Built:
    """A reply with what must come of it. It may be followed by anything: that is dropped if there are calls.

    `repeats` is as in ReplyReader; `invented` is the tool whose result is made up.
    """

    reply: str
    repeats: bool
    text: str
    reasoning: str
    calls: tuple[tuple[str, dict[str, Any]], ...]
    invented: str


def noise(random: Random) -> str:
    """Pieces of tags, JSON and Markdown in any order, or a reply of the corpus with something done to it."""
    if random.random() < 0.5:
        return "".join(random.choices(PIECES, k=random.randint(1, 40)))
    reply = random.choice(CORPUS)
    for _ in range(random.randint(1, 4)):
        reply = _mutated(reply, random)
    return reply


def built(dialect: str, random: Random) -> Built:
    """Text with things that look like calls, then calls."""
    reasoning = random.choice(["", "", "Maybe <tool_use><name>add</name>?"])
    repeats = random.random() < 0.5
    reply, text = _prose(random, RESULTS if repeats else ())
    calls = [_call(random) for _ in range(random.randint(0, 3))]
    invented, written = "", ""
    if calls:
        written = _tool_uses(calls, random) if dialect == "tool_use" else _function_calls(calls, random)
        written += random.choice(["", "\n", "\nThe result is 3.", "<tool_use_result>3</tool_use_result>", *RESULTS])
    elif not repeats and random.random() < 0.5:
        invented = random.choice([*RESULTS])
        written = f"{invented}It is 3.\n<tool_use><name>now</name></tool_use>"
    if written and text and not text.endswith("\n"):
        reply, text = f"{reply}\n", f"{text}\n"
    thought = f"<think>{reasoning}</think>" if reasoning else ""
    return Built(thought + reply + written, repeats, text, reasoning, tuple(calls), RESULTS.get(invented, ""))


def _prose(random: Random, results: Iterable[str]) -> tuple[str, str]:
    """Text with things in it that look like calls, and results: as it is written, and as it is shown."""
    reply = shown = ""
    spaces_count = True
    for piece in random.choices([*PROSE, *QUOTED, *results], k=random.randint(0, 6)):
        written = piece if piece in PROSE else f"\n{piece}"
        reply += written
        visible = "\n" if piece in RESULTS else written
        visible = visible if spaces_count else visible.lstrip()
        shown += visible
        spaces_count = piece not in RESULTS and (spaces_count or bool(visible))
    return reply, shown


def _mutated(reply: str, random: Random) -> str:
    at, to = sorted(random.randint(0, len(reply)) for _ in range(2))
    match random.randint(0, 4):
        case 0:
            return reply[:at] + reply[to:]
        case 1:
            return reply[:to] + reply[at:]
        case 2:
            return reply[:at] + random.choice(PIECES) + reply[at:]
        case 3:
            return reply[:at]
        case _:
            other = random.choice(CORPUS)
            return reply[:at] + other[random.randint(0, len(other)) :]


def _call(random: Random) -> tuple[str, dict[str, Any]]:
    match random.randint(0, 2):
        case 0:
            return "now", {}
        case 1:
            return "add", {"a": random.randint(-5, 5), "b": random.random()}
        case _:
            tags = random.choices(STRINGS, k=random.randint(0, 3))
            return "write", {"path": random.choice(STRINGS), "tags": tags, "options": {random.choice(STRINGS): None}}


def _space(random: Random) -> str:
    return random.choice(["", "", "\n", " \n\t"])


def _tool_uses(calls: list[tuple[str, dict[str, Any]]], random: Random) -> str:
    blocks = ""
    shared = random.random() < 0.2
    for name, arguments in calls:
        written = json.dumps(arguments)
        match random.randint(0, 5):
            case 0 if not shared:
                parts = [json.dumps({"name": name, "arguments": arguments})]
            case 1:
                parts = [f"<name>{name}</name>", "<arguments>", f"<![CDATA[{written}]]>", "</arguments>"]
            case _:
                parts = [f"<name>{name}</name>", "<arguments>", written, "</arguments>"]
        if not shared and random.random() < 0.2:
            parts = ["<tool_call>", json.dumps({"name": name, "arguments": arguments}), "</tool_call>"]
        elif not shared:
            parts = ["<tool_use>", *parts, "</tool_use>"]
        blocks += _space(random).join(parts) + _space(random)
    return f"<tool_use>{blocks}</tool_use>" if shared else blocks


def _function_calls(calls: list[tuple[str, dict[str, Any]]], random: Random) -> str:
    space = _space(random)
    invokes = ""
    for name, arguments in calls:
        parameters = space.join(_parameter(key, value, random) for key, value in arguments.items())
        invokes += f'<invoke name="{name}">{space}{parameters}{space}</invoke>{space}'
    return f"<function_calls>{space}{invokes}</function_calls>"


def _parameter(name: str, value: object, random: Random) -> str:
    if value == "" and random.random() < 0.5:
        return f'<parameter name="{name}"/>'
    if random.random() < 0.2:
        return f'<parameter name="{name}" value={quoteattr(value if isinstance(value, str) else json.dumps(value))}/>'
    written = with_layout(value) if isinstance(value, str) else json.dumps(value)
    written = f"<![CDATA[{written}]]>" if random.random() < 0.2 else written
    return f'<parameter name="{name}">{written}</parameter>'
