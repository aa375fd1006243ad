"""Which tests `make test` runs, and which only `make test-all`.

A test is *exhaustive*, and left to `make test-all`, when it is listed here or runs on another kind of Redis than the
embedded one. Of the listed files `make test` runs what is in `SMOKE`. Every promise of `tests/requirements.py` has a
test that `make test` runs, unless it is about what only the files in `PROVED_BY_TEST_ALL` have.

Tests are named from this folder, as `file` or `file::function`.
"""

EXHAUSTIVE = {
    "chaos/test_scenarios.py": "real processes fail for many seconds",
    "chaos/test_guard_mutations.py": "scenarios that are run again, each without one guard",
    "chaos/test_proxy.py": "the harness itself",
    "contract/test_ledger_guards.py": "tests of the ledger that are run again, each without one guard",
    "e2e/test_chat_page.py": "needs a browser",
    "e2e/test_nginx.py": "needs nginx",
    "e2e/test_page_approvals.py": "needs a browser",
    "e2e/test_page_comfort.py": "needs a browser",
    "e2e/test_page_connections.py": "needs a browser",
    "e2e/test_page_modules.py": "needs a browser",
    "e2e/test_page_safety.py": "needs a browser",
    "e2e/test_stack_page.py": "needs a browser and real processes",
    "e2e/test_upgrades.py": "the previous release as real processes",
    "fuzz/test_tags.py": "the short form of `make fuzz`",
    "integration/test_compose.py": "needs Docker",
    "integration/test_compose_scale.py": "needs Docker",
    "integration/test_mcp_real_servers.py": "MCP servers of others",
    "integration/test_monitoring.py": "needs Prometheus and real processes",
    "integration/test_relay_benchmark.py": "a benchmark, to see that it runs",
}
"""Files and tests that only `make test-all` runs, and why."""

SMOKE = {
    "chaos/test_scenarios.py::test_calls_survive_killed_workers",
    "chaos/test_scenarios.py::test_calls_survive_a_killed_redis[sqlite]",
    "chaos/test_scenarios.py::test_turns_survive_an_engine_that_is_killed_at_any_step[sqlite]",
    "e2e/test_chat_page.py::test_a_tool_card_goes_from_pending_over_running_with_progress_to_succeeded",
    "e2e/test_chat_page.py::test_after_a_stop_each_card_says_what_became_of_its_call",
    "e2e/test_chat_page.py::test_an_answer_appears_while_it_is_written",
    "e2e/test_chat_page.py::test_with_one_model_there_is_nothing_to_pick",
    "e2e/test_page_comfort.py::test_everything_can_be_done_with_the_keyboard",
    "e2e/test_page_connections.py::test_a_reload_during_an_answer_follows_it_again",
    "e2e/test_page_connections.py::test_a_dropped_stream_resumes_where_it_stopped",
    "e2e/test_page_connections.py::test_the_page_says_that_no_tools_are_available",
}
"""Tests of those files that `make test` runs all the same; one case of a test is named with its parameters."""

PROVED_BY_TEST_ALL = {
    "chaos/test_scenarios.py",
    "contract/test_ledger_guards.py",
    "e2e/test_nginx.py",
    "integration/test_compose.py",
    "integration/test_compose_scale.py",
    "integration/test_relay_benchmark.py",
}
"""Files whose promises may have no test elsewhere: those that are about these very faults, programs and libraries."""


def is_exhaustive(test: str) -> bool:
    """Whether `make test` leaves out this test, named as `file::function` or `file::function[parameters]`."""
    function, _, _ = test.partition("[")
    file, _, _ = function.partition("::")
    listed = file in EXHAUSTIVE or function in EXHAUSTIVE
    return listed and not {test, function} & SMOKE
