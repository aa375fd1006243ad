"""The chat page's files, as the engine serves them."""

import gzip
import re
import struct

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from dialog_engine.http.page import page_router
from tests.marks import promise
from tests.support.processes import ROOT

WEB = ROOT / "services/dialog-engine/src/dialog_engine/http/web"
MOST_BYTES = 90_000
"""Of all that is fetched before the page can be used, compressed."""
MOST_FILES = 8


@pytest.fixture
def client() -> TestClient:
    app = FastAPI()
    app.include_router(page_router())
    return TestClient(app)


def built(pattern: str) -> str:
    """The address of the only file with such a name."""
    [file] = WEB.glob(pattern)
    return f"/assets/{file.name}"


@promise("the page loads nothing from other hosts, under a strict policy")
def test_the_page_has_a_content_security_policy_for_its_own_files_only(client: TestClient) -> None:
    answer = client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    policy = dict(rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; "))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "worker-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' data: blob:",
        "connect-src": "'self'",
        "manifest-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "callstream-worker",
    }


def test_what_is_named_by_its_content_is_kept_and_the_page_is_asked_for_again(client: TestClient) -> None:
    assert client.get(built("main-*.js")).headers["cache-control"] == "public, max-age=31536000, immutable"
    first = client.get("/")
    assert first.headers["cache-control"] == "no-cache"
    again = client.get("/", headers={"If-None-Match": f'"other", {first.headers["etag"]}'})
    assert again.status_code == 304
    assert again.content == b""
    assert again.headers["etag"] == first.headers["etag"]
    assert client.get("/", headers={"If-None-Match": '"other"'}).status_code == 200


def test_files_are_compressed_for_who_takes_that(client: TestClient) -> None:
    plain = client.get(built("main-*.js"), headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    packed = client.get(built("main-*.js"), headers={"Accept-Encoding": "br, gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == "Accept-Encoding"
    assert packed.content == plain.content
    assert int(packed.headers["content-length"]) < len(plain.content) / 2


def test_what_is_fetched_before_the_page_can_be_used_is_small(client: TestClient) -> None:
    page = client.get("/")
    files = [page.content, *(client.get(path).content for path in named(page.text))]
    assert len(files) <= MOST_FILES
    assert sum(len(gzip.compress(file)) for file in files) < MOST_BYTES


def test_the_icons_of_the_manifest_are_served_with_the_sizes_that_it_names(client: TestClient) -> None:
    icons = client.get(built("page-*.webmanifest")).json()["icons"]
    for size in (192, 512):
        [source] = [each["src"] for each in icons if each["sizes"] == f"{size}x{size}"]
        picture = client.get(source)
        assert picture.headers["content-type"] == "image/png"
        assert struct.unpack(">II", picture.content[16:24]) == (size, size)


def test_files_outside_the_page_are_not_served(client: TestClient) -> None:
    main = built("main-*.js").removeprefix("/assets/")
    paths = [
        "..%2Fpage.py",
        "%2e%2e%2fpage.py",
        "%2e%2e",
        "nothing.js",
        f"{main}%00",
        "%2Fetc%2Fpasswd",
        f"web%2F{main}",
    ]
    for path in [*paths, "packages.json", "LICENSES.txt"]:
        assert client.get(f"/assets/{path}").status_code == 404, path


def named(page: str) -> set[str]:
    return set(re.findall(r'(?:src|href)="(/[^"]+)"', page))


def test_the_page_runs_no_inline_code_and_has_no_inline_style(client: TestClient) -> None:
    page = client.get("/").text
    assert not re.findall(r"<script(?![^>]*\bsrc=)", page)
    assert not re.findall(r"\s(?:on\w+|style)=", page)
    assert "<style" not in page


def test_the_page_names_no_way_to_make_html_of_a_string_but_that_of_its_library() -> None:
    """Preact has one, behind a property that no source of the page uses; the browser refuses it as well."""
    sources = [file.read_text() for file in (WEB.parents[3] / "web" / "src").rglob("*.ts*")]
    assert len(sources) > 40
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "dangerouslySetInnerHTML", "createHTML", "eval("):
        assert not any(word in source for source in sources), word
