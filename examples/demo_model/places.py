"""The cities that the script knows, and their time zones."""

import re
from dataclasses import dataclass

ZONES = {
    "Amsterdam": "Europe/Amsterdam",
    "Athens": "Europe/Athens",
    "Auckland": "Pacific/Auckland",
    "Bangkok": "Asia/Bangkok",
    "Barcelona": "Europe/Madrid",
    "Beijing": "Asia/Shanghai",
    "Berlin": "Europe/Berlin",
    "Bogota": "America/Bogota",
    "Boston": "America/New_York",
    "Brussels": "Europe/Brussels",
    "Bucharest": "Europe/Bucharest",
    "Budapest": "Europe/Budapest",
    "Buenos Aires": "America/Argentina/Buenos_Aires",
    "Cairo": "Africa/Cairo",
    "Cape Town": "Africa/Johannesburg",
    "Chicago": "America/Chicago",
    "Copenhagen": "Europe/Copenhagen",
    "Delhi": "Asia/Kolkata",
    "Denver": "America/Denver",
    "Dubai": "Asia/Dubai",
    "Dublin": "Europe/Dublin",
    "Helsinki": "Europe/Helsinki",
    "Hong Kong": "Asia/Hong_Kong",
    "Honolulu": "Pacific/Honolulu",
    "Istanbul": "Europe/Istanbul",
    "Jakarta": "Asia/Jakarta",
    "Johannesburg": "Africa/Johannesburg",
    "Karachi": "Asia/Karachi",
    "Kathmandu": "Asia/Kathmandu",
    "Kyiv": "Europe/Kyiv",
    "Lagos": "Africa/Lagos",
    "Lima": "America/Lima",
    "Lisbon": "Europe/Lisbon",
    "London": "Europe/London",
    "Los Angeles": "America/Los_Angeles",
    "Madrid": "Europe/Madrid",
    "Manila": "Asia/Manila",
    "Melbourne": "Australia/Melbourne",
    "Mexico City": "America/Mexico_City",
    "Milan": "Europe/Rome",
    "Moscow": "Europe/Moscow",
    "Mumbai": "Asia/Kolkata",
    "Munich": "Europe/Berlin",
    "Nairobi": "Africa/Nairobi",
    "New York": "America/New_York",
    "Oslo": "Europe/Oslo",
    "Paris": "Europe/Paris",
    "Prague": "Europe/Prague",
    "Reykjavik": "Atlantic/Reykjavik",
    "Rio de Janeiro": "America/Sao_Paulo",
    "Rome": "Europe/Rome",
    "San Francisco": "America/Los_Angeles",
    "Santiago": "America/Santiago",
    "Sao Paulo": "America/Sao_Paulo",
    "Seattle": "America/Los_Angeles",
    "Seoul": "Asia/Seoul",
    "Shanghai": "Asia/Shanghai",
    "Singapore": "Asia/Singapore",
    "Stockholm": "Europe/Stockholm",
    "Sydney": "Australia/Sydney",
    "Taipei": "Asia/Taipei",
    "Tel Aviv": "Asia/Jerusalem",
    "Tokyo": "Asia/Tokyo",
    "Toronto": "America/Toronto",
    "UTC": "Etc/UTC",
    "Vancouver": "America/Vancouver",
    "Vienna": "Europe/Vienna",
    "Warsaw": "Europe/Warsaw",
    "Zurich": "Europe/Zurich",
}

_BY_LOWER_NAME = {name.lower(): name for name in ZONES}
_IANA_ZONE = r"[A-Z][A-Za-z]+/[A-Z][A-Za-z_]+(?:/[A-Z][A-Za-z_]+)?"
_CITY = "|".join(map(re.escape, ZONES))
_PLACE = re.compile(
    rf"\b(?:(?P<zone>{_IANA_ZONE})|(?P<city>(?i:{_CITY}))|(?<=\bin )(?P<unknown>[A-Z]\w+(?: [A-Z]\w+)*))\b"
)


@dataclass(frozen=True)
class Place:
    name: str
    zone: str


def places_in(text: str) -> list[Place]:
    """The places that a text names, without duplicates, in order: known cities and IANA zones.

    An unknown name after "in" is used as the name of a zone: the tool reports whether it exists.
    """
    return list(dict.fromkeys(_place(match) for match in _PLACE.finditer(text)))


def _place(match: re.Match[str]) -> Place:
    if name := match["zone"] or match["unknown"]:
        return Place(name, name.replace(" ", "_"))
    name = _BY_LOWER_NAME[match["city"].lower()]
    return Place(name, ZONES[name])
