"""An OpenID Connect provider over HTTP: discovery, keys that rotate, the authorization code flow with PKCE."""

import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import quote_plus, urlencode

import jwt
from aiohttp import encode_basic_auth, web
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from jwt.algorithms import ECAlgorithm

AUDIENCE = "callstream-api"
CLIENT_ID, CLIENT_SECRET = "callstream-page", "the client's secret"


@dataclass(frozen=True, slots=True)
class SigningKey:
    kid: str
    private: EllipticCurvePrivateKey

    @classmethod
    def new(cls, kid: str = "") -> "SigningKey":
        return cls(kid or secrets.token_hex(4), generate_private_key(SECP256R1()))

    def public(self) -> dict[str, Any]:
        data = ECAlgorithm.to_jwk(self.private.public_key(), as_dict=True)
        return data | {"kid": self.kid, "alg": "ES256", "use": "sig"}


class OidcProvider:
    """Signs in whoever asks, as `person`. Counts the requests for its keys."""

    def __init__(self) -> None:
        self.signing = SigningKey.new()
        self.published = [self.signing.public()]
        self.person: dict[str, Any] = {"sub": "ann@oidc", "name": "Ann of OIDC", "roles": ["user"]}
        self.issuer = ""
        self.available = True
        self.requests = self.key_requests = 0
        self.token_path = "/token"
        self.keys_at = ""
        """Another address of the keys."""
        self.answer: tuple[bytes, dict[str, str]] | None = None
        """The answer to a request for keys, with its headers, in place of the keys."""
        self._codes: dict[str, dict[str, str]] = {}

    def rotate(self) -> None:
        """Sign with a new key, and publish only that."""
        self.signing = SigningKey.new()
        self.published = [self.signing.public()]

    def token(self, *, key: SigningKey | None = None, kind: str = "JWT", **changes: Any) -> str:
        """An access token for the API; `None` removes a claim."""
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": AUDIENCE, "sub": "ann@oidc", "iat": now, "exp": now + 600} | changes
        claims = {name: value for name, value in claims.items() if value is not None}
        key = key or self.signing
        return jwt.encode(claims, key.private, "ES256", headers={"kid": key.kid, "typ": kind})

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator["OidcProvider"]:
        app = web.Application(middlewares=[self._unless_away])
        app.add_routes(
            [
                web.get("/.well-known/openid-configuration", self._metadata),
                web.get("/keys", self._keys),
                web.get("/authorize", self._authorize),
                web.post("/token", self._token),
            ]
        )
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.issuer = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield self
        finally:
            await runner.cleanup()

    @web.middleware
    async def _unless_away(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests += 1
        return await handler(request) if self.available else web.Response(status=503)

    async def _metadata(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                "issuer": self.issuer,
                "jwks_uri": self.keys_at or f"{self.issuer}/keys",
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}{self.token_path}",
            }
        )

    async def _keys(self, _: web.Request) -> web.Response:
        self.key_requests += 1
        if self.answer:
            return web.Response(body=self.answer[0], headers=self.answer[1])
        return web.json_response({"keys": self.published})

    async def _authorize(self, request: web.Request) -> web.Response:
        query = dict(request.query)
        if query["client_id"] != CLIENT_ID or query["code_challenge_method"] != "S256" or "nonce" not in query:
            return web.Response(status=400)
        code = secrets.token_urlsafe(8)
        self._codes[code] = query
        answer = urlencode({"code": code, "state": query["state"], "iss": self.issuer})
        return web.Response(status=302, headers={"location": f"{query['redirect_uri']}?{answer}"})

    async def _token(self, request: web.Request) -> web.Response:
        form = await request.post()
        asked = self._codes.pop(str(form.get("code")), None)
        authorization = request.headers.get("authorization", "")
        if asked is None or authorization != encode_basic_auth(CLIENT_ID, quote_plus(CLIENT_SECRET)):
            return web.json_response({"error": "invalid_grant"}, status=400)
        challenge = urlsafe_b64encode(sha256(str(form["code_verifier"]).encode()).digest()).rstrip(b"=").decode()
        if challenge != asked["code_challenge"] or form["redirect_uri"] != asked["redirect_uri"]:
            return web.json_response({"error": "invalid_grant"}, status=400)
        claims: dict[str, Any] = {"aud": CLIENT_ID, "nonce": asked["nonce"]} | self.person
        token = self.token(**claims)
        return web.json_response({"id_token": token, "access_token": "opaque", "token_type": "Bearer"})
