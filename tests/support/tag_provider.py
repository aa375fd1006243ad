"""`python -m tests.support.tag_provider PORT`: an OpenAI-compatible server of a model without function calling.

It refuses requests with tools in the words of Ollama. Otherwise its model reads the system message, calls the first
tool it finds there whose name ends in `add`, twice, by tags; then it invents results and goes on, unless a stop
sequence ends its reply. Real results it repeats. A reply comes in pieces of five characters.
"""

import json
import re
from typing import Any

from tests.support.json_provider import JsonProvider, chunk_of

REFUSAL = {"error": {"message": "registry.ollama.ai/library/tiny:latest does not support tools", "type": "api_error"}}
BLOCK = '<tool_use>\n<name>{}</name>\n<arguments>\n{{"a": {}, "b": 2}}\n</arguments>\n</tool_use>\n'
INVENTED = "<tool_use_result>\n<name>add</name>\n<result>1000</result>\n</tool_use_result>\nThe sum is 1000."


class Provider(JsonProvider):
    def reply(self, request: Any) -> None:
        if "tools" in request:
            self.answer(400, "application/json", json.dumps(REFUSAL).encode())
            return
        reply = _reply(request["messages"])
        for stop in request.get("stop", []):
            reply = reply.partition(stop)[0]
        chunks = [chunk_of({"content": reply[at : at + 5]}) for at in range(0, len(reply), 5)]
        body = b"\n\n".join([*chunks, chunk_of({}, finish_reason="stop"), b"data: [DONE]\n\n"])
        self.answer(200, "text/event-stream", body)


def _reply(messages: list[dict[str, Any]]) -> str:
    if results := re.findall(r"<result>(.*?)</result>", messages[-1]["content"], re.DOTALL):
        return f"The sums: {', '.join(results)}"
    adder = re.search(r"<name>(\w*add)</name>", messages[0]["content"])
    if adder is None:
        return "There is nothing to add with."
    blocks = "".join(BLOCK.format(adder[1], number) for number in (1, 40))
    return f"I would write `<tool_use>`, so:\n\n{blocks}{INVENTED}"


if __name__ == "__main__":
    Provider.serve()
