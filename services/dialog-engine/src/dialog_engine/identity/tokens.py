"""Checks the tokens of an OpenID Connect provider: access tokens of the API, and the ID tokens of the sign-in."""

import re
from dataclasses import dataclass
from typing import Any, cast

import jwt

from dialog_engine.errors import UnauthenticatedError
from dialog_engine.identity.authenticator import Tokens
from dialog_engine.identity.principal import OPERATOR, ROLE, USER, Principal
from dialog_engine.identity.provider import ALGORITHMS, IdentityProvider

LEEWAY_SECONDS = 30
"""How far the clocks of the engine and of the provider may differ."""
MAX_ROLES = 100
MAX_NAME = 200
_SUBJECT = re.compile(r"[^\0\ud800-\udfff]{1,255}")
"""What can be stored, up to the length that OpenID Connect Core 1.0 (2) allows."""
ID_TOKEN, ACCESS_TOKEN = "ID", "Bearer"
"""What Keycloak calls the two kinds of tokens in the claim `typ`."""
_TYPES = {ID_TOKEN: ("jwt",), ACCESS_TOKEN: ("jwt", "at+jwt", "application/at+jwt")}
"""What the header `typ` of each kind may be."""
CREDENTIAL = "token:"
"""Begins the credentials that are tokens. The id of the signing key follows, which is what a provider withdraws."""
KEY_ID = "token"
"""The name of every token in the audit."""


@dataclass(frozen=True, slots=True)
class RoleRule:
    """Where the roles of a token are: in `claim`, which may be a path such as `realm_access.roles`.

    Whoever has `operator` there has the role `operator`, and no other value gives it.
    """

    claim: str
    operator: str

    def roles(self, claims: dict[str, Any]) -> tuple[str, ...]:
        """The roles of a principal with these claims."""
        found: Any = claims.get(self.claim)
        if found is None:
            found = claims
            for part in self.claim.split("."):
                found = cast("dict[str, Any]", found).get(part) if isinstance(found, dict) else None
        values = (
            found.split() if isinstance(found, str) else cast("list[Any]", found) if isinstance(found, list) else []
        )
        names = [value for value in values if isinstance(value, str) and ROLE.fullmatch(value)][:MAX_ROLES]
        others = [name for name in names if name not in (USER, OPERATOR)]
        return tuple(dict.fromkeys([USER, *([OPERATOR] if self.operator in names else []), *others]))


class TokenVerifier(Tokens):
    """Checks tokens that the provider has issued for `audience`."""

    def __init__(self, provider: IdentityProvider, audience: str, rule: RoleRule) -> None:
        self._provider = provider
        self._audience = audience
        self._rule = rule

    async def prepare(self, token: str) -> None:
        """Fetch the provider's keys, where the token needs that. Raises IdentityProviderError."""
        if header := _header(token):
            await self._provider.prepare(header.get("kid"))

    def verify(self, token: str, *, nonce: str | None = None) -> Principal | None:
        """Whom the token names; None when it is not valid. With `nonce` it must be an ID token that has this one.

        Raises:
            UnauthenticatedError: it is genuine, and has expired.
        """
        header = _header(token)
        key = self._provider.key(header.get("kid")) if header else None
        if header is None or key is None:
            return None
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=self._audience,
                issuer=self._provider.issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.ExpiredSignatureError:
            raise UnauthenticatedError("the token of the request has expired: use a new one") from None
        except jwt.PyJWTError:
            return None
        kind = ACCESS_TOKEN if nonce is None else ID_TOKEN
        if str(header.get("typ", "JWT")).lower() not in _TYPES[kind] or claims.get("typ", kind) != kind:
            return None
        if nonce is not None and (claims.get("nonce") != nonce or not self._issued_to_audience(claims)):
            return None
        subject, name = claims["sub"], _name(claims)
        expires_at = float(claims["exp"]) + LEEWAY_SECONDS
        if not _SUBJECT.fullmatch(subject):
            return None
        credential = f"{CREDENTIAL}{header['kid']}" if "kid" in header else ""
        return Principal(subject, self._rule.roles(claims), name or subject, expires_at, KEY_ID, credential)

    async def withdrawn(self, credential: str) -> bool:
        return await self._provider.withdrawn(credential.removeprefix(CREDENTIAL))

    def _issued_to_audience(self, claims: dict[str, Any]) -> bool:
        """Whether an ID token was issued to its only audience, or says so (OpenID Connect Core 1.0, 3.1.3.7)."""
        alone = claims["aud"] in (self._audience, [self._audience])
        return claims.get("azp", self._audience if alone else None) == self._audience


def _header(token: str) -> dict[str, Any] | None:
    try:
        return jwt.get_unverified_header(token)
    except jwt.PyJWTError:
        return None


def _name(claims: dict[str, Any]) -> str:
    names = (claims.get(claim) for claim in ("name", "preferred_username", "email"))
    found = next((name for name in names if isinstance(name, str) and name), "")
    return found[:MAX_NAME].encode("utf-8", "replace").decode()
