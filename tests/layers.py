"""Writes what documents say about the parts of the packages: `python -m tests.layers`.

The layers are those of import-linter in pyproject.toml; what a part does is the first paragraph of its docstring.
"""

import ast
import re
import tomllib
from pathlib import Path

from tests.support.processes import ROOT

ARCHITECTURE = ROOT / "docs" / "architecture.md"
SOURCES = {
    package: ROOT / "services" / package.replace("_", "-") / "src" / package
    for package in ("dialog_engine", "plugins_mcp", "plugins_contract", "callstream_runtime")
}


def layers(package: str) -> list[list[str]]:
    """The layers of a package, the highest first; each part of a package without layers is alone in one, by name."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    for contract in contracts:
        if contract.get("containers") == [package]:
            return [layer.split(" | ") for layer in contract["layers"]]
    return [[name] for name in sorted(_parts(SOURCES[package]))]


def _parts(source: Path) -> list[str]:
    modules = [path.stem for path in source.glob("*.py") if path.stem != "__init__"]
    return modules + [path.parent.name for path in source.glob("*/__init__.py")]


def table(package: str) -> str:
    """The parts of a package as a table."""
    rows = (_row(SOURCES[package], part) for layer in layers(package) for part in layer)
    return "| part | what it does |\n|---|---|\n" + "".join(rows)


def _row(source: Path, part: str) -> str:
    module = source / f"{part}.py"
    is_module = module.exists()
    text = ast.get_docstring(ast.parse((module if is_module else source / part / "__init__.py").read_text()))
    about = " ".join((text or "").split("\n\n", maxsplit=1)[0].split())
    return f"| `{part}{'.py' if is_module else '/'}` | {about} |\n"


def lines() -> str:
    """The layers of both services, each as one line."""
    return "".join(f"- {package}: `{' > '.join(map(_layer, layers(package)))}`\n" for package in [*SOURCES][:2])


def _layer(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({' | '.join(parts)})"


def documents() -> dict[Path, str]:
    """Each document with its generated part as it has to be."""
    written = {ARCHITECTURE: _replaced(ARCHITECTURE, lines())}
    for package, source in SOURCES.items():
        readme = source.parent.parent / "README.md"
        written[readme] = _replaced(readme, table(package))
    return written


def _replaced(document: Path, text: str) -> str:
    """The document with `text` between its two comments."""
    begin, end = "<!-- Made by `python -m tests.layers`: -->\n", "<!-- The end of what it made. -->"
    return re.sub(
        f"(?<={re.escape(begin)}).*?(?={re.escape(end)})", lambda _: text, document.read_text(), flags=re.DOTALL
    )


if __name__ == "__main__":
    for path, content in documents().items():
        path.write_text(content)
