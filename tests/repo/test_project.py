"""The project as a whole: what is tracked, documented and layered."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from plugins_contract.keys import ROUTED, Keys
from tests import layers
from tests.support.processes import ROOT

SERVICES = ROOT / "services"
BESIDE = "../" + "shared/"
"""What may lie beside the project on the machine that checks it: `.ci/run` alone knows, and does without."""
ELSEWHERE = re.compile(rf"{re.escape(BESIDE)}|(?<![\w.-])/(work|home|Users)/|/root/\.pyenv|/opt/(uvv|pypi)")
LINK = re.compile(r"\[[^\]]*\]\((?!https?://|mailto:|#)([^)#\s]+)[^)]*\)")

TOP_LEVEL = {
    *(".ci", ".github", ".dockerignore", ".env.example", ".gitignore", "CHANGELOG.md", "Makefile", "README.md"),
    *("docker-compose.yml", "pyproject.toml", "uv.lock", "services", "deploy", "docs", "examples", "benchmarks"),
    "tests",
}

LIBRARIES = {"aiosqlite", "fastapi", "mcp", "prometheus_client", "pydantic_settings", "redis", "sse_starlette"}
"""Libraries that the product uses instead of own code."""
MAY_SLEEP = {
    "tests/drill/drill.py": "the pause between two looks at the alerts",
    "tests/support/waiting.py": "the pause between two looks at a condition",
    "tests/chaos/foreign_clients.py": "a client waits before it connects again",
    "tests/chaos/model.py": "a model writes at a steady rate",
    "tests/chaos/pairs/instance.py": "the second fault strikes some time after the first",
    "tests/chaos/pairs/stack.py": "a fault lasts for a given time",
    "tests/chaos/pairs/strikes.py": "an engine is killed at a random moment",
    "tests/chaos/pairs/verdict.py": "a client waits before it connects again",
    "tests/chaos/readers.py": "a client waits before it connects again",
    "tests/chaos/responses_client.py": "a client waits before it connects again",
    "tests/chaos/scripted_worker.py": "a worker answers at a steady rate",
    "tests/chaos/stopping/users.py": "a turn is stopped at a random moment",
    "tests/chaos/tool_server.py": "a tool takes its time",
    "tests/chaos/scenarios/black_hole.py": "a fault lasts for a given time",
    "tests/chaos/scenarios/cut_streams.py": "clients arrive at a steady rate",
    "tests/chaos/scenarios/disk_full.py": "a fault lasts for a given time",
    "tests/chaos/scenarios/engines_stopped.py": "a fault begins at a random moment and lasts for a given time",
    "tests/chaos/scenarios/foreign_clients.py": "a fault begins at a given pace and lasts for a given time",
    "tests/chaos/scenarios/frozen_clients.py": "two measurements take equally long",
    "tests/integration/engines.py": "the pauses of Uvicorn itself are shorter",
    "tests/integration/servers/": "scripted tools take their time",
    "tests/integration/test_turn_log_faults.py": "steps and readers have a random pace, from a seed",
    "tests/unit/test_worker_leases.py": "a blocked event loop is the fault",
}
"""Where a test may sleep, by the beginning of a path, and why."""


@cache
def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [path for name in listed.decode().split("\0") if name and (path := ROOT / name).is_file()]


def text_of(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    found = {
        f"{named(path)}: {hit.group()}"
        for path in tracked()
        for hit in ELSEWHERE.finditer(text_of(path))
        if (named(path), hit.group()) != (".ci/run", BESIDE)
    }

    assert found == set()


def test_nothing_else_lies_at_the_top_level() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in tracked()} <= TOP_LEVEL


def test_packages_are_locked_to_the_public_index() -> None:
    hosts = set(re.findall(r'"https?://([^/"]+)', (ROOT / "uv.lock").read_text()))

    assert hosts == {"pypi.org", "files.pythonhosted.org"}


def test_imports_point_one_way() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    checked = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)

    assert checked.returncode == 0, checked.stdout


def test_every_make_command_in_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = {
        command
        for path in documents()
        for block in re.findall(r"```(?:sh|console)\n(.*?)```|`(make [^`]+)`", text_of(path), re.DOTALL)
        for command in re.findall(r"\bmake ([a-z-]+)", "".join(block))
    }

    assert {"run", "test"} <= commands
    assert commands <= targets


def test_make_alone_lists_every_target() -> None:
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    for target in ("help", "run", "test", "check", "fmt", "bench", "clean"):
        assert re.search(rf"make {target}\s+\S", listed), target


def documents() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".md"]


CODE_PATH = re.compile(r"`((?:[\w.<>*-]+/)*(?:[\w.*-]+\.(?:py|lua|js|sql|md|yml)|[\w.<>-]+/))`")


def test_paths_of_code_in_the_pages_for_contributors_exist() -> None:
    """A path begins at a package or a folder of it, beside the page, or at the top."""
    packages = [package for package in SERVICES.glob("*/src/*") if package.is_dir()]
    pages = [*SERVICES.glob("*/README.md"), ROOT / "docs" / "contributing.md", ROOT / "docs" / "architecture.md"]

    def exists(path: str, page: Path) -> bool:
        pattern = re.sub("<.*?>", "*", path).removesuffix("/")
        beside = (ROOT, page.parent, *SERVICES.iterdir(), *SERVICES.glob("*/src"))
        found = [folder.glob(pattern) for folder in beside] + [package.glob(f"**/{pattern}") for package in packages]
        return any(any(matches) for matches in found)

    paths = [(page, path) for page in pages for path in CODE_PATH.findall(text_of(page))]

    assert len(paths) > 100
    assert [f"{named(page)}: {path}" for page, path in paths if not exists(path, page)] == []


def test_links_between_documents_lead_somewhere() -> None:
    broken = [
        f"{named(path)}: {link}"
        for path in documents()
        for link in LINK.findall(text_of(path))
        if not (path.parent / link).exists()
    ]

    assert broken == []


def test_every_table_of_a_document_has_one_head() -> None:
    tables = {path: re.findall(r"(?:^\|.*\n)+", text_of(path), re.MULTILINE) for path in documents()}
    heads = {path: re.findall(r"(?<=\n)\|(?: *:?-+:? *\|)+\n", "".join(found)) for path, found in tables.items()}
    assert sum(map(len, heads.values())) > 50
    assert [named(path) for path, found in tables.items() if len(found) != len(heads[path])] == []


def test_the_index_of_decisions_names_each_once() -> None:
    index = ROOT / "docs" / "adr" / "README.md"
    decisions = [path.relative_to(index.parent).as_posix() for path in index.parent.rglob("[0-9]*.md")]
    assert sorted(each for each in LINK.findall(text_of(index)) if re.search(r"\d{4}-", each)) == sorted(decisions)


def literals(path: Path) -> set[str]:
    """The string constants of a module that are not documentation."""
    tree = ast.parse(path.read_text())
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in documentation)
    return {node.value for node in constants if isinstance(node.value, str)}


def test_every_name_in_redis_is_one_of_the_contracts() -> None:
    key = re.compile(r"(events|rpc|plugins|dialog)\.[a-z.]+:?")
    known = {Keys().requests, *ROUTED}
    used = {
        f"{named(path)}: {literal}"
        for path in SERVICES.rglob("*.py")
        if path.name != "keys.py" and re.search(rf'"{key.pattern}"', path.read_text())
        for literal in literals(path)
        if key.fullmatch(literal) and literal not in known
    }

    assert used == set()


def packages_imported_in(folder: Path) -> set[str]:
    """The first part of the name of every module that is imported somewhere in the folder."""
    texts = [path.read_text() for path in folder.rglob("*.py")]
    return {name for text in texts for name in re.findall(r"^ *(?:from|import) (\w+)", text, re.MULTILINE)}


def test_the_product_uses_the_libraries_that_it_is_built_on() -> None:
    assert packages_imported_in(SERVICES) >= LIBRARIES
    assert "testcontainers" in packages_imported_in(ROOT / "tests")


def test_no_test_waits_for_a_fixed_time() -> None:
    """`wait_until` and its kind wait for a condition with a bound. `sleep(0)` only lets other tasks run."""
    found = {f"{named(path)}:{node.lineno}" for path in (ROOT / "tests").rglob("*.py") for node in sleeps_in(path)}
    allowed = {each for each in found if each.partition(":")[0].startswith(tuple(MAY_SLEEP))}

    assert found - allowed == set()
    assert {path for path in MAY_SLEEP if not any(each.startswith(path) for each in allowed)} == set()


PATCHED = re.compile(
    r'setattr\(\s*(?:[\w.]+,\s*"|f?"[\w.{}]+\.)([A-Z][A-Z_]+)"'
    r"|^ *\w+\.([A-Z][A-Z_]+) = "
    r'|^ *for .*\("([A-Z][A-Z_]+)".*:\n *\w+\.setattr\(',
    re.MULTILINE,
)
MAY_BE_PATCHED = {"NEWEST_VERSION"}
"""Of a release that another process runs: no part of this release takes it."""


def test_no_test_changes_a_constant_of_a_module() -> None:
    """Times, sizes and counts are arguments of constructors, or a test lives with those of the product."""
    found = {
        f"{named(path)}: {name}"
        for path in (ROOT / "tests").rglob("*.py")
        for match in PATCHED.finditer(path.read_text())
        if (name := match[match.lastindex or 0]) not in MAY_BE_PATCHED
    }

    assert found == set()


def sleeps_in(path: Path) -> list[ast.Call]:
    """The calls of the `sleep` of time, asyncio or anyio."""
    if "sleep(" not in path.read_text():
        return []
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return [
        call
        for call in calls
        if re.fullmatch(r"((time|asyncio|anyio)\.)?sleep", ast.unparse(call.func)) and ast.unparse(call.args[0]) != "0"
    ]


def test_the_documents_have_the_parts_and_layers_as_they_are() -> None:
    for path, content in layers.documents().items():
        assert path.read_text() == content, "run: python -m tests.layers"
        assert content.count("`python -m tests.layers`: -->") == 1, path


def test_each_part_says_what_it_does() -> None:
    assert len(layers.layers("dialog_engine")) > 5
    for package in ("dialog_engine", "plugins_mcp", "plugins_contract", "callstream_runtime"):
        assert " |  |" not in layers.table(package)
