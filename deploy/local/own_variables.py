"""Which variables of the environment each program of `make run` inherits: its own, and none of the others' secrets."""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from callstream_runtime.settings_sources import fields_of
from dialog_engine.settings import Settings as EngineSettings
from plugins_mcp.config import Settings as WorkerSettings

Inherits: TypeAlias = Callable[[str], bool]
"""Whether a program inherits the variable of this name."""

_SYSTEM = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TERM|TMPDIR|TZ|LANG|LANGUAGE|LC_\w+|PYTHON\w*|VIRTUAL_ENV|LOCAL_PORTS|LD_LIBRARY_PATH"
    r"|DYLD_\w+|XDG_\w+"
)
_NETWORK = re.compile(r"(?i:https?|all|no)_proxy|SSL_CERT_FILE|SSL_CERT_DIR|SSLKEYLOGFILE|REQUESTS_CA_BUNDLE|OTEL_\w+")
"""Proxies, certificates and the export of traces."""
_PROVIDERS = re.compile(r"(AWS|AZURE|GOOGLE|CLOUDSDK|OPENAI|ANTHROPIC|PG)\w+")
"""What the SDKs of the model providers and libpq read themselves."""
_ENGINE, _WORKER = fields_of(EngineSettings), fields_of(WorkerSettings)
_REFERENCE = re.compile(r"\$\{(?:env:)?(\w+)")


def system(name: str) -> bool:
    """What every program inherits. Holds no secret."""
    return _SYSTEM.fullmatch(name) is not None


def engine(name: str) -> bool:
    """What the engine inherits."""
    return _service(name, _ENGINE) or _PROVIDERS.fullmatch(name) is not None


def worker(config: str | None) -> Inherits:
    """What the worker inherits; it includes the variables that the servers file `config` names."""
    references = frozenset[str]()
    with suppress(OSError, UnicodeDecodeError):  # the worker reports what is wrong with the file
        references = frozenset(_REFERENCE.findall(Path(config).read_text())) if config else references
    return lambda name: name in references or _service(name, _WORKER)


def _service(name: str, settings: Mapping[str, object]) -> bool:
    return system(name) or _NETWORK.fullmatch(name) is not None or name.lower() in settings
