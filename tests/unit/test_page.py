"""The chat page's files, and the limits of the Markdown renderer behind it."""

import re
from importlib import resources

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from dialog_engine.http.guards import current_subject
from dialog_engine.http.markdown import MAX_CHARACTERS, MAX_TEXTS, markdown_router
from dialog_engine.http.page import page_router
from tests.marks import promise


@pytest.fixture
def client() -> TestClient:
    app = FastAPI()
    app.include_router(page_router())
    app.include_router(markdown_router())
    app.dependency_overrides[current_subject] = lambda: "someone"
    return TestClient(app)


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
        "style-src": "'self'",
        "img-src": "'self' data: blob:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "callstream",
    }


def test_assets_have_their_media_type_and_nosniff(client: TestClient) -> None:
    for name, media_type in (
        ("main.js", "text/javascript; charset=utf-8"),
        ("app.css", "text/css; charset=utf-8"),
        ("favicon.svg", "image/svg+xml"),
    ):
        answer = client.get(f"/assets/{name}")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == media_type
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_assets_are_revalidated_by_etag(client: TestClient) -> None:
    first = client.get("/assets/main.js")
    assert first.headers["cache-control"] == "no-cache"
    again = client.get("/assets/main.js", headers={"If-None-Match": f'"other", W/{first.headers["etag"]}'})
    assert again.status_code == 304
    assert again.content == b""
    assert again.headers["etag"] == first.headers["etag"]
    assert client.get("/assets/main.js", headers={"If-None-Match": '"other"'}).status_code == 200


def test_a_head_request_gets_the_headers_alone(client: TestClient) -> None:
    answer = client.head("/")
    assert answer.status_code == 200
    assert answer.content == b""
    assert int(answer.headers["content-length"]) > 0


def test_files_outside_the_page_are_not_served(client: TestClient) -> None:
    paths = [
        "..%2Fpage.py",
        "%2e%2e%2fpage.py",
        "%2e%2e",
        "nothing.js",
        "main.js%00",
        "%2Fetc%2Fpasswd",
        "web%2Fmain.js",
    ]
    for path in paths:
        assert client.get(f"/assets/{path}").status_code == 404, path


def test_every_file_that_the_page_names_is_there(client: TestClient) -> None:
    for path in set(re.findall(r'(?:src|href)="(/[^"]+)"', client.get("/").text)):
        assert client.get(path).status_code == 200, path


def test_every_module_imports_modules_that_are_there(client: TestClient) -> None:
    modules = [file for file in (resources.files("dialog_engine.http") / "web").iterdir() if file.name.endswith(".js")]
    assert modules
    for module in modules:
        for name in re.findall(r'from "\./([^"]+)"', module.read_text()):
            assert client.get(f"/assets/{name}").status_code == 200, f"{module.name} imports {name}"


def test_the_page_runs_no_inline_code_and_has_no_inline_style(client: TestClient) -> None:
    page = client.get("/").text
    assert not re.findall(r"<script(?![^>]*\bsrc=)", page)
    assert not re.findall(r"\s(?:on\w+|style)=", page)
    assert "<style" not in page


def test_markdown_comes_back_in_the_order_in_which_it_was_sent(client: TestClient) -> None:
    answer = client.post("/ui/markdown", json={"texts": ["*a*", "**b**"]})
    assert answer.json() == {"html": ["<p><em>a</em></p>\n", "<p><strong>b</strong></p>\n"]}


def test_markdown_beyond_the_limits_is_refused(client: TestClient) -> None:
    bodies: dict[str, object] = {
        "too many texts": {"texts": ["a"] * (MAX_TEXTS + 1)},
        "too many characters": {"texts": ["a" * (MAX_CHARACTERS // 2), "b" * (MAX_CHARACTERS // 2 + 1)]},
        "an unknown field": {"texts": ["a"], "more": 1},
        "not a list": {"texts": "a"},
        "nothing": {},
    }
    for name, body in bodies.items():
        assert client.post("/ui/markdown", json=body).status_code == 422, name


def test_markdown_at_the_limits_is_rendered(client: TestClient) -> None:
    assert len(client.post("/ui/markdown", json={"texts": ["a"] * MAX_TEXTS}).json()["html"]) == MAX_TEXTS
    assert client.post("/ui/markdown", json={"texts": ["a" * MAX_CHARACTERS]}).status_code == 200


def test_a_lone_surrogate_in_markdown_is_replaced(client: TestClient) -> None:
    half = client.post("/ui/markdown", content=r'{"texts": ["\ud83d"]}', headers={"Content-Type": "application/json"})
    assert half.json() == {"html": ["<p>\N{REPLACEMENT CHARACTER}</p>\n"]}
