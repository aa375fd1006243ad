"""The tools of the demo server, and others with similar names."""

import re

from examples.demo_model.conversation import Outcome, ToolUse
from examples.demo_model.places import Place, places_in
from examples.demo_model.results import parse
from examples.demo_model.skills.skill import Skill, asks, given, number_before, quote
from examples.demo_model.toolbox import Toolbox


def word_after(question: str, introduction: str) -> str | None:
    match = re.search(rf"\b(?:{introduction})\s+[\"'“`]?([\w-]+)", question, re.IGNORECASE)
    return match[1] if match else None


def _slow_job(question: str, tools: Toolbox) -> ToolUse | None:
    minutes = number_before(question, "min|minutes?")
    seconds = number_before(question, "s|secs?|seconds?") if minutes is None else 60 * minutes
    hints = given(seconds=seconds, steps=number_before(question, "steps?"), token=word_after(question, "token"))
    return tools.use(("slow_job", "long_running_operation"), {}, **hints)


def increment(question: str, tools: Toolbox) -> ToolUse | None:
    """One increment of the counter that the question names, with its token."""
    wait = re.search(r"\banswer(?:ing)? after (\d+(?:\.\d+)?)", question, re.IGNORECASE)
    hints = given(
        counter=word_after(question, "counter (?:called|named)"),
        token=word_after(question, "token"),
        answer_after_seconds=float(wait[1]) if wait else None,
    )
    return tools.use(("increment_counter", "increment"), {}, **hints)


def _draw(question: str, tools: Toolbox) -> ToolUse | None:
    motif = re.search(r"\b(sunset|rings|checkers)\b", question, re.IGNORECASE)
    hints = given(motif=motif and motif[1].lower(), size=number_before(question, "px|pixels?"))
    return tools.use(("draw", "image"), {}, **hints)


def _weather(question: str, tools: Toolbox) -> ToolUse | None:
    place = next(iter(places_in(question)), Place("Tokyo", "Asia/Tokyo"))
    return tools.use(("weather", "structured_content"), {"city": place.name})


def _large_result(question: str, tools: Toolbox) -> ToolUse | None:
    megabytes = number_before(question, "mb|mib")
    kilobytes = number_before(question, "kb|kib|k") if megabytes is None else 1024 * megabytes
    return tools.use(("large_result",), {}, **given(kilobytes=kilobytes))


def _add_note(question: str, tools: Toolbox) -> ToolUse | None:
    return tools.use(("add_note",), {"note": re.split(r"\bnote\b[:\s]*", question, maxsplit=1, flags=re.I)[-1].strip()})


def _echo(question: str, tools: Toolbox) -> ToolUse | None:
    return tools.use(("echo",), {"text": re.sub(r"(?i)^\s*echo[:\s]*", "", question).strip()})


def _tell_counter(outcome: Outcome, _: str) -> str:
    match parse(outcome.text):
        case {"counter": str(counter), "value": int(value)}:
            return f"The counter `{counter}` is now **{value}**."
        case _:
            return quote(outcome)


def _tell_weather(outcome: Outcome, _: str) -> str:
    match parse(outcome.text):
        case {"city": city, "temperature_celsius": degrees, "condition": condition, **rest}:
            source = f" ({rest['source']})" if "source" in rest else ""
            return f"In **{city}**: {degrees} °C, {condition}{source}."
        case _:
            return quote(outcome)


def _tell_deleted(outcome: Outcome, _: str) -> str:
    match parse(outcome.text):
        case {"deleted": int(deleted)}:
            return f"Deleted: **{deleted}** notes of the demo."
        case _:
            return quote(outcome)


def _tell_drawing(outcome: Outcome, _: str) -> str:
    return f"`{outcome.name}` has drawn it; the picture belongs to its result. {quote(outcome)}"


def _tell_large(outcome: Outcome, _: str) -> str:
    first = outcome.text.strip().split("\n", 1)[0][:100]
    return f"I was given **{len(outcome.text):,}** characters of the result. It begins with “{first}”."


DEMO_TOOLS = (
    Skill(
        "a slow job",
        ("slow_job", "long_running_operation"),
        asks(r"\b(?:slow|long)(?:[\s-]running)? (?:job|task|operation)\b", _slow_job),
        quote,
    ),
    Skill(
        "a failing tool",
        ("fail",),
        asks(
            r"\bfailing tool\b|\btool that fails\b|\bmake (?:it|a tool) fail\b",
            lambda _, tools: tools.use(("fail",), {}),
        ),
        quote,
    ),
    Skill("a drawing tool", ("draw", "image"), asks(r"\b(?:draw|picture|image|paint)\b", _draw), _tell_drawing),
    Skill(
        "a tool with a large result",
        ("large_result",),
        asks(r"\b(?:large|big|huge) result\b", _large_result),
        _tell_large,
    ),
    Skill(
        "a weather tool",
        ("weather", "structured_content"),
        asks(r"\b(?:weather|structured)\b", _weather),
        _tell_weather,
    ),
    Skill(
        "a counter",
        ("increment",),
        asks(r"\b(?:increment|increase|bump|raise)\b.*\bcounter\b", increment),
        _tell_counter,
    ),
    Skill(
        "a tool that deletes",
        ("delete_everything", "delete_all"),
        asks(
            r"\b(?:delete|erase|wipe|remove) (?:everything|all)\b",
            lambda _, tools: tools.use(("delete_everything", "delete_all"), {}),
        ),
        _tell_deleted,
    ),
    Skill("a note tool", ("add_note",), asks(r"\b(?:add|take|make) a note\b", _add_note), quote, alone=True),
    Skill("an echo tool", ("echo",), asks(r"^\s*echo\b", _echo), quote, alone=True),
)
