"""Who may make requests, by the settings."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from fastapi import APIRouter

from dialog_engine.chat.ports import Credentials
from dialog_engine.config.identity import IdentitySettings
from dialog_engine.errors import ConfigurationError
from dialog_engine.http.admission import Admission
from dialog_engine.identity.api_keys import ApiKeys
from dialog_engine.identity.authenticator import Authenticator, NoCredentials, Users
from dialog_engine.identity.failed_attempts import FailedAttempts
from dialog_engine.settings import Settings


@dataclass(frozen=True, slots=True)
class Identity:
    """Who may make requests, if they have to prove who they are; its routes, and how its connections are closed."""

    credentials: Credentials
    admission: Admission | None = None
    routers: Sequence[APIRouter] = ()
    close: Callable[[], Awaitable[None]] | None = None


def identity_of(settings: Settings, provider_now: Callable[[], float]) -> Identity:
    """Read the keys and open what the settings of the identity ask for.

    Raises:
        ConfigurationError: a file of keys cannot be used.
    """
    if not settings.identity.needs_sign_in:
        return Identity(NoCredentials())
    try:
        keys = ApiKeys(settings.identity.api_keys, settings.identity.api_keys_file)
    except ValueError as error:
        raise ConfigurationError(f"API_KEYS_FILE: {error}") from None
    attempts, port = FailedAttempts(settings.identity.failed_keys_per_minute), settings.http.operations_port
    users = _users_of(settings.identity)
    if settings.identity.oidc_issuer is None:
        authenticator = Authenticator(keys, attempts, users=users)
        return Identity(authenticator, Admission(authenticator, operations_port=port))
    from dialog_engine.http.sign_in_routes import sign_in_router  # noqa: PLC0415 -- these take a tenth of a second
    from dialog_engine.identity.oidc import open_oidc  # noqa: PLC0415 -- and 9 MB

    oidc = open_oidc(settings.identity, settings.identity.oidc_issuer, provider_now)
    authenticator = Authenticator(keys, attempts, oidc.tokens, users=users)
    admission = Admission(authenticator, oidc.sign_in, operations_port=port)
    routers = [sign_in_router(oidc.sign_in)] if oidc.sign_in else []
    return Identity(authenticator, admission, routers, oidc.provider.aclose)


def _users_of(settings: IdentitySettings) -> Users | None:
    if settings.openwebui_jwt_secret is None:
        return None
    from dialog_engine.identity.forwarded_users import ForwardedUsers  # noqa: PLC0415 -- takes a tenth of a second

    return ForwardedUsers(settings.openwebui_jwt_secret.get_secret_value())
