"""How soon an answer reaches its server: `python -m benchmarks.questions [--questions 200]`.

Questions of an MCP server over HTTP, answered one after the other through the HTTP API of an engine, with workers,
Redis, PostgreSQL and the server as processes. Printed: how many milliseconds after the beginning of the answer's
request the server begins the next round; and after how many seconds it does where the only worker was killed before the
answer, and another one is started behind it.
"""

import argparse
import statistics
import time
from contextlib import closing

from tests.support.asking_stack import SECONDS, TOOL, AskingStack, answer, asking_stack, question_of
from tests.support.replicas import QUICK_ENGINE, Replica
from tests.support.waiting import wait_until_blocking

DEATHS = 5


def taken(stack: AskingStack, engine: Replica, city: str, *, dies: bool = False) -> float:
    """The milliseconds from an answer to the next round. With `dies` the only worker is killed directly before."""
    _, turn_id = engine.begin(f'call {TOOL} {{"city": "{city}"}}')
    question = question_of(engine.http, turn_id)
    if dies:
        [(port, process)] = stack.workers.items()
        process.kill()
        del stack.workers[port]
    began = time.time()
    assert answer(engine.http, turn_id, question) == 200
    if dies:
        stack.start_worker(wait=False)
    wait_until_blocking(lambda: stack.answered(city), SECONDS, what="the next round")
    return (float(stack.answered(city)[0].rpartition(" ")[2]) - began) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.questions", description=__doc__)
    parser.add_argument("--questions", type=int, default=200, help="how many are answered (200)")
    options = parser.parse_args()
    with (
        asking_stack(database="postgres", token_delay_ms=1) as stack,
        closing(Replica(stack, "one", program=QUICK_ENGINE)) as engine,
    ):
        engine.wait_for_tools()
        measured = [taken(stack, engine, f"City{n}") for n in range(options.questions)]
        shown = ", ".join(f"{name} {value:.0f}" for name, value in _spread(measured).items())
        print(f"answer to next round, {options.questions} questions: {shown} ms")
        after = [taken(stack, engine, f"Death{n}", dies=True) for n in range(DEATHS)]
        print(f"after the death of the only worker, {DEATHS} times: longest {max(after) / 1000:.1f} s")


def _spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"p50": statistics.median(ordered), "p99": ordered[int(len(ordered) * 0.99)], "longest": ordered[-1]}


if __name__ == "__main__":
    main()
