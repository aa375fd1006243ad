"""Markdown to safe HTML, for the chat page.

Two independent guards: markdown-it never passes raw HTML through and only accepts links with a known scheme, and
whatever it makes is cleaned again by nh3 against a short list of tags. The result holds nothing that loads, runs or
styles itself.
"""

import re
from collections.abc import Iterator, MutableMapping, Sequence

import nh3
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererProtocol
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markdown_it.utils import OptionsDict

SAFE_SCHEMES = frozenset({"http", "https", "mailto"})
_SAFE_LINK = re.compile(rf"(?:{'|'.join(sorted(SAFE_SCHEMES))}):", re.IGNORECASE)
_LANGUAGE = re.compile(r"language-[\w+#.-]{1,40}")
_BLOCKS = {"p", "br", "hr", "h3", "h4", "h5", "h6", "blockquote", "pre", "ul", "ol", "li"}
_INLINE = {"a", "code", "em", "strong", "s"}
_TABLE = {"table", "thead", "tbody", "tr", "th", "td"}


def render(text: str) -> str:
    """CommonMark with tables, strikethrough and hard line breaks, as HTML that is safe to insert into a page.

    Raw HTML is shown as text. Links go to http, https and mailto only, and open in a new tab without a referrer. Images
    become links, so that nothing is loaded from another host. Headings start at level 3: the page owns the first two.
    Half a character (a lone surrogate, as JSON can carry it) becomes the replacement character.
    """
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return _CLEANER.clean(_PARSER.render(whole))


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
    parser.validateLink = lambda url: _SAFE_LINK.match(url.strip()) is not None
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
