"""The planner: from a conversation to the next assistant message. Pure; the same request gives the same plan."""

import json
import re
from typing import cast

from examples.demo_model.conversation import Arguments, Conversation, Outcome, Plan, ToolUse
from examples.demo_model.loops import Loop, loop_in
from examples.demo_model.results import failure
from examples.demo_model.skills import SKILLS
from examples.demo_model.skills.skill import quote
from examples.demo_model.talk import introduced, missing, talk
from examples.demo_model.toolbox import Toolbox, named

_DIRECT = re.compile(
    r"^\W*(?:call|use|run)\s+(?:the\s+)?(?:tool\s+)?[`\"']?(?P<name>[\w.-]+)[`\"']?[^{]*", re.IGNORECASE
)
_THINK_ALOUD = re.compile(r"\bthink(?:ing)? (?:aloud|out loud)\b", re.IGNORECASE)


def plan(conversation: Conversation) -> Plan:
    """The next message: tool calls while the question still needs some, or else the answer."""
    loop = loop_in(conversation.question)
    calls, needs = _calls(conversation, loop)
    if calls:
        text = "" if conversation.rounds else "Let me see."
        return Plan(text, calls, _reasoning(conversation, calls))
    answer = _answer(conversation, loop, needs)
    return Plan(answer if conversation.introduced else introduced(answer), reasoning=_reasoning(conversation, ()))


def _calls(conversation: Conversation, loop: Loop | None) -> tuple[tuple[ToolUse, ...], list[str]]:
    """The calls to make now, and the needs of the question that no offered tool meets."""
    tools, question = Toolbox(conversation.tools), conversation.question
    if loop:
        use = loop.next_call(conversation.outcomes, tools)
        return ((use,) if use else ()), ([] if use or conversation.rounds else ["a tool that can be called repeatedly"])
    if conversation.rounds:
        return (), []
    if direct := _direct(question, tools):
        return (direct,), []
    wanted = _wanted(question, tools)
    return tuple(use for _, use in wanted if use), list(dict.fromkeys(needs for needs, use in wanted if use is None))


def _wanted(question: str, tools: Toolbox) -> list[tuple[str, ToolUse | None]]:
    """What each skill finds in the question: what it needs, and the call, or None if no tool fits."""
    found = [(skill, use) for skill in SKILLS for use in skill.uses(question, tools)]
    alone = [(skill, use) for skill, use in found if skill.alone]
    return [(skill.needs, use) for skill, use in alone[:1] or found]


def _direct(question: str, tools: Toolbox) -> ToolUse | None:
    """`call NAME {JSON}`: any offered tool, by its name, with the arguments that the user writes."""
    match = _DIRECT.match(question)
    if match is None:
        return None
    try:
        arguments: object = json.loads(question[match.end() :].strip() or "{}")
    except json.JSONDecodeError:
        return None
    return tools.direct(match["name"], cast("Arguments", arguments)) if isinstance(arguments, dict) else None


def _answer(conversation: Conversation, loop: Loop | None, needs: list[str]) -> str:
    if needs:
        return missing(needs, conversation.tools)
    told = [tell(outcome, conversation.question) for outcome in conversation.outcomes]
    if loop:
        told = [*told[-3:], loop.summary(conversation.outcomes)]
    return "\n\n".join(told) or talk(conversation.question, conversation.tools)


def tell(outcome: Outcome, question: str) -> str:
    """One result in words. A failure is always reported as a failure."""
    if failed := failure(outcome.text):
        code = f" ({failed.code})" if failed.code else ""
        return f"`{outcome.name}` did not succeed{code}: {failed.meaning}. It said:\n\n> {_quoted(failed.message)}"
    for skill in SKILLS:
        if named(outcome.name, skill.stems):
            return skill.tell(outcome, question)
    return quote(outcome)


def _quoted(text: str) -> str:
    return text.strip()[:600].replace("\n", "\n> ")


def _reasoning(conversation: Conversation, calls: tuple[ToolUse, ...]) -> str:
    """The reasons for the plan, for a user who asks for them."""
    if not _THINK_ALOUD.search(conversation.question):
        return ""
    results = f" There are {len(conversation.outcomes)} results so far." if conversation.outcomes else ""
    names = " and ".join(f"{call.name}({json.dumps(call.arguments)})" for call in calls)
    step = f"The keywords ask for {names}." if calls else "No call is needed now, so I answer."
    return f"I am a script, so this is matching, not thinking.{results} {step}"
