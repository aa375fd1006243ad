"""Where a provider is asked, and as whom. Pure; all of it is worked out once per client."""

from base64 import b64encode
from collections.abc import Mapping
from importlib.metadata import version

from multidict import CIMultiDict
from yarl import URL

from dialog_engine.errors import ConfigurationError

_NONE: Mapping[str, str] = {}
_USER_AGENT = f"Callstream/{version('dialog-engine')}"


class Endpoint:
    """A resource of a provider's API.

    `base_url` may have a path, with or without a slash at its end, and a query, which is kept. A user and a password
    in it are sent in the Authorization header, in the place of what `private` says there. `public` are header fields
    that anybody may see; those of `private` are for the origin of `base_url` only, wherever it redirects to. So are
    those of `own`, the operator's: they take the place of ours of the same name, and an empty one leaves it out.

    Raises:
        ConfigurationError: `base_url` is not a URL, or a key holds what no header field can.
    """

    def __init__(
        self,
        base_url: str,
        path: str,
        *,
        public: Mapping[str, str],
        private: Mapping[str, str],
        own: Mapping[str, str] = _NONE,
    ) -> None:
        try:
            base = URL(base_url)
            whole = base.raw_path.removesuffix("/") + path
            self.url = base.with_user(None).with_path(whole, encoded=True, keep_query=True)
        except ValueError:
            raise ConfigurationError("the base URL of the model's provider is not a URL") from None
        self._public = CIMultiDict(
            {"Accept": "application/json", "Content-Type": "application/json", "User-Agent": _USER_AGENT, **public}
        )
        self._headers = self._public.copy()
        self._headers.update(private)
        if base.user or base.password:
            pair = f"{base.user or ''}:{base.password or ''}"
            self._headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        for name, value in own.items():
            self._headers.popall(name, None)
            if value:
                self._headers[name] = value
        if any(not value.isprintable() for value in self._headers.values()):
            raise ConfigurationError(
                "the key for the model's provider, or a header field for it, holds characters that cannot be sent"
            )

    def headers(self, url: URL) -> CIMultiDict[str]:
        """The header fields of a request to `url`: this endpoint's own, or where it redirects to."""
        return self._headers if url is self.url or self._is_of_the_same(url) else self._public

    def _is_of_the_same(self, url: URL) -> bool:
        """The same origin, or the same host that insists on TLS."""
        own, other = _origin(self.url), _origin(url)
        upgrade = own == ("http", other[1], 80) and other == ("https", own[1], 443)
        return own == other or upgrade


def _origin(url: URL) -> tuple[str, str, int | None]:
    return url.scheme, (url.host or "").lower(), url.port


def redirected(url: URL, location: str | None) -> URL | None:
    """Where a redirect from `url` leads to; None where that is nothing that can be asked."""
    try:
        target = url.join(URL(location or "")).with_user(None)
    except ValueError:
        return None
    return target if location and target.scheme in ("http", "https") and target.host else None
