"""How the APIs of others are served."""

from typing import Literal

from pydantic import Field

from callstream_runtime.settings_sources import Subject


class FacadeSettings(Subject):
    """Chat Completions and Models, for clients that are made for OpenAI."""

    chat_tool_steps: Literal["off", "reasoning", "details"] = Field(
        "reasoning",
        description="What Chat Completions say of tool calls, and of the model's reasoning, as reasoning_content;"
        " details: with arguments and results. A request may say something else.",
    )
    chat_tasks_prefix: str = Field(
        "### Task:",
        description="Beginning of the requests that a chat page makes for itself, such as for titles: they get no tools"
        " and are not listed. Empty: there are none.",
    )
