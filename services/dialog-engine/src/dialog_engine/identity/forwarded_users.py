"""The people behind a key that a chat page has for all of them: the page says in a signed token who asks.

Each is a subject of its own, `<subject of the key>/<user>`, with the roles and rights of the key. No native subject has
such a name: one that would is refused.
"""

from dataclasses import replace
from typing import Any
from urllib.parse import quote

import jwt

from dialog_engine.errors import UnauthenticatedError
from dialog_engine.identity.authenticator import Users
from dialog_engine.identity.principal import Principal
from plugins_contract.rights import OF_KEY

ALGORITHM = "HS256"
LEEWAY_SECONDS = 30
MAX_USER = 128
"""Characters of the name that a page has for a person, as they are in a subject."""


class ForwardedUsers(Users):
    """Checks these tokens, which the page signs with `secret`."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def of(self, key: Principal, token: str) -> Principal:
        """The person whom the token names, as a sender with this key.

        Raises:
            UnauthenticatedError: the token is not valid, or has expired.
        """
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                self._secret,
                algorithms=[ALGORITHM],
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "sub"], "verify_aud": False},
            )
        except jwt.InvalidTokenError:
            raise UnauthenticatedError("the token in X-OpenWebUI-User-Jwt is not valid, or has expired") from None
        user = quote(claims["sub"], safe="")
        if not 1 <= len(user) <= MAX_USER:
            raise UnauthenticatedError(f"sub of the token in X-OpenWebUI-User-Jwt must have 1 to {MAX_USER} characters")
        roles = (*key.roles, f"{OF_KEY}{key.subject}")
        return replace(key, subject=f"{key.subject}/{user}", roles=roles, name=user)
