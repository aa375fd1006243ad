"""The files of the chat page."""

import hashlib
from dataclasses import dataclass
from importlib import resources
from pathlib import PurePath

from fastapi import APIRouter, HTTPException, Request, Response

_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Only the files of the page are allowed. A string becomes HTML through the one named policy only.
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; "
    "script-src 'self'; "
    "style-src 'self'; "
    "img-src 'self' data: blob:; "
    "connect-src 'self'; "
    "base-uri 'none'; "
    "form-action 'none'; "
    "frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; "
    "trusted-types callstream"
)
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
    "Referrer-Policy": "no-referrer",
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
    etag: str


def _load_assets() -> dict[str, _Asset]:
    """Every file of the page by its name. A request is looked up here; it never reaches the file system."""
    files = (resources.files("dialog_engine.http") / "web").iterdir()
    return {
        file.name: _asset(file.read_bytes(), media_type)
        for file in files
        if (media_type := _MEDIA_TYPES.get(PurePath(file.name).suffix))
    }


def _asset(body: bytes, media_type: str) -> _Asset:
    return _Asset(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def _serve(asset: _Asset, request: Request) -> Response:
    headers = {**_HEADERS, "ETag": asset.etag}
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if known & {asset.etag, "*"}:
        return Response(status_code=304, headers=headers)
    return Response(asset.body, media_type=asset.media_type, headers=headers)
