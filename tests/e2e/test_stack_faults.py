"""A worker dies in the middle of a tool call."""

from tests.marks import promise
from tests.support.stack import Event, Said, running_stack


@promise("a call whose worker was lost says what happens next")
def test_a_worker_that_dies_during_a_call_leaves_it_unknown_when_it_may_not_run_twice() -> None:
    question = "Increment the counter, answering after 20 seconds, with token worker-once"
    with running_stack(quick=True) as stack, stack.asking(question) as events:
        seen: list[Event] = []
        while not seen or seen[-1].data.get("status") != "running":
            seen.append(next(events))
        stack.wait_for_effect("worker-once")
        next(iter(stack.workers.values())).kill()
        stack.workers.clear()
        stack.start_worker()
        said = Said((*seen, *events))
        assert len(stack.effects("worker-once")) == 1
    last = said.steps("demo__increment_counter")[-1]
    assert (last["status"], last["error"]["code"], said.reason) == ("unknown", "OUTCOME_UNKNOWN", "stop")
