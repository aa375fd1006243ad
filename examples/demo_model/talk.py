"""The answers that need no tool."""

import re

from examples.demo_model.conversation import Tool

INTRODUCTION = "*I am a scripted demo model, not an AI: I follow keywords.*"

THINGS_TO_TRY = """\
- What time is it in Tokyo and in Paris?
- When it is 9:30 in London, what time is it in New York?
- What is 17 * 23 + 4?
- Run a slow job for 5 seconds
- Draw me a picture
- What is the weather in Oslo?
- Increment the counter
- Count to 3 with the counter
- Call the failing tool
- Give me a large result of 200 KB
- Delete everything
- Keep calling tools forever
- Think aloud: what is 2 + 3?
- Call echo {"text": "any tool, with its arguments as JSON"}
- Show me Markdown
- Give me a long answer"""

MARKDOWN = """\
## A little of everything

Text can be **strong**, *emphasised* or `code`, and it can [link](https://modelcontextprotocol.io).

1. First the call is committed,
2. then it is relayed,
3. then a worker runs it.

```python
async def reply(call: ToolCall) -> Result:
    return await server.call_tool(call.name, call.arguments)
```

| broken | what you see |
|---|---|
| a worker | who has taken over |
| a tool | its error, in full |
| the connection | the rest of the stream, later |

> A quotation closes the tour."""

_LONG_ANSWER = """\
This is a long answer, made of sentences that were written beforehand. It is here so that there is time to press
Stop, to reload the page, to pull the plug, and to see what becomes of the words that have been shown already.

Imagine a letter that is carried through a town by several messengers. Each of them signs for it before taking a
step, and each leaves a note at the door where it was handed over. If one of them falls ill on the way, nobody has
to guess: the last signature tells where the letter is, and the next messenger begins there.

Some letters may safely be delivered twice. A letter that asks for the time of day does no harm if it is read again,
because the answer changes nothing. Other letters order a hundred loaves of bread. If the messenger is gone and
nobody knows whether the baker has read it, sending a copy is the one thing not to do. The honest answer is that the
outcome is unknown, and that somebody should ask the baker.

The reader at the window is told each step as it happens: the letter was written, it waits, it is on its way, it was
answered. If the window is closed for a while, the steps are kept, and whoever opens it again is told what was
missed, from the first line that was not seen to the newest one, each exactly once.

And when the reader has had enough and calls out to stop, the messengers are told as well. A letter that was never
handed over is taken back. One that is being read is asked to be put down. What was said until then remains said,
because a half-finished answer is still better than an empty page."""

_HELP = re.compile(
    r"^\W*(?:help|hi|hello|hey)\b|\bwhat can (?:you|i) (?:do|try|ask)\b|\bwho are you\b|\bare you an ai\b",
    re.IGNORECASE,
)
_MARKDOWN = re.compile(r"\bmarkdown\b", re.IGNORECASE)
_LONG = re.compile(r"\blong (?:answer|story|text|reply)\b", re.IGNORECASE)


def introduced(text: str) -> str:
    """The text, preceded by the statement that this model is a script."""
    return text if INTRODUCTION in text else f"{INTRODUCTION}\n\n{text}"


def talk(question: str, tools: tuple[Tool, ...]) -> str:
    """The answer to a question that needs no tool."""
    if _MARKDOWN.search(question):
        return MARKDOWN
    if _LONG.search(question):
        return re.sub(r"(?<!\n)\n(?!\n)", " ", _LONG_ANSWER)
    if _HELP.search(question) or not question.strip():
        return introduced(f"{_offer(tools)} Things to try:\n\n{THINGS_TO_TRY}")
    return introduced(f"Nothing in my script fits that. {_offer(tools)} Things to try:\n\n{THINGS_TO_TRY}")


def missing(needs: list[str], tools: tuple[Tool, ...]) -> str:
    """The answer if a tool is needed and none of the offered ones fits."""
    return f"That would take {' and '.join(needs)}, and I will not make the answer up. {_offer(tools)}"


def _offer(tools: tuple[Tool, ...]) -> str:
    if not tools:
        return "No tools are offered to me at the moment."
    return f"The tools offered to me: {', '.join(f'`{tool.name}`' for tool in tools)}."
