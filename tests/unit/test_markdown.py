"""Markdown becomes HTML that is safe to put into a page, whatever the text tries."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialog_engine.http.markdown import SAFE_SCHEMES, render
from tests.marks import promise

BLOCKS = {"p", "br", "hr", "h3", "h4", "h5", "h6", "blockquote", "pre", "ul", "ol", "li"}
INLINE = {"a", "code", "em", "strong", "s"}
TABLE = {"table", "thead", "tbody", "tr", "th", "td"}
ALLOWED_TAGS = BLOCKS | INLINE | TABLE
ALLOWED_ATTRIBUTES = {"href", "title", "rel", "target", "class", "align", "start"}
HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](java&#x73;cript:alert(1))",
    "[x](data:text/html,<script>alert(1)</script>)",
    "[x](vbscript:msgbox)",
    "[x]( javascript:alert(1))",
    "[x][1]\n\n[1]: javascript:alert(1)",
    "<javascript:alert(1)>",
    '[x](https://a.example "\\" onmouseover=alert(1) x=\\"")',
    '![x](https://a.example/"onerror="alert(1))',
    "![x](javascript:alert(1))",
    "```\"><script>alert(1)</script>\ncode\n```",
    "```x\" onclick=\"alert(1)\ncode\n```",
    "[x](//evil.example)",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "<style>*{display:none}</style>",
    "<a href='javascript:alert(1)'>x</a>",
    "<!--><script>alert(1)</script-->",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=alert(1)>",
]  # fmt: skip


class Elements(HTMLParser):
    """Every tag of a piece of HTML, with its attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def assert_safe(html: str) -> None:
    for tag, attributes in Elements(html).found:
        assert tag in ALLOWED_TAGS, tag
        assert attributes.keys() <= ALLOWED_ATTRIBUTES, attributes
        if tag == "a" and "href" in attributes:
            assert (attributes["href"] or "").split(":")[0].lower() in SAFE_SCHEMES
        if tag == "a":
            assert attributes["rel"] == "noopener noreferrer nofollow"
            assert attributes["target"] == "_blank"


@promise("Markdown is safe")
def test_hostile_markdown_renders_to_safe_html(subtests: pytest.Subtests) -> None:
    for text in HOSTILE:
        with subtests.test(text=text):
            assert_safe(render(text))


@given(st.lists(st.sampled_from([*HOSTILE, "\n", "\n\n", "`", "|", "[", "](", ")", "*", "> ", "- ", "a"])).map("".join))
def test_any_mix_of_hostile_markdown_renders_to_safe_html(text: str) -> None:
    assert_safe(render(text))


@given(st.text())
def test_any_text_is_rendered(text: str) -> None:
    assert_safe(render(text))


def test_raw_html_is_shown_as_text() -> None:
    assert render("<b>bold</b>") == "<p>&lt;b&gt;bold&lt;/b&gt;</p>\n"


def test_emphasis_code_and_strikethrough_are_marked_up() -> None:
    assert render("*a* **b** `c` ~~d~~") == "<p><em>a</em> <strong>b</strong> <code>c</code> <s>d</s></p>\n"


def test_a_line_break_stays_a_line_break() -> None:
    assert render("one\ntwo") == "<p>one<br>\ntwo</p>\n"


def test_a_table_keeps_its_alignment_without_inline_styles() -> None:
    html = render("| a | b |\n|---|--:|\n| 1 | 2 |")
    assert "<th>a</th>" in html
    assert '<td align="right">2</td>' in html
    assert "style" not in html


def test_a_code_block_keeps_its_language_and_its_characters() -> None:
    assert render("```c++\na < b\n```") == '<pre><code class="language-c++">a &lt; b\n</code></pre>\n'


def test_a_link_opens_in_a_new_tab_without_a_referrer() -> None:
    assert render("[x](https://a.example)") == (
        '<p><a href="https://a.example" target="_blank" rel="noopener noreferrer nofollow">x</a></p>\n'
    )


def test_links_other_than_http_and_mail_stay_text() -> None:
    for url in ("/v1/sessions", "#top", "ftp://a.example", "file:///etc/hosts", "tel:1"):
        assert render(f"[x]({url})") == f"<p>[x]({url})</p>\n"


def test_an_image_becomes_a_link() -> None:
    assert Elements(render("![a cat](https://a.example/cat.png)")).found[1] == (
        "a",
        {"href": "https://a.example/cat.png", "target": "_blank", "rel": "noopener noreferrer nofollow"},
    )
    assert "a cat</a>" in render("![a cat](https://a.example/cat.png)")
    assert "https://a.example/cat.png</a>" in render("![](https://a.example/cat.png)")


def test_an_image_inside_a_link_leaves_one_link() -> None:
    html = render("[![logo](https://a.example/logo.png)](https://b.example)")
    assert html.count("<a ") == 1
    assert ">logo</a>" in html


def test_headings_start_below_the_headings_of_the_page() -> None:
    assert render("# a\n\n## b\n\n###### c") == "<h3>a</h3>\n<h4>b</h4>\n<h6>c</h6>\n"


def test_unfinished_markdown_is_rendered() -> None:
    assert render("```python\nprint(") == '<pre><code class="language-python">print(</code></pre>\n'
    assert render("| a |\n|--") == "<table>\n<thead>\n<tr>\n<th>a</th>\n</tr>\n</thead>\n</table>\n"
