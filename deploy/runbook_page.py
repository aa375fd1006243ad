"""Makes the page to which the links of alerts lead of docs/runbook.md: `python -m deploy.runbook_page`.

Prometheus serves it (`/consoles/runbook.html`), so that a link opens where there is nothing but this installation.
"""

import re
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parent.parent
RUNBOOK = ROOT / "docs" / "runbook.md"
PAGE = ROOT / "deploy" / "prometheus" / "consoles" / "runbook.html"
_HEAD = """<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><title>Callstream: runbook</title>
<style>
body { font: 16px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse }
td, th { border: 1px solid #ccc; padding: .3em .6em; vertical-align: top; text-align: left }
pre { overflow: auto; background: #f4f4f4; padding: .6em }
:target { background: #fe9 }
</style>
"""


def runbook_page() -> str:
    """The page. Its headings have the anchors that code hosts give them; links to other documents become plain text."""
    text = re.sub(r"\[([^\]]+)\]\((?!#)[^)]*\)", r"\1", RUNBOOK.read_text())
    markdown = MarkdownIt("commonmark").enable("table")
    tokens = markdown.parse(text)
    for token, inline in pairwise(tokens):
        if token.type == "heading_open":
            token.attrSet("id", anchor(inline.content))
    page = _HEAD + markdown.renderer.render(tokens, markdown.options, {})
    return page.replace("{{", "{&#123;")  # Prometheus takes it for a template


def anchor(heading: str) -> str:
    """The anchor of a heading: in lower case, hyphens for spaces, nothing but letters, digits and hyphens."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(runbook_page())
