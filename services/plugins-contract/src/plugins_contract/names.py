"""Names under which tools are shown to models: `server__tool`, at most 64 characters.

Providers accept `[a-zA-Z0-9_-]{1,64}`. A name that does not fit, or that another pair could produce as well, gets a
hash of the pair at its end; so a name depends on its own server and tool only and stays the same whatever else is
configured.
"""

import hashlib
import re

MAX_LENGTH = 64
_NOT_ALLOWED = re.compile(r"[^a-zA-Z0-9_-]")


def exposed_name(server: str, tool: str) -> str:
    """The name of `tool` of `server` as a model sees it."""
    plain = f"{server}__{tool}"
    safe = _NOT_ALLOWED.sub("_", plain)
    # "a__b" + "c" and "a" + "b__c" would collide: the separator must be the first double underscore of the name.
    ambiguous = "__" in server or server.endswith("_") or tool.startswith("_")
    if safe == plain and len(plain) <= MAX_LENGTH and not ambiguous:
        return plain
    digest = hashlib.sha256(f"{server}\0{tool}".encode()).hexdigest()[:8]
    return f"{safe[: MAX_LENGTH - 9]}_{digest}"
