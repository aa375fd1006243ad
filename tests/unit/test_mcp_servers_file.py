"""The file of servers that people already have for other clients."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from plugins_contract.catalog import ApprovalPolicy
from plugins_contract.messages import ExecutionClass
from plugins_contract.sessions import SessionMode
from plugins_mcp.errors import ServersFileError
from plugins_mcp.mcp.known_servers import KEEP_STATE
from plugins_mcp.mcp.servers_file import ServersFile, parse_entry, read_servers_file, single_server
from plugins_mcp.mcp.spec import ServerOptions, ToolOptions
from plugins_mcp.mcp.transport_options import Http, Sse, Stdio, Transport
from tests.marks import promise
from tests.support.processes import ROOT

ENVIRONMENT = {"TOKEN": "t0ken-value", "DIR": "/data", "EMPTY": ""}
URL = "https://mcp.example/mcp"


def read(tmp_path: Path, document: Any) -> ServersFile:
    path = tmp_path / "mcp.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return read_servers_file(path, ENVIRONMENT)


def one(tmp_path: Path, entry: Any) -> ServersFile:
    return read(tmp_path, {"mcpServers": {"s": entry}})


@promise("mcpServers files of other clients are read")
@pytest.mark.parametrize(
    ("entry", "transport"),
    [
        ({"command": "run"}, Stdio("run")),
        ({"type": "stdio", "command": "run", "args": ["-x", "${DIR}/y"]}, Stdio("run", ("-x", "/data/y"))),
        (
            {"command": "run", "env": {"K": "${TOKEN}"}, "cwd": "${DIR}"},
            Stdio("run", env={"K": "t0ken-value"}, cwd="/data"),
        ),
        ({"url": URL}, Http(URL)),
        ({"type": "http", "url": URL, "headers": {"A": "Bearer ${TOKEN}"}}, Http(URL, {"A": "Bearer t0ken-value"})),
        ({"type": "streamable-http", "url": URL}, Http(URL)),
        ({"transport": "streamableHttp", "url": URL}, Http(URL)),
        ({"httpUrl": URL}, Http(URL)),
        ({"type": "sse", "url": URL}, Sse(URL)),
        ({"transport": "sse", "url": URL}, Sse(URL)),
        ({"url": "https://${env:HOST:-mcp.example}/mcp"}, Http(URL)),
        ({"command": "${EMPTY}run", "args": ["${x%y}", "$TOKEN", "${A:-}"]}, Stdio("run", ("${x%y}", "$TOKEN", ""))),
    ],
)
def test_all_spellings_in_use_are_read(tmp_path: Path, entry: Any, transport: Transport) -> None:
    file = one(tmp_path, entry)
    assert file.broken == ()
    assert file.servers[0].transport == transport
    assert file.servers[0].options == ServerOptions()


@promise("servers that are known to keep state get sessions of their own, unless the file says otherwise")
@pytest.mark.parametrize(
    ("command", "mode"),
    [
        ("npx -y @playwright/mcp@latest --isolated", SessionMode.CONVERSATION),
        ("node /srv/node_modules/@playwright/mcp/cli.js", SessionMode.CONVERSATION),
        ("npx chrome-devtools-mcp", SessionMode.CONVERSATION),
        ("/opt/venv/bin/mcp-server-memory", SessionMode.SUBJECT),
        ("uvx mcp-server-memory==1.0", SessionMode.SUBJECT),
        ("npx my-playwright @playwright/test", SessionMode.SHARED),
    ],
)
def test_known_servers_keep_state(tmp_path: Path, command: str, mode: SessionMode) -> None:
    program, *args = command.split()
    entry = {"command": program, "args": args}
    for options, expected in (({}, mode), ({"session": "shared"}, SessionMode.SHARED)):
        assert one(tmp_path, entry | {"callstream": options}).servers[0].options.session is expected


def test_the_readme_has_the_known_servers() -> None:
    rows = (ROOT / "README.md").read_text().split("| session | servers |")[1].split("\n\n")[0]
    shown = {name: row for row in rows.splitlines() for name in re.findall(r"`([^`]+)`", row)[1:]}
    assert shown.keys() == KEEP_STATE.keys()
    assert all(f"`{KEEP_STATE[name]}`" in row for name, row in shown.items())


def test_the_key_of_another_editor_is_read_as_well(tmp_path: Path) -> None:
    assert [spec.name for spec in read(tmp_path, {"servers": {"a": {"url": URL}}}).servers] == ["a"]


def test_our_own_options_are_under_one_key(tmp_path: Path) -> None:
    options = {
        "trust": True,
        "approval": "destructive",
        "timeoutMs": 1000,
        "idleTimeoutMs": 500,
        "connectTimeoutMs": 2000,
        "concurrency": 3,
        "session": "subject",
        "maxSessions": 5,
        "maxSessionsPerSubject": 2,
        "sessionIdleMs": 60000,
        "addresses": ["Forms.Corp.example:8443"],
        "protocol": "2025-11-25",
        "tools": {"t": {"timeoutMs": 5, "idleTimeoutMs": 4, "executionClass": "repeatable", "approval": "always",
            "disabled": True, "name": "u ", "description": "Does it."}},
    }  # fmt: skip
    assert one(tmp_path, {"url": URL, "callstream": options}).servers[0].options == ServerOptions(
        trust=True, approval=ApprovalPolicy.DESTRUCTIVE, timeout_ms=1000, idle_timeout_ms=500, connect_timeout_ms=2000,
        concurrency=3, session=SessionMode.SUBJECT, max_sessions=5, max_sessions_per_subject=2,
        session_idle_ms=60_000, addresses=frozenset({"forms.corp.example:8443"}), protocol="legacy",
        tools={"t": ToolOptions(5, 4, ExecutionClass.REPEATABLE, ApprovalPolicy.ALWAYS, True, "u", "Does it.")},
    )  # fmt: skip


OWN_MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"trsut": True}, " has an unknown field 'trsut'"),
    ({"trust": "yes"}, ".trust must be true or false"),
    ({"concurrency": 0}, ".concurrency must be a whole number"),
    ({"maxSessions": 0}, ".maxSessions must be a whole number"),
    ({"session": "mine"}, ".session must be"),
    ({"addresses": "corp.example"}, ".addresses must be a list of strings"),
    ({"timeoutMs": True}, ".timeoutMs must be a whole number"),
    ({"timeoutMs": 10**18}, ".timeoutMs must be at most 2592000000 milliseconds"),
    ({"idleTimeoutMs": 0}, ".idleTimeoutMs must be a whole number of milliseconds, at least 1"),
    ({"protocol": "1999"}, ".protocol must be auto"),
    ({"approval": "sometimes"}, ".approval must be one of never, destructive"),
    ({"tools": {"t": {"idleTimeoutMs": "30s"}}}, ".tools.t.idleTimeoutMs must be a whole number of milliseconds"),
    ({"tools": {"t": {"executionClass": "often"}}}, ".tools.t.executionClass"),
    ({"tools": {"t": {"approval": True}}}, ".tools.t.approval must be one of"),
    ({"tools": {"t": {"name": " "}}}, ".tools.t.name must have 1 to 64 characters"),
    ({"tools": {"t": {"description": 5}}}, ".tools.t.description must be a string"),
    (
        {"tools": {"t": {"name": "x"}, "u": {"name": "x"}}},
        ".tools.u.name is that of callstream.tools.t: choose another",
    ),
]
"""In our own options, and what is said of them behind their key."""


@promise("an mcp.json that is broken in part breaks that part")
@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        *(({"url": URL, "callstream": options}, f"callstream{said}") for options, said in OWN_MISTAKES),
        ({}, "command"),
        ([], "the entry must be an object"),
        ({"command": 5}, "command must be a string"),
        ({"command": "x", "args": [1]}, "args must be a list of strings"),
        ({"command": "x", "env": {"PORT": 8000}}, "env.PORT must be a string"),
        ({"type": "http"}, "url is missing"),
        ({"type": "stdio", "url": URL}, "command is missing"),
        ({"type": "carrier-pigeon", "url": URL}, "type must be one of"),
        ({"url": "ftp://x/y"}, "url must be an address"),
        ({"url": "http://host:port/"}, "url must be an address"),
        ({"command": "uvx mcp-server-git"}, "put its arguments into args"),
        ({"command": "x", "args": ["a", "\0"]}, "args[1] has a NUL character"),
        ({"command": "x", "env": {"A=B": "c"}}, "env has a variable 'A=B'"),
        ({"command": "x", "env": {"A": "\0"}}, "env.A has a NUL character"),
        ({"url": URL, "headers": {"A": "line\nbreak"}}, "headers.A has characters that are not allowed in a header"),
        ({"url": URL, "headers": {"my header": "x"}}, "headers has 'my header'"),
        ({"url": "${NOWHERE}"}, "url: environment variable NOWHERE is not set: set it, or write ${NOWHERE:-default}"),
        ({"command": "x", "env": {"KEY": "${NOWHERE}"}}, "env.KEY: environment variable NOWHERE is not set"),
        ({"url": URL, "headers": {"A": "${input:key}"}}, "headers.A: ${input:key} asks for manual input"),
        ({"url": URL, "disabled": "yes"}, "disabled must be true or false"),
        ({"url": URL, "disabled": True}, "disabled in the configuration"),
        ({"url": "${NOWHERE}", "enabled": False}, "disabled in the configuration"),
    ],
)
def test_a_mistake_breaks_its_own_server_only_and_is_named(tmp_path: Path, entry: Any, reason: str) -> None:
    file = read(tmp_path, {"mcpServers": {"bad": entry, "good": {"url": URL}}})
    assert [spec.name for spec in file.servers] == ["good"]
    assert file.broken[0].name == "bad"
    assert reason in file.broken[0].reason


def test_fields_of_other_clients_are_remarked_upon_and_ignored(tmp_path: Path) -> None:
    file = one(tmp_path, {"command": "x", "autoApprove": [], "url": URL})
    assert file.servers[0].transport == Stdio("x")
    assert file.warnings == ("server 's': ignored the field 'autoApprove'", "server 's': ignored the field 'url'")


def test_a_duplicate_server_is_warned_about(tmp_path: Path) -> None:
    file = read(tmp_path, '{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}, "b": {"command": "/a b/c"}}}')
    assert [spec.name for spec in file.servers] == ["a", "b"]
    assert "'a' is twice in one object" in file.warnings[0]


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ("{\n  nope", "line 2, column 3"),
        ("[]", "top level"),
        ("{}", "top level"),
        ('{"mcpServers": {}, "servers": {}}', "top level"),
        ('{"mcpServers": []}', "mcpServers"),
        ('{"mcpServers": {"": {}}}', "mcpServers"),
        ('{"mcpServers": {"\\ud83d": {"command": "x"}}}', "file"),
    ],
)
def test_a_file_that_cannot_be_used_names_itself_and_the_place(tmp_path: Path, document: str, where: str) -> None:
    with pytest.raises(ServersFileError) as caught:
        read(tmp_path, document)
    assert caught.value.where == where
    assert str(tmp_path / "mcp.json") in str(caught.value)


def test_a_missing_or_unreadable_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(ServersFileError, match="does not exist"):
        read_servers_file(tmp_path / "none.json", {})
    with pytest.raises(ServersFileError, match="cannot be read"):
        read_servers_file(tmp_path, {})
    (tmp_path / "latin.json").write_bytes(b'{"\xe9": 1}')
    with pytest.raises(ServersFileError, match="byte 2"):
        read_servers_file(tmp_path / "latin.json", {})


SECRETS = ["t0ken-value", "hidden-env", "hidden-arg", "hidden-query", "hidden-pass", "hidden-header"]


def test_secrets_show_nowhere(tmp_path: Path) -> None:
    stdio = {"command": "x", "args": ["--key=${TOKEN}"], "env": {"A": "hidden-env"}}
    http = {
        "url": "https://u:hidden-pass@h/?k=hidden-query",
        "headers": {"A": "Bearer hidden-header", "B": "Bearer ${TOKEN}"},
    }
    wrong = {**http, "url": "ftp://u:hidden-pass@h/?k=${TOKEN}"}
    file = read(tmp_path, {"mcpServers": {"a": stdio, "b": http, "c": wrong}})
    shown = repr(file)
    assert not [secret for secret in SECRETS if secret in shown]
    texts = "; ".join(SECRETS).replace("hidden-arg; ", "")
    for secret in ("hidden-query", "hidden-pass", "hidden-header", "t0ken-value"):
        assert secret not in file.servers[1].redact(texts)
    for secret in ("hidden-env", "t0ken-value"):
        assert secret not in file.servers[0].redact(texts)


def test_harmless_variables_and_short_values_stay_readable() -> None:
    assert single_server("http://h/?a=1").redact("HTTP 401 at /root") == "HTTP 401 at /root"


def test_one_server_can_be_had_quickly() -> None:
    spec = single_server(f" {URL} ", "the-key\n")
    assert (spec.name, spec.transport) == ("default", Http(URL, {"Authorization": "Bearer the-key"}))
    assert "the-key" not in repr(spec)
    assert single_server(URL).transport == Http(URL)
    assert single_server(URL, " ").transport == Http(URL)
    with pytest.raises(ValueError, match="http"):
        single_server("mcp.example")


def test_the_idle_limit_of_a_tool_comes_before_that_of_its_server() -> None:
    options = ServerOptions(idle_timeout_ms=500, tools={"t": ToolOptions(idle_timeout_ms=250)})
    assert (options.idle_limit("t"), options.idle_limit("other")) == (0.25, 0.5)
    assert ServerOptions().idle_limit("t") is None


def test_credentials_are_those_that_are_named_so() -> None:
    env = {"API_KEY": "hidden-key", "TZ": "Europe/Berlin", "PIN_TOKEN": "short"}
    spec, _ = parse_entry("a", {"command": "x", "args": ["${DB_PASSWORD}", "${PLACE}"], "env": env}, PLACES)
    assert spec.credentials == {"hidden-key", "hidden-password"}
    assert {"Europe/Berlin", "Reykjavik"} < spec.secrets

    headers = {"Authorization": "Bearer hidden-token", "Accept-Language": "Icelandic"}
    spec, _ = parse_entry(
        "a", {"url": "https://u:hidden-pass@h/?api_key=hidden-key&q=something", "headers": headers}, {}
    )
    assert spec.credentials == {"Bearer hidden-token", "hidden-token", "hidden-key", "hidden-pass"}


PLACES = {"DB_PASSWORD": "hidden-password", "PLACE": "Reykjavik"}


@pytest.mark.parametrize(
    ("url", "text", "shown"),
    [
        ("http://mcp.internal:3000/mcp", "HTTP 500 from mcp.internal:3000", "HTTP 500 from ***"),
        (
            "http://MCP.internal/mcp",
            "certificate is not valid for 'mcp.internal'",
            "certificate is not valid for '***'",
        ),
        ("http://time:3000/mcp", "no answer in time from time:3000, 'time'", "no answer in time from ***, ***"),
        ("http://h/", "Connect call failed ('10.0.0.5', 8080)", "Connect call failed ***"),
        ("http://h/", "Connect call failed ('fd00::5', 8080, 0, 0)", "Connect call failed ***"),
        ("http://[fd00::5]:80/", "no route to [fd00::5]:80 and 10.0.0.5:80", "no route to *** and ***"),
        ("http://h/", "version 1.2.3.4 of 10 tools", "version 1.2.3.4 of 10 tools"),
    ],
)
def test_addresses_of_a_server_are_not_for_users(url: str, text: str, shown: str) -> None:
    spec = single_server(url)
    assert spec.redact_for_users(text) == shown
    assert spec.redact(text) == text
