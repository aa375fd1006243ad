"""Makes what the settings of OpenID Connect ask for. Imported only where they are set: its libraries take 9 MB."""

from collections.abc import Callable
from dataclasses import dataclass

from dialog_engine.config.identity import IdentitySettings
from dialog_engine.errors import ConfigurationError
from dialog_engine.identity.page_sessions import Seal
from dialog_engine.identity.provider import IdentityProvider
from dialog_engine.identity.sign_in import Client, SignIn
from dialog_engine.identity.tokens import RoleRule, TokenVerifier


@dataclass(frozen=True, slots=True)
class Oidc:
    """The provider, which its owner closes; what accepts tokens of the API, and what signs people in on the page."""

    provider: IdentityProvider
    tokens: TokenVerifier | None
    sign_in: SignIn | None


def open_oidc(settings: IdentitySettings, issuer: str, now: Callable[[], float]) -> Oidc:
    """Nothing is asked of the provider yet. `now` is the clock by which what it answers gets old.

    Raises:
        ConfigurationError: SESSION_KEYS_FILE cannot be used.
    """
    provider = IdentityProvider(issuer, now=now)
    rule = RoleRule(settings.oidc_roles_claim, settings.oidc_operator_role)
    tokens = TokenVerifier(provider, settings.oidc_audience, rule) if settings.oidc_audience else None
    if not settings.oidc_client_id:
        return Oidc(provider, tokens, None)
    try:
        seal = Seal(settings.session_keys_file)
    except ValueError as error:
        raise ConfigurationError(f"SESSION_KEYS_FILE: {error}") from None
    secret = settings.oidc_client_secret
    client = Client(
        settings.oidc_client_id,
        secret.get_secret_value() if secret else None,
        settings.public_url or "",
        settings.oidc_scopes,
    )
    verifier = TokenVerifier(provider, client.client_id, rule)
    return Oidc(provider, tokens, SignIn(provider, verifier, client, seal, session_seconds=settings.session_seconds))
