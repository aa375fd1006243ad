"""The time in cities: now, or a time of day converted from one city to others."""

import re
from datetime import datetime
from typing import cast

from examples.demo_model.conversation import Outcome
from examples.demo_model.places import Place, places_in
from examples.demo_model.results import parse
from examples.demo_model.skills.skill import Skill, Uses, quote
from examples.demo_model.toolbox import Toolbox

_NOW = re.compile(r"\b(what(?:'s| is) the time|what time|current time|time (?:is it )?in|time now)\b", re.IGNORECASE)
_CLOCK = re.compile(r"\b(?P<hour>[01]?\d|2[0-3])(?::(?P<minute>[0-5]\d))?\s*(?P<half>am|pm)?\b", re.IGNORECASE)


def _ask_time(question: str, tools: Toolbox) -> Uses:
    places = places_in(question)
    if len(places) > 1 and (clock := clock_time(question)):
        source, *targets = places
        return [
            tools.use(
                ("convert_time",),
                {"source_timezone": source.zone, "time": clock, "target_timezone": target.zone},
            )
            for target in targets
        ]
    if not _NOW.search(question):
        return []
    zones = dict.fromkeys(place.zone for place in places or [Place("UTC", "Etc/UTC")])
    return [tools.use(("get_current_time", "current_time"), {"timezone": zone}) for zone in zones]


def clock_time(question: str) -> str | None:
    """A time of day that the text names (`14:30`, `9 pm`), as HH:MM."""
    for match in _CLOCK.finditer(question):
        if match["minute"] or match["half"]:
            hour, half = int(match["hour"]), (match["half"] or "").lower()
            hour = hour % 12 + 12 * (half == "pm") if half else hour
            return f"{hour:02}:{match['minute'] or '00'}"
    return None


def _tell_time(outcome: Outcome, question: str) -> str:
    match parse(outcome.text):
        case {"timezone": str(), "datetime": str()} as now:
            return f"In {_moment(cast('dict[str, str]', now), question)}."
        case {"source": {"datetime": str()} as source, "target": {"datetime": str()} as target}:
            there = _moment(cast("dict[str, str]", target), question)
            return f"When in {_moment(cast('dict[str, str]', source), question)}, then in {there}."
        case _:
            return quote(outcome)


def _moment(result: dict[str, str], question: str) -> str:
    try:
        at = datetime.fromisoformat(result["datetime"])
    except ValueError:
        return f"`{result.get('timezone')}` it is {result['datetime']}"
    zone = result.get("timezone", "")
    names = [place.name for place in places_in(question) if place.zone == zone] or [zone]
    return f"**{' and '.join(names)}** it is **{at:%H:%M}** on {at:%A, %d %B %Y} ({zone}{_offset(at)})"


def _offset(at: datetime) -> str:
    """`, UTC+09:00`, or nothing if the time has no offset. (From Python 3.12 on, `%:z` would be enough.)"""
    digits = f"{at:%z}"
    return f", UTC{digits[:3]}:{digits[3:5]}" if digits else ""


CLOCK = Skill("a clock", ("current_time", "convert_time"), _ask_time, _tell_time)
