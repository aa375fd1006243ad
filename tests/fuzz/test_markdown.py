"""Texts as Markdown: bounded in time and size, and no element, attribute or address beyond those that are allowed."""

from html.parser import HTMLParser
from random import Random
from time import thread_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dialog_engine.http import markdown
from dialog_engine.http.markdown import MAX_HTML, RENDER_SECONDS, render_all
from tests.fuzz.limits import FUZZ, TIMES, processor_time, try_often
from tests.marks import exhaustive, promise

ELEMENTS = {
    *("p", "br", "hr", "h3", "h4", "h5", "h6", "blockquote", "pre", "ul", "ol", "li", "a", "code", "em", "strong"),
    *("s", "table", "thead", "tbody", "tr", "th", "td"),
}
ATTRIBUTES = {
    "a": {"href", "title", "rel", "target"},
    "code": {"class"},
    "ol": {"start"},
    "th": {"align"},
    "td": {"align"},
}
SCHEMES = ("http:", "https:", "mailto:")
VOID = {"br", "hr"}
PIECES = (
    *("# ", "## ", "> ", "- ", "1. ", "* ", "    ", "\t", "\n", "\n\n", "```", "~~~", "`", "``", "***", "**", "_"),
    *("~~", "[", "](", ")", "![", "]", "][", "]: ", "(", "<", ">", "|", "|-|", "|:-:|", "\n|-|-|\n", "\\", "&"),
    *("&#x3c;", "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "</p>", "<!--", "-->", "<![CDATA["),
    *("<svg/onload=x>", "javascript:alert(1)", "JaVaScRiPt:", "java\nscript:", "data:text/html,x", "vbscript:"),
    *("http://x", "//x", "\\\\x", "mailto:a@b", "https://a.b/?c=<d>&e='\"", "&colon;", "&Tab;", "&#106;avascript:"),
    *("%6a", "\x00", "\ud800", "\u202e", "a", "Hello ", "é🙂", "-" * 50, "=" * 5, "[a]: http://x 'title\"'"),
    *("<a href='http://x' onclick=x>", "<http://a.b>", "<javascript:x>", " onclick=alert(1) ", '" style="x'),
    *('``` js" onload="x\n', "~~~language-js\n", "[x]"),
)


@promise("hostile input of any side gives a named error, and others are served")
@settings(FUZZ, max_examples=60 * TIMES)
@given(st.randoms(use_true_random=False))
def test_markdown_becomes_safe_and_bounded_html(random: Random) -> None:
    with processor_time():
        attempt(random)


@exhaustive("the fuzzer itself")
def test_a_renderer_that_lets_html_pass_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown, "_rendered", lambda text, _: text)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    with pytest.raises(AssertionError):
        try_often(attempt)


def attempt(random: Random) -> None:
    """One request with up to three texts. Raises AssertionError if what comes of it is not safe or not bounded."""
    texts = [_text(random) for _ in range(random.randint(1, 3))]
    began = thread_time()
    rendered = render_all(texts)
    took = thread_time() - began
    assert took < 2 * RENDER_SECONDS, f"{took} s"
    # Plain text beyond the budget: no character of it becomes more than 5.
    assert sum(map(len, rendered)) <= 2 * MAX_HTML + 5 * sum(map(len, texts)) + 20 * len(texts)
    assert len(rendered) == len(texts)
    for text in rendered:
        text.encode()
        _Checked().check(text)


def _text(random: Random) -> str:
    text = "".join(random.choices(PIECES, k=random.choice([3, 10, 40, 150])))
    match random.randint(0, 99):
        case 0:
            return text * random.choice([10, 100])
        case 1:
            return random.choice(PIECES) * random.choice([100, 2_000, 20_000])
        case 2:
            return "".join(random.choices(PIECES, k=2)) * random.choice([100, 2_000, 10_000])
        case 3:
            return f"{random.choice(PIECES) * 1_000}{text}{random.choice(PIECES) * 1_000}"
        case 4:
            columns = random.randint(1, 400)
            return f"{'|a' * columns}\n{'|-' * columns}\n" + "|\n" * random.randint(1, 400)
        case _:
            return text


class _Checked(HTMLParser):
    """Reads HTML, and fails at what is not allowed."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[str] = []

    def check(self, text: str) -> None:
        self.feed(text)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ELEMENTS, tag
        allowed = ATTRIBUTES.get(tag, set[str]())
        for name, value in attrs:
            assert name in allowed, (tag, name)
            assert name != "href" or (value or "").lower().startswith(SCHEMES), value
        if tag == "a":
            assert ("target", "_blank") in attrs, attrs
            assert any(name == "rel" and "noopener" in (value or "") for name, value in attrs), attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open, tag
        assert self._open.pop() == tag, tag

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def handle_decl(self, decl: str) -> None:
        raise AssertionError(f"a declaration: {decl}")

    def unknown_decl(self, data: str) -> None:
        raise AssertionError(f"a declaration: {data}")

    def handle_pi(self, data: str) -> None:
        raise AssertionError(f"an instruction: {data}")
