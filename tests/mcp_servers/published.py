"""The servers that are tried, and by which of their tools.

In commands, environments and arguments `{work}` stands for a folder with a picture, a text and a Git repository,
`{port}` for a free port, `{page}` for the address of a web page, `{browser}`
for a Chromium, and `{python}` for this Python.
"""

from dataclasses import dataclass, field
from typing import Any

from tests.support.processes import ROOT

Call = tuple[str, dict[str, Any]]
OWN = ROOT / "tests" / "integration" / "servers"


@dataclass(frozen=True)
class Published:
    """A server.

    `package` is `npm:name` or `pypi:name` and what else has to be installed with it, or "" for one of this
    repository. `command` begins with a script of the package. `transport` is that of `mcp.json`; `path` that of the
    address of a remote one. `call` must succeed, and `error` must be refused by the tool. What is None is not offered.
    """

    name: str
    package: str
    command: tuple[str, ...]
    call: Call
    error: Call
    transport: str = "stdio"
    path: str = ""
    image: Call | None = None
    structured: Call | None = None
    progress: Call | None = None
    form: Call | None = None
    url: Call | None = None
    update: Call | None = None
    completion: dict[str, Any] | None = None
    resource: str = ""
    words: dict[str, str] = field(default_factory=dict[str, str])
    env: dict[str, str] = field(default_factory=dict[str, str])


def _everything(name: str, *arguments: str, transport: str = "stdio", path: str = "") -> Published:
    return Published(
        name,
        "npm:@modelcontextprotocol/server-everything",
        ("mcp-server-everything", *arguments),
        call=("echo", {"message": "hello"}),
        error=("get-annotated-message", {"messageType": "loud"}),
        transport=transport,
        path=path,
        image=("get-tiny-image", {}),
        structured=("get-structured-content", {"location": "New York"}),
        progress=("trigger-long-running-operation", {"duration": 1, "steps": 4}),
        form=("trigger-elicitation-request", {}),
        url=("trigger-url-elicitation", {"url": "https://example.org/"}),
        completion={"prompt": "completable-prompt", "name": "department", "value": "E"},
        env={"PORT": "{port}"},
    )


def _asking(name: str, argument: str, *, transport: str = "stdio", path: str = "") -> Published:
    return Published(
        name,
        "",
        ("{python}", f"{OWN}/asking.py", argument),
        call=("book", {"city": "Rome"}),
        error=("nested", {}),
        transport=transport,
        path=path,
        form=("book", {"city": "Bonn"}),
        url=("twice", {}),
        env={"PORT": "{port}", "KEY": "a key of 32 bytes for its states"},
    )


SERVERS = (
    _everything("everything"),
    _everything("everything-http", "streamableHttp", transport="http", path="/mcp"),
    _everything("everything-sse", "sse", transport="sse", path="/sse"),
    Published(
        "filesystem",
        "npm:@modelcontextprotocol/server-filesystem",
        ("mcp-server-filesystem", "{work}"),
        call=("read_text_file", {"path": "{work}/notes.txt"}),
        error=("read_text_file", {"path": "{work}/none.txt"}),
        image=("read_media_file", {"path": "{work}/picture.png"}),
        structured=("list_directory", {"path": "{work}"}),
    ),
    Published(
        "memory",
        "npm:@modelcontextprotocol/server-memory",
        ("mcp-server-memory",),
        call=("create_entities", {"entities": [{"name": "Ann", "entityType": "person", "observations": ["tall"]}]}),
        error=("add_observations", {"observations": [{"entityName": "nobody", "contents": ["x"]}]}),
        structured=("read_graph", {}),
        env={"MEMORY_FILE_PATH": "{work}/memory.jsonl"},
    ),
    Published(
        "sequential-thinking",
        "npm:@modelcontextprotocol/server-sequential-thinking",
        ("mcp-server-sequential-thinking",),
        call=(
            "sequentialthinking",
            {"thought": "One.", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1},
        ),
        error=(
            "sequentialthinking",
            {"thought": "One.", "nextThoughtNeeded": "maybe", "thoughtNumber": 0, "totalThoughts": 1},
        ),
        structured=(
            "sequentialthinking",
            {"thought": "Two.", "nextThoughtNeeded": False, "thoughtNumber": 2, "totalThoughts": 2},
        ),
    ),
    Published(
        "time",
        "pypi:mcp-server-time",
        ("mcp-server-time",),
        call=("get_current_time", {"timezone": "Europe/Berlin"}),
        error=("get_current_time", {"timezone": "Mars/Base"}),
        structured=("get_current_time", {"timezone": "UTC"}),
    ),
    Published(
        "git",
        "pypi:mcp-server-git",
        ("mcp-server-git",),
        call=("git_log", {"repo_path": "{work}/repository"}),
        error=("git_log", {"repo_path": "{work}/none"}),
    ),
    Published(
        "fetch",
        "pypi:mcp-server-fetch",
        ("mcp-server-fetch", "--ignore-robots-txt", "--allow-private-ips"),
        call=("fetch", {"url": "{page}"}),
        error=("fetch", {"url": "{page}none"}),
        words={"url": "{page}"},
    ),
    Published(
        "sqlite",
        "pypi:mcp-server-sqlite mcp<2",
        ("mcp-server-sqlite", "--db-path", "{work}/base.sqlite3"),
        call=("list_tables", {}),
        error=("read_query", {"query": 7}),
        words={"topic": "cheese"},
    ),
    Published(
        "calculator",
        "pypi:mcp-server-calculator",
        ("mcp-server-calculator",),
        call=("calculate", {"expression": "6 * 7"}),
        error=("calculate", {"expression": "6 *"}),
        structured=("calculate", {"expression": "1 + 1"}),
    ),
    Published(
        "wikipedia",
        "pypi:wikipedia-mcp",
        ("wikipedia-mcp",),
        call=("test_wikipedia_connectivity", {}),
        error=("get_summary", {"title": 7}),
        structured=("test_wikipedia_connectivity", {}),
    ),
    Published(
        "excel",
        "pypi:excel-mcp-server",
        ("excel-mcp-server", "stdio"),
        call=("create_workbook", {"path": "{work}/book.xlsx", "overwrite": True}),
        error=("describe_workbook", {"path": "{work}/none.xlsx"}),
        structured=("list_workbooks", {"directory": "{work}"}),
    ),
    Published(
        "arxiv",
        "pypi:arxiv-mcp-server",
        ("arxiv-mcp-server", "--storage-path", "{work}/papers"),
        call=("list_papers", {}),
        error=("read_paper", {"paper_id": "none"}),
        words={"paper_id": "2401.00001", "paper_ids": "2401.00001", "topic": "queues"},
    ),
    Published(
        "duckduckgo",
        "pypi:duckduckgo-mcp-server",
        ("duckduckgo-mcp-server",),
        call=("fetch_content", {"url": "{page}"}),
        error=("fetch_content", {"url": 7}),
        structured=("fetch_content", {"url": "{page}"}),
    ),
    Published(
        "duckdb",
        "pypi:mcp-server-motherduck",
        ("mcp-server-motherduck", "--db-path", ":memory:", "--read-write"),
        call=("execute_query", {"sql": "SELECT 42"}),
        error=("execute_query", {"sql": 7}),
        structured=("list_databases", {}),
    ),
    Published(
        "markitdown",
        "pypi:markitdown-mcp",
        ("markitdown-mcp",),
        call=("convert_to_markdown", {"uri": "file://{work}/notes.txt"}),
        error=("convert_to_markdown", {"uri": "file://{work}/none.txt"}),
        structured=("convert_to_markdown", {"uri": "data:text/plain;base64,SGVsbG8="}),
    ),
    Published(
        "playwright",
        "npm:@playwright/mcp",
        ("playwright-mcp", "--headless", "--isolated", "--no-sandbox", "--executable-path", "{browser}"),
        call=("browser_navigate", {"url": "{page}"}),
        error=("browser_click", {"target": "e999", "element": "none"}),
        image=("browser_take_screenshot", {"type": "png", "scale": "css"}),
    ),
    Published(
        "chrome-devtools",
        "npm:chrome-devtools-mcp",
        (
            "chrome-devtools-mcp",
            "--headless",
            "--isolated",
            "--executablePath",
            "{browser}",
            "--chromeArg=--no-sandbox",
        ),
        call=("new_page", {"url": "{page}"}),
        error=("click", {"pageId": 1, "uid": "none"}),
        image=("take_screenshot", {"pageId": 1}),
    ),
    Published(
        "puppeteer",
        "npm:@modelcontextprotocol/server-puppeteer",
        ("mcp-server-puppeteer",),
        call=("puppeteer_navigate", {"url": "{page}"}),
        error=("puppeteer_click", {"selector": "#none"}),
        image=("puppeteer_screenshot", {"name": "page"}),
        env={
            "PUPPETEER_EXECUTABLE_PATH": "{browser}",
            "PUPPETEER_LAUNCH_OPTIONS": '{"headless": true, "args": ["--no-sandbox"]}',
            "ALLOW_DANGEROUS": "true",
        },
    ),
    Published(
        "desktop-commander",
        "npm:@wonderwhy-er/desktop-commander",
        ("desktop-commander",),
        call=("get_config", {}),
        error=("read_file", {"path": "{work}/none.txt"}),
        image=("read_file", {"path": "{work}/picture.png"}),
        env={"HOME": "{work}"},
    ),
    Published(
        "calc",
        "npm:@coo-quack/calc-mcp",
        ("calc-mcp",),
        call=("math", {"expression": "6 * 7"}),
        error=("math", {"expression": "6 *"}),
    ),
    Published(
        "memory-bank",
        "npm:@allpepper/memory-bank-mcp",
        ("mcp-server-memory-bank",),
        call=("memory_bank_write", {"projectName": "one", "fileName": "a.md", "content": "text"}),
        error=("memory_bank_read", {"projectName": 7, "fileName": "a.md"}),
        env={"MEMORY_BANK_ROOT": "{work}"},
    ),
    Published(
        "git-tools",
        "npm:@cyanheads/git-mcp-server",
        ("git-mcp-server",),
        call=("git_log", {"path": "{work}/repository"}),
        error=("git_log", {"path": "{work}/none"}),
        structured=("git_status", {"path": "{work}/repository"}),
        env={"MCP_TRANSPORT_TYPE": "stdio", "LOGS_DIR": "{work}"},
    ),
    Published(
        "commands",
        "npm:@agent-infra/mcp-server-commands",
        ("mcp-server-commands",),
        call=("run_command", {"command": "echo hello"}),
        error=("run_command", {"command": "exit 3"}),
        words={"command": "echo hello"},
    ),
    Published(
        "files",
        "npm:@agent-infra/mcp-server-filesystem",
        ("mcp-server-filesystem", "--allowed-directories", "{work}"),
        call=("read_file", {"path": "{work}/notes.txt"}),
        error=("read_file", {"path": "/etc/passwd"}),
    ),
    _asking("asking", "stdio"),
    _asking("asking-http", "{port}", transport="http", path="/mcp"),
    Published(
        "demo",
        "",
        ("{python}", f"{OWN}/demo.py"),
        call=("add", {"a": 1, "b": 2}),
        error=("add", {"a": "one", "b": 2}),
        structured=("add", {"a": 1, "b": 2}),
        update=("grow", {"name": "fresh"}),
    ),
    Published(
        "notes-http",
        "",
        ("{python}", f"{OWN}/notes.py", "--port", "{port}"),
        call=("note", {"text": "hello"}),
        error=("note", {"text": {}}),
        transport="http",
        path="/mcp",
        structured=("note", {"text": "hello"}),
        update=("learn", {}),
        env={"PORT": "{port}"},
    ),
)
