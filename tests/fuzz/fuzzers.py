"""Every fuzzer by its name."""

from tests.fuzz.loop import Fuzzer
from tests.fuzz.markdown import markdown
from tests.fuzz.replies import replies
from tests.fuzz.tags import tags

FUZZERS: dict[str, Fuzzer] = {
    "tags": tags,
    "replies": replies,
    "markdown": markdown,
}
