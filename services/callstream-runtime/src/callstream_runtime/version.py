"""The version of Callstream, here and nowhere else, and which build of it runs."""

import hashlib
import os
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

__version__ = "0.2.0"
"""CHANGELOG.md says what each version brings."""
_TEXTS = (".py", ".lua", ".sql")


@cache
def commit(package: str) -> str:
    """The commit that a service was built from, as the build has noted it in CALLSTREAM_COMMIT; without that, a digest
    of the source code of `package` and of the libraries that both services share: two builds differ in it whenever
    their code differs."""
    return os.environ.get("CALLSTREAM_COMMIT") or f"src-{_digest(package)}"


def _digest(package: str) -> str:
    digest = hashlib.sha256()
    for name in (package, "callstream_runtime", "plugins_contract"):
        for path, content in sorted(_texts(files(name), "")):
            digest.update(f"{name}/{path} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


def _texts(folder: Traversable, path: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for each in folder.iterdir():
        if each.is_dir():
            found += _texts(each, f"{path}{each.name}/")
        elif each.name.endswith(_TEXTS):
            found.append((path + each.name, each.read_bytes()))
    return found
