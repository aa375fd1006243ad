"""Which tests `make test` runs, and which only `make test-all`.

A test is *exhaustive*, and left to `make test-all`, when it is listed here or runs on another kind of Redis than the
embedded one. Of the listed files `make test` runs what is in `SMOKE`. Every promise of `tests/requirements.py` has a
test that `make test` runs, except those of the tests in `PROVED_BY_TEST_ALL`.

Tests are named from this folder, as `file`, `file::function` or `file::function[parameters]`.
"""

EXHAUSTIVE = {
    "integration/test_notifications.py::test_a_redis_that_runs_full_is_a_notification_while_nothing_else_is": "an alert"
    " that waits for a minute",
    "chaos/test_guard_mutations.py": "scenarios that are run again, each without one guard",
    "chaos/test_proxy.py": "the harness itself",
    "chaos/test_redis_pair.py": "the harness itself",
    "chaos/test_scenarios.py": "real processes fail for many seconds",
    "contract/test_ledger_guards.py": "tests of the ledger that are run again, each without one guard",
    "contract/test_postgres_server.py": "the harness itself",
    "e2e/test_backup.py": "real processes that are stopped and started again",
    "e2e/test_chat_page.py": "needs a browser",
    "e2e/test_nginx.py": "needs nginx",
    "e2e/test_page_approvals.py": "needs a browser",
    "e2e/test_page_attacks.py": "needs a browser",
    "e2e/test_page_comfort.py": "needs a browser",
    "e2e/test_page_connections.py": "needs a browser",
    "e2e/test_page_modules.py": "needs a browser",
    "e2e/test_page_safety.py": "needs a browser",
    "e2e/test_page_sign_in.py": "needs a browser",
    "e2e/test_stack_approvals.py": "needs a browser and real processes",
    "e2e/test_stack_faults.py": "real processes fail for many seconds",
    "e2e/test_stack_many_tools.py": "real processes",
    "e2e/test_stack_missing_parts.py": "real processes fail for many seconds",
    "e2e/test_stack_others.py": "providers and MCP servers of others, with real processes",
    "e2e/test_stack_page.py": "needs a browser and real processes",
    "e2e/test_stack_replicas.py": "integration/test_replicas.py has it without processes",
    "e2e/test_stack_resume.py": "real processes that are killed",
    "e2e/test_stack_streams.py": "needs a browser and real processes",
    "e2e/test_upgrades.py": "the previous release as real processes",
    "fuzz/test_rules.py": "the fuzzers themselves",
    "integration/test_call_benchmarks.py": "benchmarks, to see that they run",
    "integration/test_commands.py": "needs Docker",
    "integration/test_compose.py": "needs Docker",
    "integration/test_compose_scale.py": "needs Docker",
    "integration/test_dead_letter_commands.py::test_a_process_asks_at_its_terminal": "slow, and proved twice",
    "integration/test_demo_server.py": "the example's own tools",
    "integration/test_engine_start.py"
    "::test_a_row_without_a_route_stops_the_start_and_its_type_is_named": "slow, and proved twice",
    "integration/test_fair_shares.py"
    "::test_a_new_subject_waits_behind_one_window_of_each_other": "slow, and proved twice",
    "integration/test_make_run.py"
    "::test_nothing_outlives_a_killed_supervisor_and_the_next_run_takes_over": "slow, and proved twice",
    "integration/test_mcp_http.py"
    "::test_a_real_server_over_http_killed_during_a_call_and_restarted": "slow, and proved twice",
    "integration/test_mcp_limits.py::test_progress_extends_the_idle_timeout[http]": "the same over another transport",
    "integration/test_mcp_real_servers.py": "MCP servers of others",
    "integration/test_monitoring.py": "needs Prometheus and real processes",
    "integration/test_readiness.py": "real processes that wait for each other",
    "integration/test_redis_access.py": "Sentinels, TLS and rights, with real processes",
    "integration/test_relay_benchmark.py": "a benchmark, to see that it runs",
    "unit/test_prompt_corpus.py"
    "::test_a_reply_gives_the_same_events_wherever_it_is_cut_into_pieces": "slow, and proved twice",
}
"""Files and tests that only `make test-all` runs, and why."""

SMOKE = {
    "e2e/test_stack_faults.py::test_a_worker_that_dies_during_a_call_leaves_it_unknown_when_it_may_not_run_twice",
    "integration/test_demo_server.py::test_the_annotations_tell_what_each_tool_does",
    "integration/test_readiness.py::test_of_a_worker_that_appears_all_servers_are_seen_with_their_tools_or_none",
    "integration/test_redis_access.py::test_a_port_for_tls_is_distinguished_from_one_without",
    "contract/test_ledger_guards.py::test_each_guard_is_in_its_script_once",
    "chaos/test_guard_mutations.py::test_every_guard_is_where_its_mutation_expects_it",
    "chaos/test_scenarios.py::test_calls_survive_killed_workers",
    "e2e/test_chat_page.py::test_a_tool_card_goes_from_pending_over_running_with_progress_to_succeeded",
    "e2e/test_chat_page.py::test_after_a_stop_each_card_says_what_became_of_its_call",
    "e2e/test_chat_page.py::test_an_answer_appears_while_it_is_written",
    "e2e/test_chat_page.py::test_with_one_model_there_is_nothing_to_pick",
    "e2e/test_stack_replicas.py::test_a_call_that_runs_is_waited_for_by_the_other_and_runs_once",
    "e2e/test_stack_replicas.py::test_a_turn_is_stopped_and_a_question_decided_at_the_engine_that_does_not_run_it",
    "e2e/test_stack_replicas.py::test_an_engine_that_dies_in_the_middle_of_a_text_is_followed_by_the_other",
    "e2e/test_stack_streams.py::test_a_tool_call_outlives_the_engine_and_the_page_shows_it_once[kill]",
    "e2e/test_page_comfort.py::test_everything_can_be_done_with_the_keyboard",
    "e2e/test_page_connections.py::test_a_reload_during_an_answer_follows_it_again",
    "e2e/test_page_connections.py::test_a_dropped_stream_resumes_where_it_stopped",
    "e2e/test_page_connections.py::test_the_page_says_that_no_tools_are_available",
    "e2e/test_page_connections.py::test_two_tabs_follow_one_turn_and_either_can_stop_it",
}
"""Tests of those files that `make test` runs all the same; one case of a test is named with its parameters."""

PROVED_BY_TEST_ALL = {
    "chaos/test_scenarios.py::test_a_second_fault_within_seconds_doubles_no_call": "real processes fail twice",
    "chaos/test_scenarios.py::test_rolling_restarts_leave_nothing_behind": "only long use shows what is left behind",
    "contract/test_ledger_guards.py::test_without_the_guard_its_test_fails": "runs tests once for each guard",
    "e2e/test_upgrades.py::test_an_old_and_a_new_part_run_tools_report_progress_and_failures_and_stop_calls": "the last"
    " release as real processes",
    "e2e/test_upgrades.py::test_a_migration_of_postgresql_goes_forward_while_an_old_engine_runs_a_turn": "the same",
    "integration/test_compose_scale.py::test_a_killed_engine_and_a_killed_worker_lose_nothing": "needs Docker",
    "integration/test_monitoring.py::test_every_panel_shows_something_under_a_small_load": "needs Prometheus",
    "e2e/test_nginx.py::test_events_are_not_buffered_by_nginx": "needs nginx",
    "integration/test_compose.py::test_a_question_is_answered_with_two_tool_calls": "needs Docker",
    "integration/test_relay_benchmark.py::test_relaying_costs_a_tenth_of_what_it_costs_naively": "a benchmark",
}
"""The tests whose promises only `make test-all` proves, and why. Every other promise is proved by `make test` too."""


def is_exhaustive(test: str) -> bool:
    """Whether `make test` leaves out this test, named as `file::function` or `file::function[parameters]`."""
    function, _, _ = test.partition("[")
    file, _, _ = function.partition("::")
    listed = {file, function, test} & EXHAUSTIVE.keys()
    return bool(listed) and not {test, function} & SMOKE
