"""The chat page: its files, and the Markdown that it asks the engine to render.

Two independent guards keep the rendered HTML safe: markdown-it never passes raw HTML through and only accepts links
with a known scheme, and nh3 cleans its output against a short list of tags. Nothing in the result can load anything,
run, or style itself.
"""

import hashlib
import re
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import PurePath
from typing import Annotated, Self

import nh3
from fastapi import APIRouter, HTTPException, Request, Response
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererProtocol
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markdown_it.utils import OptionsDict
from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_TEXTS = 200
MAX_CHARACTERS = 400_000

_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Only the files of the page are allowed. A string becomes HTML through the one named policy only.
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; "
    "script-src 'self'; "
    "style-src 'self'; "
    "img-src 'self' data: blob:; "
    "connect-src 'self'; "
    "base-uri 'none'; "
    "form-action 'none'; "
    "frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; "
    "trusted-types callstream"
)
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
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

    @router.post("/ui/markdown")
    def render_markdown(  # pyright: ignore[reportUnusedFunction]
        request: MarkdownRequest,
    ) -> MarkdownAnswer:  # a plain function: FastAPI runs it in a thread, because rendering takes processor time
        return MarkdownAnswer(html=[render(text) for text in request.texts])

    return router


def page_router() -> APIRouter:
    """The page at `/` and its parts under `/assets/`. Needs no key: it holds no data."""
    router = APIRouter(include_in_schema=False)
    assets = _load_assets()

    @router.api_route("/", methods=["GET", "HEAD"])
    async def index(request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        return _serve(assets["index.html"], request)

    @router.api_route("/assets/{name}", methods=["GET", "HEAD"])
    async def asset(name: str, request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        if name not in assets:
            raise HTTPException(404, f"there is no asset {name!r}")
        return _serve(assets[name], request)

    return router


@dataclass(frozen=True)
class _Asset:
    body: bytes
    media_type: str
    etag: str


def _load_assets() -> dict[str, _Asset]:
    """Every file of the page by its name. A request is looked up here; it never reaches the file system."""
    files = (resources.files("dialog_engine.http") / "web").iterdir()
    return {
        file.name: _asset(file.read_bytes(), media_type)
        for file in files
        if (media_type := _MEDIA_TYPES.get(PurePath(file.name).suffix))
    }


def _asset(body: bytes, media_type: str) -> _Asset:
    return _Asset(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def _serve(asset: _Asset, request: Request) -> Response:
    headers = {**_HEADERS, "ETag": asset.etag}
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if known & {asset.etag, "*"}:
        return Response(status_code=304, headers=headers)
    return Response(asset.body, media_type=asset.media_type, headers=headers)


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
