"""Routes for operators: who uses how much now, and what was used by day."""

import base64
from datetime import UTC, date, datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request, Response

from dialog_engine.consumption import usage as used
from dialog_engine.consumption.subjects import COUNTED, OPEN, Report, first
from dialog_engine.http import described
from dialog_engine.http.problems import ProblemError
from dialog_engine.http.requests import Engine

router = APIRouter(prefix="/operators", tags=["operators"])
Kind = Literal["streams", "running", "turns", "calls", "tokens", "refusals"]
Name = Annotated[str, Query(max_length=10_000, pattern="^[^\\x00]*$")]


@router.get("/subjects")
async def subjects(
    engine: Engine,
    limit: Annotated[int, Query(ge=1, le=200)] = 10,
    by: Annotated[Kind | None, Query(description="Sort by this; otherwise by the largest share of anything.")] = None,
) -> dict[str, Any]:
    """The subjects that use most, at all engines: what is open now, and what was counted in the last hour.

    While Redis is away `complete` is false, and the numbers are those of the engine that answers.
    """
    return as_json(await engine.subjects.report(), limit, by or "")


def as_json(report: Report, limit: int, by: str) -> dict[str, Any]:
    """The report as JSON."""
    uses = [
        {
            "subject": use.subject,
            "now": dict(zip(OPEN, use.now, strict=True)),
            "lastHour": dict(zip(COUNTED, use.hour, strict=True)),
        }
        for use in first(report.uses, limit, by)
    ]
    return {"complete": report.complete, "engines": report.engines, "subjects": uses}


@router.get("/usage", responses=described.content(HTTPStatus.OK, "application/json", "text/csv", schema={}))
async def usage(
    engine: Engine,
    request: Request,
    first_day: Annotated[date | None, Query(alias="from", description="UTC; by default 29 days before `to`.")] = None,
    last_day: Annotated[date | None, Query(alias="to", description="UTC; by default today.")] = None,
    subject: Name = "",
    model: Name = "",
    tool: Annotated[Name, Query(description="The name of a tool, or of a server.")] = "",
    form: Annotated[Literal["json", "csv"], Query(alias="format")] = "json",
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
    after: Annotated[str | None, Query(description="The `nextCursor` of the page before.")] = None,
) -> Response:
    """What was used on each day, by subject, and by model or tool. Turns are counted on the day on which they end.

    `nextCursor` is the `after` of the next page, or null; CSV has the header field `Link` with the next page instead.
    """
    try:
        names = {"subject": subject, "model": model, "tool": tool}
        wanted = used.Wanted.between(first_day, last_day, datetime.now(UTC).date(), **names)
    except ValueError as error:
        raise _invalid("from", str(error)) from None
    rows = await engine.usage.page(wanted, _place(after), limit + 1)
    cursor = _cursor(rows[limit - 1].key) if len(rows) > limit else None
    rows, prices = rows[:limit], engine.prices()
    if form == "csv":
        next_page = request.url.include_query_params(after=cursor).query
        link = {"link": f'<?{next_page}>; rel="next"'} if cursor else {}
        return Response(used.as_csv(rows, prices), media_type="text/csv", headers=link)
    lines = [used.as_json(row, prices) for row in rows]
    page = {"from": used.iso(wanted.first), "to": used.iso(wanted.last), "usage": lines, "nextCursor": cursor}
    return Response(msgspec.json.encode(page), media_type="application/json")


def _cursor(key: used.Key) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).decode().rstrip("=")


def _place(after: str | None) -> used.Key | None:
    if after is None:
        return None
    try:
        data = base64.b64decode(after + "=" * (-len(after) % 4), b"-_", validate=True)
        return msgspec.json.decode(data, type=used.Key)
    except (ValueError, RecursionError):
        raise _invalid("after", "after must be the nextCursor of the page before") from None


def _invalid(field: str, message: str) -> ProblemError:
    return ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "INVALID_REQUEST", message, field=field)
