"""Every fuzzer by its name."""

from tests.fuzz.api import api
from tests.fuzz.http import http
from tests.fuzz.loop import Fuzzer
from tests.fuzz.markdown import markdown
from tests.fuzz.replies import replies
from tests.fuzz.requests import requests
from tests.fuzz.results import results
from tests.fuzz.tags import tags

FUZZERS: dict[str, Fuzzer] = {
    "api": api,
    "results": results,
    "tags": tags,
    "replies": replies,
    "requests": requests,
    "http": http,
    "markdown": markdown,
}
