"""The chat page's files and words, and how the engine serves them and what it refuses."""

import gzip
import importlib
import re
import struct
from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.types import Message

from dialog_engine.config.http import is_own_name
from dialog_engine.errors import EngineError
from dialog_engine.http.app import Application
from dialog_engine.http.page import page_router
from dialog_engine.http.requests import BodyLimit
from dialog_engine.http.views import media
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import MediaBlock
from plugins_contract.questions import SECRET_WORDS
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
    assert set(answer.headers["content-security-policy"].split("; ")) == {
        "default-src 'none'", "script-src 'self'", "worker-src 'self'", "style-src 'self'", "connect-src 'self'",
        "img-src 'self' data: blob:", "manifest-src 'self'", "base-uri 'none'", "form-action 'none'",
        "frame-ancestors 'none'", "require-trusted-types-for 'script'", "trusted-types callstream-worker",
    }  # fmt: skip


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
    strange = ("..%2Fpage.py", "%2e%2e%2fpage.py", "%2e%2e", f"{main}%00", "%2Fetc%2Fpasswd", f"web%2F{main}")
    for path in (*strange, "nothing.js", "packages.json", "LICENSES.txt"):
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


# --- Which Host headers name this machine, and how a body is bounded ---


OWN_NAMES = ("localhost", "LocalHost:80", "127.0.0.1", "127.0.0.2:9", "[::1]", "[::1]:8000")
OTHER_NAMES = [
    "", ":80", "example.org", "10.0.0.1", "0.0.0.0", "[::]", "[::2]:80", "::1", "localhost:80:80",
    "localhost:x", "[::1]x", "x[::1]", "127.0.0.1@example.org", "localhost.", "127.1",
]  # fmt: skip


def test_loopback_names_are_own_names_and_no_others() -> None:
    assert [host for host in (*OWN_NAMES, *OTHER_NAMES) if is_own_name(host)] == [*OWN_NAMES]


async def test_a_body_that_announces_too_many_bytes_is_refused_unread() -> None:
    sent: list[Message] = []

    async def unread(*_: object) -> None:
        raise AssertionError

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    request = {"type": "http", "method": "POST", "path": "/", "headers": [(b"content-length", b"11")]}
    await BodyLimit(unread, 10)(request | {"app": Application()}, receive, send)
    assert sent[0]["status"] == 413
    assert b"BODY_TOO_LARGE" in sent[1]["body"]


# --- Records as the protocol shows them ---


INLINE = ("image/png", "image/svg+xml", "audio/x-wav")
OTHERS = ("text/html", "image/png; charset=x", "image/png\r\nset-cookie: a=b", "image/\u00e9", "image/", "")


def test_only_images_and_sounds_are_inline_and_media_types_cannot_inject_headers() -> None:
    for media_type in (*INLINE, *OTHERS):
        inline = media_type in INLINE
        answer = media(MediaBlock(media_type, "AAAA"))
        assert answer is not None
        assert answer.headers["content-type"] == (media_type if inline else "application/octet-stream")
        assert answer.headers["content-disposition"] == ("inline" if inline else "attachment")


# --- The page has its own words for every code that the API can answer with ---


ENGINE = ROOT / "services/dialog-engine"
PROBLEM = re.compile(r'roblem(?:Error)?\(\s*HTTPStatus\.\w+,\s*"([A-Z_]+)"')


def kinds(of: type[EngineError]) -> Iterator[type[EngineError]]:
    yield of
    for each in of.__subclasses__():
        yield from kinds(each)


def test_every_code_of_the_api_has_its_words_on_the_page() -> None:
    importlib.import_module("dialog_engine.wiring.services")  # so that all errors are known
    files = (ENGINE / "src/dialog_engine/http").glob("*.py")
    sources = [file.read_text() for file in files if file.name != "results.py"]  # which answers workers
    problems = {code for source in sources for code in PROBLEM.findall(source)}
    assert len(problems) >= 7
    words, effects = (ENGINE / "web/src/core/words.ts").read_text().split("const EFFECTS")
    known, of_calls = (set(re.findall(r'^  \["([A-Z_]+)", ', part, re.MULTILINE)) for part in (words, effects))
    assert known - {"UNREACHABLE"} == problems | {each.code for each in kinds(EngineError)}
    assert of_calls == set(ErrorCode)


def test_the_page_takes_the_same_fields_for_secrets_as_the_engine_does() -> None:
    forms = (ENGINE / "web/src/core/forms.ts").read_text()
    lists = re.findall(r"const SECRET_(?:WORDS|NAMES) = \[(.*?)\];", forms)
    assert [{*re.findall(r'"(\w+)"', each)} for each in lists] == [{*SECRET_WORDS}, {"pin", "otp", "token", "ssn"}]
