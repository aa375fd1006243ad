"""Takes large results from workers, at the operations port."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response

from dialog_engine.http.problems import ProblemError
from dialog_engine.http.requests import Engine
from plugins_contract.large_results import PATH

router = APIRouter(include_in_schema=False)
Digest = Annotated[str, Header(alias="x-digest", pattern="^[0-9a-f]{64}$")]


@router.put(PATH + "{correlation_id}", status_code=HTTPStatus.NO_CONTENT)
async def keep(
    correlation_id: str,
    engine: Engine,
    request: Request,
    fence: Annotated[int, Header(alias="x-fence", ge=1, lt=1 << 63)],
    digest: Digest,
    signature: Annotated[str, Header(alias="x-signature", max_length=200)],
) -> Response:
    """Keep the outcome of a call until its reply names it. Nothing of a body is read that no worker has signed."""
    results = engine.large_results
    if not results.are_signed(correlation_id, fence, digest, signature):
        detail = "the request is not signed by a key of REQUEST_KEYS_FILE"
        raise ProblemError(HTTPStatus.FORBIDDEN, "NOT_SIGNED", detail, field="X-Signature")
    async with results.places:
        try:
            kept = await results.take(correlation_id, fence, digest, await request.body())
        except ValueError as error:
            raise ProblemError(
                HTTPStatus.UNPROCESSABLE_ENTITY, "INVALID_RESULT", f"the body is refused: {error}"
            ) from None
    if not kept:
        raise ProblemError(HTTPStatus.CONFLICT, "CALL_ENDED", "no call waits for this result")
    return Response(status_code=HTTPStatus.NO_CONTENT)
