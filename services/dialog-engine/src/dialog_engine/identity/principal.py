"""Who makes a request, with which roles."""

import re
from dataclasses import dataclass

USER = "user"
"""The role that may chat: everything below /v1 and /ui."""
OPERATOR = "operator"
"""The role that may read the operators' endpoints."""
ROLE = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,255}")
"""What a role may be called. No database can store, and no response can contain, half a character (a surrogate)."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The sender of a request. Sessions belong to the subject.

    `roles` are names that the rights file may use as well. `name` is shown to people. After `expires_at`, in Unix
    seconds, it must prove who it is again. `key_id` names the credential for the audit, and `credential` identifies it
    for `chat.ports.Credentials`; empty where it cannot be revoked.
    """

    subject: str
    roles: tuple[str, ...] = (USER,)
    name: str = ""
    expires_at: float | None = None
    key_id: str = ""
    credential: str = ""

    @property
    def shown_roles(self) -> tuple[str, ...]:
        """The roles that were given to it by name."""
        return tuple(role for role in self.roles if ROLE.fullmatch(role))


LOCAL = Principal("local", (USER, OPERATOR))
"""The sender of every request when there are neither keys nor a provider; the engine listens on loopback only then."""
ANONYMOUS = Principal("", ())
"""A sender that has proved nothing."""
OPERATIONS = Principal("operations", (OPERATOR,))
"""The sender of every request to OPERATIONS_PORT."""
