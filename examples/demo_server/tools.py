"""The tools that change nothing. The model reads their docstrings and field descriptions."""

import zlib
from typing import Annotated

from mcp.server.mcpserver import Image
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field

from examples.demo_server.arithmetic import ArithmeticExpressionError, evaluate
from examples.demo_server.picture import Motif, draw_png


class Weather(BaseModel):
    """Made-up weather, the same for a city every time."""

    city: str
    temperature_celsius: int
    condition: str
    humidity_percent: int
    source: str = "made-up demo data, not a real observation"


def echo(text: Annotated[str, Field(description="The text to give back")]) -> str:
    """Give a text back unchanged."""
    return text


def calculate(
    expression: Annotated[str, Field(description="Numbers, + - * / // % ** and parentheses, such as 17 * 23 + 4")],
) -> int | float:
    """Calculate the value of an arithmetic expression."""
    try:
        return evaluate(expression)
    except ArithmeticExpressionError as problem:
        raise ToolError(f"Cannot calculate: {problem}") from problem


def add(
    a: Annotated[int | float, Field(description="The first number")],
    b: Annotated[int | float, Field(description="The second number")],
) -> int | float:
    """Add two numbers."""
    return a + b


def weather(city: Annotated[str, Field(description="The name of a city", min_length=1, max_length=80)]) -> Weather:
    """Tell the weather in a city. It is made-up demo data: invented, but the same for a city every time."""
    seed = zlib.crc32(city.strip().casefold().encode())
    conditions = ("sunny", "partly cloudy", "overcast", "light rain", "windy", "foggy")
    return Weather(
        city=city,
        temperature_celsius=seed % 40 - 8,
        condition=conditions[seed // 64 % len(conditions)],
        humidity_percent=35 + seed // 1024 % 60,
    )


def draw(
    motif: Annotated[Motif, Field(description="What to draw")] = "sunset",
    size: Annotated[int, Field(description="Width and height in pixels", ge=16, le=512)] = 192,
) -> list[str | Image]:
    """Draw a small picture and return it as a PNG image."""
    return [f"A picture of the motif '{motif}', {size}x{size} pixels.", Image(data=draw_png(motif, size), format="png")]


def fail(
    reason: Annotated[str, Field(description="The text of the error", max_length=500)] = "the demo was asked to fail",
) -> str:
    """Fail on purpose, with a clear error. Useful to see how a failing tool is handled."""
    raise ToolError(f"Failed on purpose: {reason}")


def large_result(
    kilobytes: Annotated[int, Field(description="The size of the text in KiB", ge=1, le=4096)] = 64,
) -> str:
    """Return a text of exactly the wanted size, in numbered lines. Useful to see how large results are handled."""
    size = kilobytes * 1024
    line = "line {:06d} of a large result, which goes on and on and on\n"
    return "".join(line.format(number) for number in range(size // len(line.format(0)) + 1))[:size]
