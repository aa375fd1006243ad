"""Which proxy the environment names for an address: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, and NO_PROXY.

aiohttp could look it up itself, but does so again, in a thread, for every request; and takes passwords from ~/.netrc.
"""

from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit
from urllib.request import getproxies

from yarl import URL

from dialog_engine.errors import ConfigurationError


class Proxies:
    """What the environment says when this is made.

    Raises:
        ConfigurationError: it names a proxy that speaks no HTTP.
    """

    def __init__(self) -> None:
        found = getproxies()
        self._by_scheme = {
            scheme: _proxy(address)
            for scheme in ("http", "https")
            if (address := found.get(scheme) or found.get("all"))
        }
        self._direct = [entry.strip() for entry in found.get("no", "").split(",") if entry.strip()]

    def of(self, url: URL) -> URL | None:
        """The proxy through which `url` is asked; None: without one."""
        proxy = self._by_scheme.get(url.scheme)
        return None if proxy is None or any(_names(entry, url) for entry in self._direct) else proxy


def _proxy(address: str) -> URL:
    try:
        proxy = URL(address if "://" in address else f"http://{address}")
    except ValueError:
        raise ConfigurationError("the environment's HTTP_PROXY, HTTPS_PROXY or ALL_PROXY is not a URL") from None
    if proxy.scheme not in ("http", "https") or not proxy.host:
        raise ConfigurationError(f"the environment names a proxy of a kind that cannot be used: {proxy.scheme}")
    return proxy


def _names(entry: str, url: URL) -> bool:
    """Whether an entry of NO_PROXY is about `url`: `*`, an address, a network, or a domain, each but the first
    perhaps with a scheme, the last also with a port. A domain is about its subdomains too; one that begins with a dot
    or `*.` is about them only.
    """
    if entry == "*":
        return True
    scheme, _, place = entry.rpartition("://")
    if scheme not in ("", "all", url.scheme):
        return False
    host = (url.host or "").lower()
    try:
        network = ip_network(place.strip("[]"), strict=False)
    except ValueError:
        return _is_domain_of(place, host, url.port)
    try:
        return ip_address(host) in network
    except ValueError:
        return False


def _is_domain_of(place: str, host: str, port: int | None) -> bool:
    try:
        parts = urlsplit(f"//{place}")
        name, wanted = parts.hostname or "", parts.port
    except ValueError:
        return False
    domain = name.removeprefix("*").removeprefix(".")
    if not domain or wanted not in (None, port):
        return False
    return host.endswith(f".{domain}") or host == name
