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
    """A server, and the calls of its tools.

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
    words: dict[str, str] = field(default_factory=dict[str, str])
    env: dict[str, str] = field(default_factory=dict[str, str])


def _everything(name: str, *arguments: str, transport: str = "stdio", path: str = "") -> Published:
    return Published(
        name, "npm:@modelcontextprotocol/server-everything", ("mcp-server-everything", *arguments),
        call=("echo", {"message": "hello"}), error=("get-annotated-message", {"messageType": "loud"}),
        transport=transport, path=path, image=("get-tiny-image", {}),
        structured=("get-structured-content", {"location": "New York"}),
        progress=("trigger-long-running-operation", {"duration": 1, "steps": 4}),
        form=("trigger-elicitation-request", {}), url=("trigger-url-elicitation", {"url": "https://example.org/"}),
        completion={"prompt": "completable-prompt", "name": "department", "value": "E"}, env={"PORT": "{port}"},
    )  # fmt: skip


def _asking(name: str, argument: str, *, transport: str = "stdio", path: str = "") -> Published:
    return Published(
        name, "", ("{python}", f"{OWN}/asking.py", argument), call=("book", {"city": "Rome"}), error=("nested", {}),
        transport=transport, path=path, form=("book", {"city": "Bonn"}), url=("twice", {}),
        env={"PORT": "{port}", "KEY": "a key of 32 bytes for its states"},
    )  # fmt: skip


def _thought(number: int, *, more: bool | str = False) -> Call:
    return "sequentialthinking", {
        "thought": "A.",
        "nextThoughtNeeded": more,
        "thoughtNumber": number,
        "totalThoughts": 2,
    }


SERVERS = (
    _everything("everything"),
    _everything("everything-http", "streamableHttp", transport="http", path="/mcp"),
    _everything("everything-sse", "sse", transport="sse", path="/sse"),
    Published("filesystem", "npm:@modelcontextprotocol/server-filesystem", ("mcp-server-filesystem", "{work}"),
        ("read_text_file", {"path": "{work}/notes.txt"}), ("read_text_file", {"path": "{work}/none.txt"}),
        image=("read_media_file", {"path": "{work}/picture.png"}), structured=("list_directory", {"path": "{work}"})),
    Published("memory", "npm:@modelcontextprotocol/server-memory", ("mcp-server-memory",),
        ("create_entities", {"entities": [{"name": "Ann", "entityType": "person", "observations": ["tall"]}]}),
        ("add_observations", {"observations": [{"entityName": "nobody", "contents": ["x"]}]}),
        structured=("read_graph", {}), env={"MEMORY_FILE_PATH": "{work}/memory.jsonl"}),
    Published("sequential-thinking", "npm:@modelcontextprotocol/server-sequential-thinking",
        ("mcp-server-sequential-thinking",),
        _thought(1), _thought(0, more="maybe"), structured=_thought(2)),
    Published("time", "pypi:mcp-server-time", ("mcp-server-time",), ("get_current_time", {"timezone": "Europe/Berlin"}),
        ("get_current_time", {"timezone": "Mars/Base"}), structured=("get_current_time", {"timezone": "UTC"})),
    Published("git", "pypi:mcp-server-git", ("mcp-server-git",),
        ("git_log", {"repo_path": "{work}/repository"}), ("git_log", {"repo_path": "{work}/none"})),
    Published("fetch", "pypi:mcp-server-fetch", ("mcp-server-fetch", "--ignore-robots-txt", "--allow-private-ips"),
        ("fetch", {"url": "{page}"}), ("fetch", {"url": "{page}none"}), words={"url": "{page}"}),
    Published("sqlite", "pypi:mcp-server-sqlite mcp<2", ("mcp-server-sqlite", "--db-path", "{work}/base.sqlite3"),
        ("list_tables", {}), ("read_query", {"query": 7}), words={"topic": "cheese"}),
    Published("calculator", "pypi:mcp-server-calculator", ("mcp-server-calculator",),
        ("calculate", {"expression": "6 * 7"}), ("calculate", {"expression": "6 *"}),
        structured=("calculate", {"expression": "1 + 1"})),
    Published("wikipedia", "pypi:wikipedia-mcp", ("wikipedia-mcp",), ("test_wikipedia_connectivity", {}),
        ("get_summary", {"title": 7}), structured=("test_wikipedia_connectivity", {})),
    Published("excel", "pypi:excel-mcp-server", ("excel-mcp-server", "stdio"),
        ("create_workbook", {"path": "{work}/book.xlsx", "overwrite": True}),
        ("describe_workbook", {"path": "{work}/none.xlsx"}), structured=("list_workbooks", {"directory": "{work}"})),
    Published("arxiv", "pypi:arxiv-mcp-server", ("arxiv-mcp-server", "--storage-path", "{work}/papers"),
        ("list_papers", {}), ("read_paper", {"paper_id": "none"}),
        words={"paper_id": "2401.00001", "paper_ids": "2401.00001", "topic": "queues"}),
    Published("duckduckgo", "pypi:duckduckgo-mcp-server", ("duckduckgo-mcp-server",),
        ("fetch_content", {"url": "{page}"}), ("fetch_content", {"url": 7}),
        structured=("fetch_content", {"url": "{page}"})),
    Published("duckdb", "pypi:mcp-server-motherduck",
        ("mcp-server-motherduck", "--db-path", ":memory:", "--read-write"),
        ("execute_query", {"sql": "SELECT 42"}), ("execute_query", {"sql": 7}), structured=("list_databases", {})),
    Published("markitdown", "pypi:markitdown-mcp", ("markitdown-mcp",),
        ("convert_to_markdown", {"uri": "file://{work}/notes.txt"}),
        ("convert_to_markdown", {"uri": "file://{work}/none.txt"}),
        structured=("convert_to_markdown", {"uri": "data:text/plain;base64,SGVsbG8="})),
    Published("playwright", "npm:@playwright/mcp",
        ("playwright-mcp", "--headless", "--isolated", "--no-sandbox", "--executable-path", "{browser}"),
        ("browser_navigate", {"url": "{page}"}), ("browser_click", {"target": "e999", "element": "none"}),
        image=("browser_take_screenshot", {"type": "png", "scale": "css"})),
    Published("chrome-devtools", "npm:chrome-devtools-mcp",
        ("chrome-devtools-mcp", "--headless", "--isolated", "--executablePath", "{browser}",
            "--chromeArg=--no-sandbox"),
        ("new_page", {"url": "{page}"}), ("click", {"pageId": 1, "uid": "none"}),
        image=("take_screenshot", {"pageId": 1})),
    Published("puppeteer", "npm:@modelcontextprotocol/server-puppeteer", ("mcp-server-puppeteer",),
        ("puppeteer_navigate", {"url": "{page}"}), ("puppeteer_click", {"selector": "#none"}),
        image=("puppeteer_screenshot", {"name": "page"}),
        env={"PUPPETEER_EXECUTABLE_PATH": "{browser}", "ALLOW_DANGEROUS": "true",
             "PUPPETEER_LAUNCH_OPTIONS": '{"headless": true, "args": ["--no-sandbox"]}'}),
    Published("desktop-commander", "npm:@wonderwhy-er/desktop-commander", ("desktop-commander",),
        ("get_config", {}), ("read_file", {"path": "{work}/none.txt"}),
        image=("read_file", {"path": "{work}/picture.png"}), env={"HOME": "{work}"}),
    Published("calc", "npm:@coo-quack/calc-mcp", ("calc-mcp",),
        ("math", {"expression": "6 * 7"}), ("math", {"expression": "6 *"})),
    Published("memory-bank", "npm:@allpepper/memory-bank-mcp", ("mcp-server-memory-bank",),
        ("memory_bank_write", {"projectName": "one", "fileName": "a.md", "content": "text"}),
        ("memory_bank_read", {"projectName": 7, "fileName": "a.md"}), env={"MEMORY_BANK_ROOT": "{work}"}),
    Published("git-tools", "npm:@cyanheads/git-mcp-server", ("git-mcp-server",),
        ("git_log", {"path": "{work}/repository"}), ("git_log", {"path": "{work}/none"}),
        structured=("git_status", {"path": "{work}/repository"}),
        env={"MCP_TRANSPORT_TYPE": "stdio", "LOGS_DIR": "{work}"}),
    Published("commands", "npm:@agent-infra/mcp-server-commands", ("mcp-server-commands",),
        ("run_command", {"command": "echo hello"}), ("run_command", {"command": "exit 3"}),
        words={"command": "echo hello"}),
    Published("files", "npm:@agent-infra/mcp-server-filesystem",
        ("mcp-server-filesystem", "--allowed-directories", "{work}"),
        ("read_file", {"path": "{work}/notes.txt"}), ("read_file", {"path": "/etc/passwd"})),
    _asking("asking", "stdio"),
    _asking("asking-http", "{port}", transport="http", path="/mcp"),
    Published("demo", "", ("{python}", f"{OWN}/demo.py"), ("add", {"a": 1, "b": 2}), ("add", {"a": "one", "b": 2}),
        structured=("add", {"a": 1, "b": 2}), update=("grow", {"name": "fresh"})),
    Published("notes-http", "", ("{python}", f"{OWN}/notes.py", "--port", "{port}"),
        ("note", {"text": "hello"}), ("note", {"text": {}}), transport="http", path="/mcp",
        structured=("note", {"text": "hello"}), update=("learn", {}), env={"PORT": "{port}"}),
)  # fmt: skip
