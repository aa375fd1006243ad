"""What the engine offers to the sender: its tools, its models and its version."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Depends

from dialog_engine.http import described, views
from dialog_engine.http.problems import ProblemError
from dialog_engine.http.requests import Engine, Sender, Subject, large_answer
from dialog_engine.http.services import PLAIN, Services

router = APIRouter(prefix="/v1", tags=["sessions"])


@router.get("/tools", dependencies=[Depends(large_answer)])
async def tools(engine: Engine, sender: Sender) -> dict[str, Any]:
    """The tools that the model is offered for the sender, and those that were left out, with the reason."""
    directory = engine.tools.visible_to(sender.subject, sender.roles)
    catalog = directory.tools()
    await engine.exposure.prepare(catalog)
    return {
        "mcp": "enabled" if engine.about.mcp_enabled else "disabled",
        "exposure": views.exposure(engine.exposure, catalog),
        "servers": [views.server(view) for view in directory.servers],
    }


@router.get("/models")
async def models(engine: Engine, _: Subject) -> dict[str, Any]:
    """The models and tool modes that a message may ask for."""
    choices = engine.choices
    return {
        "models": [
            {"name": name, "label": label, "default": name == choices.default}
            for name, label in choices.labels().items()
        ],
        "toolModes": choices.tool_modes,
        "object": "list",
        "data": [_as_object(name + plain) for name in choices.models for plain in ("", PLAIN)],
    }


@router.get("/models/{name:path}", responses=described.NOT_FOUND)
async def model(name: str, engine: Engine, _: Subject) -> dict[str, Any]:
    """One model, as clients of OpenAI's API ask for it."""
    found = engine.choices.named(name)
    if found is None:
        raise model_not_found(name, engine.choices.models)
    return _as_object(found[0] + PLAIN if found[1] else found[0])


def model_not_found(name: str, models: Sequence[str]) -> ProblemError:
    """There is no such model."""
    detail = f"there is no model {name[:100]!r}: the models are {', '.join(models)}"
    return ProblemError(HTTPStatus.NOT_FOUND, "MODEL_NOT_FOUND", detail, field="model")


def model_named(name: str, engine: Services) -> tuple[str, bool]:
    """The model with this name or label, and whether it is asked for without tools. Raises ProblemError."""
    if (found := engine.choices.named(name)) is None:
        raise model_not_found(name, engine.choices.models)
    return found


def _as_object(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": name.partition(":")[0]}


@router.get("/about")
async def about(engine: Engine, sender: Sender) -> dict[str, Any]:
    """The engine's version, its model and the sender's tools."""
    about = engine.about
    catalog = engine.tools.visible_to(sender.subject, sender.roles).tools()
    await engine.exposure.prepare(catalog)
    return {
        "name": "Callstream",
        "version": about.version,
        "model": {"id": about.model, "label": about.model_label, "scripted": about.scripted},
        "mcp": {
            "enabled": about.mcp_enabled,
            "tools": len(catalog),
            "exposure": engine.exposure.in_force(catalog).mode,
        },
    }
