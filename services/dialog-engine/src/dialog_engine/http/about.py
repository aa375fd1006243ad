"""What the engine offers to the sender: its tools, its models and its version."""

from typing import Any

from fastapi import APIRouter, Depends

from dialog_engine.http import views
from dialog_engine.http.requests import Engine, Sender, Subject, large_answer

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
    }


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
