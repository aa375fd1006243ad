"""Routes for operators: who uses how much now, and what was used by day."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from dialog_engine.http.services import Engine
from dialog_engine.subjects import COUNTED, OPEN, Report, first

router = APIRouter(prefix="/operators", tags=["operators"])
Kind = Literal["streams", "running", "turns", "calls", "tokens", "refusals"]


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
