"""Markdown to safe HTML, for the chat page, in bounded time and space.

Two independent guards keep the HTML safe: markdown-it never passes raw HTML through and only accepts links with a known
scheme, and nh3 cleans its output against a short list of tags. Nothing in the result can load anything, run, or style
itself.

A short text can become a large page: a row of a table fills up to the width of its head, and a long address can be
referred to many times. Each request therefore has a budget of processor time and of characters. What exceeds it is
shown as plain text.
"""

import asyncio
import html
import re
import time
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

import nh3
from fastapi import APIRouter
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererProtocol
from markdown_it.ruler import RuleOptionsType
from markdown_it.rules_block import StateBlock
from markdown_it.rules_block.table import table
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import OptionsDict
from pydantic import BaseModel, ConfigDict, Field, model_validator

from dialog_engine.http import described
from dialog_engine.http.guards import Subject
from dialog_engine.http.shares import Shares

MAX_TEXTS = 200
MAX_CHARACTERS = 400_000
RENDER_SECONDS = 1.0
"""Processor time of one request. A text of 100,000 characters takes about 0.2 seconds."""
MAX_HTML = 2_000_000
"""The most characters of HTML that one request makes of Markdown."""
MAX_CELLS = 5_000
"""The most cells of a table; a larger one is shown as text."""
RENDERS = 2
"""How many requests are rendered at once, at most one of each subject. The others wait."""
MAX_REQUESTS = 8
"""How many requests of one subject may be waiting or rendered."""

SAFE_SCHEMES = frozenset({"http", "https", "mailto"})
_SAFE_LINK = re.compile(rf"(?:{'|'.join(sorted(SAFE_SCHEMES))}):", re.IGNORECASE)
_LANGUAGE = re.compile(r"language-[\w+#.-]{1,40}")
_BLOCKS = {"p", "br", "hr", "h3", "h4", "h5", "h6", "blockquote", "pre", "ul", "ol", "li"}
_INLINE = {"a", "code", "em", "strong", "s"}
_TABLE = {"table", "thead", "tbody", "tr", "th", "td"}


class MarkdownRequest(BaseModel):
    """Texts to render; their number and their size are bounded."""

    model_config = ConfigDict(extra="forbid")

    texts: Annotated[list[str], Field(max_length=MAX_TEXTS)]

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if sum(map(len, self.texts)) > MAX_CHARACTERS:
            raise ValueError(f"texts may hold at most {MAX_CHARACTERS} characters in all")
        return self


class MarkdownAnswer(BaseModel):
    """Safe HTML: one string per text, in the same order."""

    html: list[str]


def markdown_router() -> APIRouter:
    """`POST /ui/markdown`. A router of its own, so that it can be put behind the API keys."""
    router = APIRouter()
    slots, shares = asyncio.Semaphore(RENDERS), Shares(1, MAX_REQUESTS, "requests for Markdown")

    @router.post("/ui/markdown", responses=described.BODY)
    async def render_markdown(  # pyright: ignore[reportUnusedFunction]
        request: MarkdownRequest, subject: Subject
    ) -> MarkdownAnswer:
        async with shares.place(subject), slots:
            return MarkdownAnswer(html=await asyncio.to_thread(render_all, request.texts))

    return router


def render(text: str) -> str:
    """CommonMark with tables, strikethrough and hard line breaks, as HTML that is safe to insert into a page.

    Raw HTML is shown as text. Links go to http, https and mailto only, and open in a new tab without a referrer. Images
    become links, so that nothing is loaded from another host. Headings start at level 3: the page owns the first two.
    Half a character (a lone surrogate, as JSON can carry it) becomes the replacement character.
    """
    return render_all([text])[0]


def render_all(texts: Iterable[str]) -> list[str]:
    """Each text as by `render`, within one budget; as plain text when the budget is spent."""
    budget = _Budget(time.thread_time() + RENDER_SECONDS, MAX_HTML)
    return [_rendered(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), budget) for text in texts]


def _rendered(text: str, budget: "_Budget") -> str:
    env: dict[str, Any] = {"budget": budget}
    try:
        tokens = _PARSER.parse(text, env)
        budget.take(_size(tokens))
        budget.check()
        return _CLEANER.clean(_PARSER.renderer.render(tokens, _PARSER.options, env))
    except _BudgetSpentError:
        return f"<pre>{html.escape(text, quote=False)}</pre>"


# --- The budget ---


class _BudgetSpentError(Exception):
    """The request has no time or no characters left."""


@dataclass(slots=True)
class _Budget:
    """`ends_at` is a time of `time.thread_time`, which does not count while other threads run."""

    ends_at: float
    characters: int

    def check(self) -> None:
        if time.thread_time() > self.ends_at:
            raise _BudgetSpentError

    def take(self, characters: int) -> None:
        self.characters -= characters
        if self.characters < 0:
            raise _BudgetSpentError


_ALWAYS: RuleOptionsType = {"alt": ["paragraph", "reference", "blockquote", "list"]}
"""A rule of blocks that is also tried where another block may end."""


def _check_budget(state: StateBlock | StateInline, *_: object) -> bool:
    """A rule that matches nothing. Rules are tried at each line, and at each special character in a line."""
    state.env["budget"].check()
    return False


def _table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """The rule for tables, which makes all cells at once, for tables of up to MAX_CELLS cells."""
    delimiters = _line(state, start + 1).strip() if start + 1 < end else ""
    if "|" in delimiters:
        most_lines = MAX_CELLS // (delimiters.strip("|").count("|") + 1)
        if all(start + n < end and not state.isEmpty(start + n) for n in range(1, most_lines + 1)):
            return False
    return table(state, start, end, silent)


def _line(state: StateBlock, number: int) -> str:
    return state.src[state.bMarks[number] : state.eMarks[number]]


def _size(tokens: Sequence[Token]) -> int:
    """About as many characters as the HTML of these tokens has."""
    return sum(
        len(token.content)
        + 2 * len(token.tag)
        + 5
        + sum(len(str(value)) for value in token.attrs.values())
        + (_size(token.children) - len(token.content) if token.children else 0)
        for token in tokens
    )


# --- The dialect ---


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
    parser.validateLink = lambda url: _SAFE_LINK.match(url.strip()) is not None
    for ruler in (parser.block.ruler, parser.inline.ruler):
        ruler.before(ruler.get_all_rules()[0], "budget", _check_budget, _ALWAYS)
    parser.block.ruler.at("table", _table, {"alt": ["paragraph", "reference"]})
    parser.core.ruler.push("images_as_links", _images_as_links)
    parser.core.ruler.push("lower_headings", _lower_headings)
    parser.add_render_rule("th_open", _open_cell)
    parser.add_render_rule("td_open", _open_cell)
    return parser


def _images_as_links(state: StateCore) -> None:
    for block in state.tokens:
        if block.children:
            block.children = list(_without_images(block.children))


def _without_images(tokens: Sequence[Token]) -> Iterator[Token]:
    """An image becomes a link to it; inside a link, where a second one is not allowed, its description alone."""
    links = 0
    for token in tokens:
        links += (token.type == "link_open") - (token.type == "link_close")
        if token.type != "image":
            yield token
            continue
        source = str(token.attrs.get("src", ""))
        label = Token("text", "", 0, content=token.content or source)
        if links:
            yield label
        else:
            yield Token("link_open", "a", 1, attrs={"href": source})
            yield label
            yield Token("link_close", "a", -1)


def _lower_headings(state: StateCore) -> None:
    for token in state.tokens:
        if token.type in {"heading_open", "heading_close"}:
            token.tag = f"h{min(6, int(token.tag[1]) + 2)}"


def _open_cell(
    self: RendererProtocol, tokens: Sequence[Token], at: int, options: OptionsDict, env: MutableMapping[str, object]
) -> str:
    """A table cell whose alignment is an attribute: the page's policy refuses inline styles."""
    style = str(tokens[at].attrs.get("style", ""))
    align = f' align="{style.removeprefix("text-align:")}"' if style else ""
    return f"<{tokens[at].tag}{align}>"


def _keep_attribute(tag: str, name: str, value: str) -> str | None:
    if (tag, name) == ("code", "class"):
        return value if _LANGUAGE.fullmatch(value) else None
    return value


_PARSER = _parser()
_CLEANER = nh3.Cleaner(
    tags=_BLOCKS | _INLINE | _TABLE,
    attributes={"a": {"href", "title"}, "code": {"class"}, "ol": {"start"}, "th": {"align"}, "td": {"align"}},
    attribute_filter=_keep_attribute,
    url_schemes=set(SAFE_SCHEMES),
    url_relative="deny",
    link_rel="noopener noreferrer nofollow",
    set_tag_attribute_values={"a": {"target": "_blank"}},
)
