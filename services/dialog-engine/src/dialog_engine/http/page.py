"""The files of the chat page, which `services/dialog-engine/web` builds."""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import PurePath

from fastapi import APIRouter, HTTPException, Request, Response

_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".webmanifest": "application/manifest+json",
}
# Only the files of the page are allowed. No string becomes HTML; the one policy makes the address of the page's worker.
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; "
    "script-src 'self'; "
    "worker-src 'self'; "
    "style-src 'self'; "
    "img-src 'self' data: blob:; "
    "connect-src 'self'; "
    "manifest-src 'self'; "
    "base-uri 'none'; "
    "form-action 'none'; "
    "frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; "
    "trusted-types callstream-worker"
)
_HEADERS = {
    "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept-Encoding",
    "X-Content-Type-Options": "nosniff",
}


def page_router() -> APIRouter:
    """The page at `/` and its parts under `/assets/`. Needs no key: it holds no data."""
    router = APIRouter(include_in_schema=False)
    assets = _load_assets()

    @router.api_route("/", methods=["GET", "HEAD"])
    async def index(request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        return _serve(assets["index.html"], request)

    @router.api_route("/assets/{name}", methods=["GET", "HEAD"])
    async def asset(name: str, request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        if name not in assets:
            raise HTTPException(404, f"there is no asset {name!r}")
        return _serve(assets[name], request)

    return router


@dataclass(frozen=True)
class _Asset:
    body: bytes
    media_type: str
    cache_control: str

    @cached_property
    def etag(self) -> str:
        """Weak: it is that of the body as it is and of the compressed one."""
        return f'W/"{hashlib.sha256(self.body).hexdigest()[:32]}"'

    @cached_property
    def compressed(self) -> bytes:
        return gzip.compress(self.body, mtime=0)


def _load_assets() -> dict[str, _Asset]:
    """Every file of the page by its name. A request is looked up here; it never reaches the file system."""
    files = (resources.files("dialog_engine.http") / "web").iterdir()
    return {
        file.name: _Asset(file.read_bytes(), media_type, _cache_control(file.name))
        for file in files
        if (media_type := _MEDIA_TYPES.get(PurePath(file.name).suffix))
    }


def _cache_control(name: str) -> str:
    """Every name but this one changes with what is in the file."""
    return "no-cache" if name == "index.html" else "public, max-age=31536000, immutable"


def _serve(asset: _Asset, request: Request) -> Response:
    headers = {**_HEADERS, "Cache-Control": asset.cache_control, "ETag": asset.etag}
    known = {tag.strip() for tag in request.headers.get("if-none-match", "").split(",")}
    if known & {asset.etag, asset.etag.removeprefix("W/"), "*"}:
        return Response(status_code=304, headers=headers)
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(asset.body, media_type=asset.media_type, headers=headers)
    return Response(asset.compressed, media_type=asset.media_type, headers={**headers, "Content-Encoding": "gzip"})
