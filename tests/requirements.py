"""What Callstream promises, and the test that holds each promise, or the words "not yet".

Tests are named from this folder. `tests/repo/test_requirements.py` fails when one of them is not there.
"""

NOT_YET = "not yet"

GROUND: dict[str, tuple[str, ...] | str] = {
    # One command
    "make run needs no key, no Docker and no root, and a question is answered through two tool calls": (
        "integration/test_make_run.py::test_a_question_is_answered_with_two_tool_calls_and_ctrl_c_ends_every_process",
    ),
    "Ctrl-C on make run ends every process it started": (
        "integration/test_make_run.py::test_a_question_is_answered_with_two_tool_calls_and_ctrl_c_ends_every_process",
        "integration/test_make_run.py::test_nothing_outlives_a_killed_supervisor_and_the_next_run_takes_over",
    ),
    "make run answers those who have a key or a token where the environment names a way to sign in": (
        "integration/test_make_run.py::test_with_a_way_to_sign_in_it_runs_and_answers_those_who_have_a_credential",
    ),
    "a second make run finds the data of the first": (
        "integration/test_make_run.py::test_the_next_run_finds_the_conversations_of_the_last",
    ),
    "PORT, REDIS_URL, OPENAI_*, MCP_CONFIG and MCP_SERVER_ENDPOINT are honoured": (
        "unit/test_local_stack.py::test_what_the_user_brings_is_not_started",
        "unit/test_local_stack.py::test_host_and_port_are_the_users",
    ),
    "a question that comes the moment the engine is ready finds every tool": (
        "integration/test_readiness.py::test_a_question_that_comes_the_moment_the_engine_is_ready_finds_every_tool",
        "integration/test_readiness.py::test_of_a_worker_that_appears_all_servers_are_seen_with_their_tools_or_none",
        "integration/test_make_run.py::test_it_says_that_it_is_running_when_every_server_was_listed_or_failed_and_not_before",
    ),
    "the engine waits for tools at its start only, and for a bounded time": (
        "unit/test_start_gate.py::test_once_open_it_stays_open",
        "integration/test_readiness.py::test_a_server_that_does_not_start_is_named_and_holds_nothing_up",
        "integration/test_readiness.py::test_a_server_that_takes_too_long_is_named_and_waited_for_no_longer",
        "integration/test_readiness.py::test_without_a_worker_the_engine_waits_a_moment_and_is_degraded_then",
        "integration/test_readiness.py::test_without_redis_the_engine_waits_a_moment_and_is_degraded_then",
    ),
    "make run says which of its programs ended and why": (
        "integration/test_local_restarts.py::test_when_a_program_ends_too_often_it_is_named_and_the_others_end_too",
        "integration/test_make_run.py::test_a_taken_port_is_named",
    ),
    "make run starts a program again that ended": (
        "integration/test_make_run.py::test_a_program_that_ends_is_named_and_started_again",
    ),
    "the same product runs in containers": (
        "integration/test_compose.py::test_a_question_is_answered_with_two_tool_calls",
    ),
    # Demo model and demo server
    "the demo model makes two parallel calls for two cities": (
        "unit/test_demo_model_plan.py::test_a_question_becomes_the_calls_it_asks_for",
        "e2e/test_stack_chat.py::test_two_cities_are_asked_about_at_once_and_both_times_are_in_the_answer",
    ),
    "the demo model picks only tools that it is given": (
        "unit/test_demo_model_plan.py::test_a_tool_that_is_not_offered_is_never_called",
    ),
    "the demo model is labelled as scripted wherever a person meets it": (
        "unit/test_local_stack.py::test_the_demo_model_is_called_a_script",
        "e2e/test_chat_page.py::test_the_empty_page_says_that_the_model_is_scripted_and_offers_things_to_try",
    ),
    "the demo server has a tool of every kind, annotated truthfully": (
        "integration/test_demo_server.py::test_the_annotations_tell_what_each_tool_does",
        "integration/test_demo_server.py::test_every_increment_is_one_line_in_the_effect_log",
    ),
    # The engine
    "text deltas and tool calls come in order, and a stream of calls alone is no error": (
        "integration/test_llm_openai_client.py::test_an_answer_of_calls_alone_is_no_error",
    ),
    "a stopped reply is counted: what was reported, the rest as an estimate that is marked": (
        "unit/test_turn_stops.py::test_a_reply_that_is_stopped_or_breaks_off_is_counted",
        "unit/test_turn_stops.py::test_a_request_that_fails_before_its_reply_begins_costs_nothing",
        "integration/test_llm_answers.py::"
        "test_the_cost_of_an_answer_that_is_left_is_what_was_reported_and_the_pieces_since",
        "integration/test_attacks_consumption.py::test_the_tokens_of_a_stopped_reply_are_estimated_and_used_up",
        "contract/ports/test_storage_ports.py::test_the_next_life_finds_the_turns_that_run_and_no_others",
        "integration/test_storage.py::test_a_restart_finds_everything",
        "e2e/test_chat_page.py::test_an_estimate_of_the_cost_is_marked",
    ),
    "an answer is never empty: the model is asked once more, then the turn ends with an error that says so": (
        "unit/test_pipeline.py::test_a_reply_with_nothing_for_the_user_is_asked_for_once_more",
        "unit/test_pipeline.py::test_a_model_that_says_nothing_twice_ends_the_turn_with_an_error_and_both_are_counted",
        "unit/test_pipeline.py::test_a_limit_or_a_filter_explains_a_reply_of_nothing",
        "unit/test_turn_recovery.py::test_a_turn_that_is_taken_up_after_an_empty_reply_gets_its_answer_all_the_same",
    ),
    "of a question that is not committed nothing is sent and nothing is run": (
        "unit/test_turns.py::test_the_model_is_asked_during_the_commit_of_a_new_session_and_its_reply_used_after_it",
        "unit/test_turns.py::test_a_turn_that_cannot_be_committed_does_not_begin_and_closes_the_model_stream",
        "unit/test_turns.py::test_no_tool_runs_for_a_question_that_cannot_be_committed",
        "contract/ports/test_storage_ports.py::test_a_turn_that_was_not_committed_has_no_rounds",
    ),
    "OpenAI, Anthropic, Azure OpenAI, Amazon Bedrock and Vertex AI answer by settings": (
        "integration/test_llm_providers.py::test_account_and_header_fields_of_the_environment_are_sent",
        "integration/test_llm_providers.py::test_azure_is_asked_for_a_deployment_with_its_key_and_version",
        "integration/test_llm_providers.py::test_bedrock_is_sent_a_signed_request_and_its_event_stream_is_read",
        "integration/test_llm_providers.py::test_vertex_is_asked_for_a_model_of_a_project_with_a_token_of_its_account",
        "integration/test_llm_providers.py::test_a_missing_package_is_named_at_the_start",
    ),
    "a provider is asked again before the first byte, within bounds": (
        "integration/test_llm_answers.py::test_before_the_first_byte_it_is_tried_again",
        "integration/test_llm_answers.py::test_a_provider_that_says_to_come_back_in_a_minute_is_not_waited_for",
        "integration/test_llm_answers.py::test_retries_do_not_prolong_the_wait_for_the_first_token",
    ),
    "keys go to the provider's own origin only, and into no log and no error": (
        "integration/test_llm_openai_client.py::test_a_redirect_is_reported_and_nothing_is_sent_to_another_server",
        "integration/test_llm_connections.py::test_no_secret_is_logged_or_shown",
    ),
    "a kept connection that the provider just closed is no failure": (
        "integration/test_llm_connections.py::test_a_kept_connection_that_the_server_just_closed_is_no_failure",
    ),
    "proxies of the environment and the system's certificates are used": (
        "integration/test_llm_connections.py::test_a_tunnel_through_a_proxy_hides_everything_from_it",
        "integration/test_llm_connections.py::test_a_proxy_of_the_environment_is_asked_and_given_its_password",
        "integration/test_llm_connections.py::test_certificates_are_checked_against_the_systems_store",
    ),
    "an enhanced client has the interface of the client it wraps": (
        "unit/test_pipeline.py::test_an_enhanced_client_can_be_enhanced_again",
    ),
    "the depth of a turn lives in its context": (
        "unit/test_pipeline.py::test_two_turns_go_through_the_same_objects_at_once_and_do_not_mix",
    ),
    "after the last round the model answers without tools": (
        "story/test_05_rounds.py::test_after_the_last_round_the_model_answers_without_calls",
        "e2e/test_stack_chat.py::test_a_model_that_never_ends_is_stopped_by_the_limit_of_rounds",
    ),
    "tools of the engine's own are answered without a worker, and shown and stored like any other": (
        "unit/test_local_tools.py::test_a_local_tool_is_offered_beside_the_others_and_answered_without_a_worker",
        "contract/ports/test_storage_ports.py::test_who_answered_a_call_that_was_never_requested_is_kept",
    ),
    "parallel calls run at once": (
        "story/test_03_parallel_calls.py::test_calls_of_one_reply_run_in_parallel_and_end_in_any_order",
    ),
    "a tool's failure goes to the model and the turn goes on": (
        "story/test_04_a_failing_tool.py::test_a_failure_is_a_result_for_the_model_and_the_turn_continues",
    ),
    "message, calls and outbox rows are committed in one transaction": (
        "integration/test_storage.py::test_a_round_is_committed_with_its_outbox_rows_or_not_at_all",
        "story/test_02_a_tool_call.py::test_the_message_with_the_call_is_stored_before_the_call_begins",
    ),
    "commits on SQLite are durable and grouped under load": (
        "integration/test_storage.py::test_a_commit_that_was_answered_survives_a_power_cut_by_its_settings",
        "integration/test_storage.py::test_writers_that_come_together_share_commits",
        "integration/test_storage.py::test_with_many_calls_in_flight_a_commit_waits_for_the_units_that_come_soon",
    ),
    "a SQLite file is used by one engine at a time": (
        "integration/test_storage.py::test_a_second_engine_does_not_get_the_file_of_the_first",
        "integration/test_engine_start.py::test_a_second_engine_on_the_same_file_is_refused_and_the_first_goes_on",
    ),
    "units of one turn that come together are in an order, and one that meets a deadlock is run again": (
        "integration/test_postgres.py::test_units_of_one_turn_that_come_together_are_in_an_order_and_none_is_lost",
        "integration/test_postgres.py::test_a_deadlock_is_resolved_by_running_the_unit_again",
    ),
    "the relay wakes on a commit": ("integration/test_relay.py::test_a_commit_wakes_the_relay_without_any_polling",),
    "the relay survives Redis being away": (
        "integration/test_relay.py::test_without_redis_rows_wait_and_are_published_when_it_is_back",
    ),
    "one bad outbox row blocks no other": (
        "integration/test_relay.py::test_a_row_that_cannot_be_read_is_answered_and_postponed_and_holds_up_no_other",
    ),
    "an event type without a route fails at the start": (
        "integration/test_relay.py::test_every_type_needs_a_route_and_what_is_missing_is_named",
    ),
    "with ENABLE_MCP=false every call is answered DISABLED and the turn goes on": (
        "story/test_08_no_tools.py::test_without_tools_a_call_is_refused_and_the_turn_continues",
    ),
    "one mailbox reader serves every waiting call on constant connections": (
        "integration/test_mailbox.py::test_two_thousand_calls_wait_on_the_connections_of_one",
    ),
    "the reply of a call is stored once, in its response channel, as long as the ledger": (
        "contract/test_ledger_complete.py::test_the_outcome_is_stored_once_in_the_channel_and_the_mailbox_is_notified",
        "contract/test_ledger_complete.py::test_everything_of_a_finished_call_has_a_lifetime",
        "contract/test_ledger_channel.py::test_scripts_that_answer_a_finished_call_read_its_channel",
    ),
    "each entry of a response channel names its call and the provider's call": (
        "contract/test_ledger_channel.py::test_every_entry_says_whose_it_is_and_of_what_kind",
        "contract/test_ledger_channel.py::test_who_ends_a_call_without_running_it_says_so_too",
    ),
    "a finished call that is asked for again is answered again": (
        "contract/test_ledger_channel.py::test_a_finished_call_that_is_asked_for_again_is_answered_again_and_not_run",
        "integration/test_other_producers.py"
        "::test_a_finished_call_that_is_asked_for_again_is_answered_again_and_not_run_again",
    ),
    "a request of another producer is run, or answered with what is wrong, and never with an untrue LOST": (
        "integration/test_other_producers.py"
        "::test_a_minimal_request_from_before_the_worker_is_run_and_answered_in_its_channel",
        "integration/test_other_producers.py::test_what_is_wrong_is_said_in_the_channel_with_the_field_and_the_fix",
        "integration/test_other_producers.py::test_a_request_that_a_worker_read_and_did_not_begin_is_run_by_the_next",
    ),
    "the examples of docs/wire.md are what is seen on the wire": (
        "integration/test_other_producers.py::test_every_example_of_the_document_is_what_was_seen",
    ),
    "a row of the outbox that was not offered is found, whatever its number": (
        "integration/test_relay.py::test_a_row_that_becomes_visible_late_and_is_not_offered_is_found",
    ),
    "an answer whose notification was lost is found": (
        "integration/test_mailbox.py::test_a_lost_notification_is_recovered_by_the_sweep",
    ),
    # The worker
    "stream and group are made where there are none": (
        "integration/test_worker_consumer.py::test_stream_and_group_are_made_where_there_is_none",
    ),
    "a worker takes no more than it has slots": (
        "integration/test_worker_consumer.py::test_no_more_is_taken_than_there_are_slots_by_reading_and_taking_over_together",
    ),
    "a lost MCP server is connected again": (
        "integration/test_mcp_http.py::test_a_server_that_comes_up_later_is_connected_then",
        "integration/test_mcp_stdio.py::test_a_child_killed_during_a_call_leaves_its_outcome_open_and_is_started_again",
    ),
    "mcpServers files of other clients are read": (
        "unit/test_mcp_servers_file.py::test_all_spellings_in_use_are_read",
    ),
    "tool names are stable, at most 64 characters and never collide": (
        "unit/test_contract_names.py::test_every_name_is_one_that_providers_accept",
        "unit/test_contract_names.py::test_two_tools_never_share_a_name",
    ),
    "results of every content type are kept, and cut to head and tail": (
        "unit/test_mcp_content.py::test_each_kind_of_content_is_kept",
        "integration/test_result_kinds.py::test_each_kind_of_content_comes_through_a_worker",
        "unit/test_mcp_content.py::test_long_text_keeps_its_head_and_its_tail",
    ),
    "progress reaches the user": ("e2e/test_stack_chat.py::test_a_slow_job_reports_its_progress",),
    "SIGTERM drains a worker": (
        "integration/test_worker_processes.py::test_a_worker_that_is_terminated_finishes_its_calls_and_takes_no_new_one",
        "integration/test_compose.py::test_workers_stop_in_good_order_when_asked",
    ),
    # The page
    "the page shows text as it comes and one card per call": (
        "e2e/test_chat_page.py::test_an_answer_appears_while_it_is_written",
        "e2e/test_chat_page.py::test_a_tool_card_goes_from_pending_over_running_with_progress_to_succeeded",
    ),
    "the page loads nothing from other hosts, under a strict policy": (
        "unit/test_page.py::test_the_page_has_a_content_security_policy_for_its_own_files_only",
        "e2e/test_chat_page.py::test_an_image_from_elsewhere_is_never_fetched",
    ),
    "Markdown is safe": (
        "unit/test_markdown.py::test_hostile_markdown_renders_to_safe_html",
        "e2e/test_page_safety.py::test_attacks_in_an_answer_stay_text",
    ),
    "the page works by keyboard, screen reader, in the dark and on a phone": (
        "e2e/test_page_comfort.py::test_everything_can_be_done_with_the_keyboard",
        "e2e/test_page_comfort.py::test_a_screen_reader_gets_announcements_and_not_each_word",
        "e2e/test_page_comfort.py::test_text_has_enough_contrast",
        "e2e/test_page_comfort.py::test_nothing_is_wider_than_the_screen",
    ),
    # Bad input
    "the catalog says why a stdio server that writes other text than MCP is not ready": (
        "integration/test_mcp_stdio.py::test_the_catalog_says_what_a_server_that_never_speaks_mcp_writes_instead",
    ),
    "SIGHUP drains as SIGTERM does, and no text reaches the terminal through a log": (
        "integration/test_worker_processes.py::test_a_worker_that_is_terminated_finishes_its_calls_and_takes_no_new_one",
        "integration/test_engine_start.py::test_an_open_stream_ends_well_at_a_shutdown_and_its_turn_goes_on_at_the_next_start",
        "unit/test_log_lines.py::test_no_text_can_forge_a_line_for_people_or_reach_the_terminal",
    ),
    "an unknown query parameter is refused and named, and HEAD and Allow are right": (
        "integration/test_http_problems.py::test_a_query_parameter_that_is_not_known_is_refused_and_named",
        "integration/test_http_problems.py::test_head_is_answered_as_get_is_without_a_body",
        "integration/test_http_problems.py::test_a_method_that_is_not_allowed_is_a_problem_document",
    ),
    "U+0000 is refused in requests, replaced in what models and tools write, and never an outage of the database": (
        "integration/test_nul.py::test_an_id_with_it_is_of_nothing",
        "integration/test_nul.py::test_a_field_with_it_is_refused_and_named",
        "integration/test_nul.py::test_what_models_and_tools_write_is_stored_sent_and_shown_with_a_replacement",
        "integration/test_oidc.py::test_a_subject_that_no_database_can_store_is_nobody",
        "integration/test_postgres.py::test_a_text_that_it_cannot_store_is_a_defect_of_the_engine_and_no_outage",
    ),
    "a call that no worker ran says how long it took, and a refused call of a known tool names its server": (
        "integration/test_overload.py::test_calls_past_the_limit_are_refused_at_once_and_each_is_answered",
        "integration/test_approvals.py::test_a_refusal_reaches_the_model_with_its_reason",
        "unit/test_exposure_turns.py::test_every_refusal_of_a_known_tool_names_its_server_and_its_title",
    ),
    "a turn says how many calls it had, also after a restart": (
        "story/test_07_a_restart.py::test_finished_calls_are_not_repeated_and_running_ones_are_awaited",
        "contract/ports/test_storage_ports.py::test_the_next_life_finds_the_turns_that_run_and_no_others",
    ),
    "a reset names its cause": (
        "story/test_07_a_restart.py::test_an_interrupted_message_is_made_again_and_the_user_gets_a_reset",
        "unit/test_ownership.py::test_a_dead_engine_is_adopted_after_its_lease_whatever_the_clock_of_the_database_does",
        "unit/test_chat_events.py::test_every_status_and_every_reason_is_on_the_protocol_page",
    ),
    "the list of sessions, read page by page, has every session once, however many changed in the same millisecond": (
        "integration/test_http_pages.py::test_sessions_of_one_millisecond_are_all_listed_once_page_by_page",
        "integration/test_http_pages.py::test_a_time_lists_what_changed_before_it_and_anything_else_is_refused",
    ),
    "a bad setting is named at the start": (
        "integration/test_make_run.py::test_a_setting_that_a_service_refuses_is_shown",
        "unit/test_worker_settings.py::test_all_bad_values_are_named_at_once",
    ),
    "an mcp.json that is broken in part breaks that part": (
        "unit/test_mcp_servers_file.py::test_a_mistake_breaks_its_own_server_only_and_is_named",
    ),
    "a tool with an invalid schema is left out, and the reason reported": (
        "unit/test_mcp_listing.py::test_a_tool_that_would_spoil_a_request_is_quarantined",
        "unit/test_quarantine.py::test_the_request_is_repeated_without_the_tool_which_is_not_offered_again",
        "unit/test_quarantine.py::test_a_refused_tool_is_removed_from_search_answers_for_that_model_only",
        "unit/test_quarantine.py::test_the_directory_shows_refused_tools_with_model_and_reason",
        "integration/test_engine_and_providers.py::test_what_one_model_refuses_another_is_offered_all_the_same",
        "e2e/test_stack_chat.py::test_what_cannot_be_used_says_why_and_the_rest_works",
    ),
    "arguments that do not fit are not sent, and the model gets an error": (
        "story/test_04_a_failing_tool.py::test_a_call_that_cannot_run_is_answered_at_once_with_an_error",
    ),
    "every setting is in .env.example": ("repo/test_settings.py::test_the_example_has_every_setting_and_nothing_else",),
}

RELIABILITY: dict[str, tuple[str, ...] | str] = {
    "I1 every committed call reaches exactly one terminal state": (
        "contract/test_ledger_machine.py::test_no_order_of_events_breaks_the_ledger",
    ),
    "I2 only the current fence completes": ("contract/test_ledger_complete.py::test_only_the_current_fence_completes",),
    "I3 one terminal response per correlation id": (
        "contract/test_ledger_complete.py::test_a_second_completion_changes_nothing",
    ),
    "I4 what is unknown is never run again": (
        "contract/test_ledger_start.py::test_a_once_call_that_was_started_is_never_run_again",
    ),
    "a repeatable call is never unknown: past its deadline it is a timeout, for the user, the model and the history": (
        "unit/test_losses.py::test_a_call_that_is_given_up_ends_by_its_class_and_by_what_is_known",
        "integration/test_lost_calls.py::"
        "test_a_deadline_ends_each_call_by_its_class_for_the_user_the_model_and_the_history",
    ),
    "I5 a request stays until its terminal state is written": (
        "contract/test_ledger_complete.py::test_the_request_goes_with_its_call",
        "contract/test_ledger_machine.py::test_no_order_of_events_breaks_the_ledger",
    ),
    "I6 requests are never trimmed by length": ("contract/test_ledger_enqueue.py::test_the_stream_is_never_trimmed",),
    "I7 a request that vanished is answered LOST": (
        "integration/test_lost_calls.py::test_a_request_that_vanished_is_answered_lost",
        "contract/test_ledger_losses.py::test_a_call_whose_request_was_deleted_has_vanished",
        "integration/test_lost_calls.py::test_a_call_whose_request_and_worker_are_gone_is_answered",
    ),
    "what Redis lost of a running call is put back by its worker": (
        "contract/test_ledger_losses.py::test_who_runs_a_call_puts_back_what_redis_lost_of_it",
        "contract/test_ledger_losses.py::test_a_start_that_a_failover_lost_is_put_back",
        "integration/test_lost_calls.py::test_after_a_flush_a_call_runs_on_at_its_living_worker",
        "integration/test_lost_calls.py::test_redis_comes_back_empty_and_the_lease_is_there_at_once",
    ),
    "after a flush every call is answered, runs on, or is queued again, and nothing runs twice that must not": (
        "integration/test_lost_calls.py::"
        "test_with_the_times_of_the_product_every_call_is_answered_or_runs_on_within_15_seconds",
        "integration/test_lost_calls.py::test_after_a_flush_a_once_call_that_waited_is_unknown_and_never_runs",
        "integration/test_lost_calls.py::test_after_a_flush_a_repeatable_call_is_queued_again_and_runs",
        "integration/test_lost_calls.py::test_an_engine_that_was_down_during_a_flush_ends_its_calls_with_the_right_outcome",
        "contract/test_ledger_machine.py::test_no_order_of_events_breaks_the_ledger",
    ),
    "a call that was published and lost is never said to have not begun": (
        "integration/test_lost_calls.py::"
        "test_a_published_call_that_is_stopped_after_a_flush_is_not_said_to_have_never_begun",
        "integration/test_lost_calls.py::"
        "test_a_published_call_whose_deadline_passes_after_a_flush_is_not_said_to_have_never_run",
    ),
    "without its group nothing is lost, and what runs stays with its worker": (
        "contract/test_ledger_losses.py::test_a_call_whose_group_was_lost_will_be_delivered_again",
        "contract/test_ledger_losses.py::test_a_running_call_that_a_new_group_delivers_goes_back_to_its_worker",
    ),
    "I8 an outbox row lives until its call is answered": (
        "contract/ports/test_storage_ports.py"
        "::test_a_request_waits_in_the_outbox_until_it_is_published_and_goes_when_it_is_answered",
    ),
    "I9 deadlines are kept by the clock of Redis": (
        "contract/test_ledger_start.py::test_past_its_deadline_a_call_is_answered_and_not_run",
        "unit/test_contract_clock.py::test_between_samples_it_runs_on_by_the_monotonic_clock",
    ),
    "I10 the execution class never changes": (
        "contract/test_ledger_start.py::test_the_execution_class_is_the_one_of_the_ledger",
    ),
    "every guard of the ledger is watched by a test": (
        "contract/test_ledger_guards.py::test_without_the_guard_its_test_fails",
    ),
    "the same request twice is one call; other arguments are a conflict": (
        "contract/test_ledger_enqueue.py::test_the_same_request_again_is_answered_with_the_first_entry",
        "contract/test_ledger_enqueue.py::test_other_arguments_under_the_same_id_are_a_conflict",
        "integration/test_worker_consumer.py::test_the_same_request_twice_in_the_stream_runs_once",
    ),
    "the execution class comes from a trusted server's annotations only": (
        "unit/test_mcp_listing.py::test_a_tool_may_run_twice_only_by_a_trusted_word",
    ),
    "only what is safe is retried, with back-off and Retry-After": (
        "unit/test_worker_decisions.py::test_only_what_provably_did_not_run_or_may_run_again_is_retried",
        "unit/test_worker_decisions.py::test_a_retry_after_of_the_server_is_kept",
        "integration/test_mcp_retries.py::test_a_server_that_is_too_busy_is_asked_again_when_it_said",
        "integration/test_mcp_retries.py::test_a_session_that_was_lost_before_the_call_costs_nothing",
        "integration/test_mcp_retries.py::test_after_an_open_end_only_what_may_run_twice_is_run_again",
        "integration/test_mcp_retries.py::test_no_more_retries_are_made_than_are_set",
    ),
    "leases are renewed from a thread, and fenced": (
        "unit/test_worker_leases.py::test_a_lease_is_renewed_from_a_thread_of_its_own_for_as_long_as_it_is_held",
        "contract/test_ledger_lease.py::test_a_stalled_worker_that_wakes_up_cannot_steal_the_entry_back",
    ),
    "leases are kept while a worker drains": (
        "integration/test_worker_processes.py::test_a_drain_that_is_longer_than_a_lease_keeps_its_leases",
    ),
    "a blocked loop loses its leases": (
        "unit/test_worker_leases.py::test_however_many_leases_there_are_they_are_renewed_in_one_round_trip",
        "unit/test_worker_leases.py::test_a_lease_that_cannot_be_renewed_hides_no_other",
        "unit/test_worker_leases.py::test_a_loop_that_stands_still_gets_no_renewals_and_then_loses_its_leases",
    ),
    "nothing is taken over right after an outage or a clock step": (
        "integration/test_worker_consumer.py::test_nothing_is_taken_over_before_redis_has_been_steady_for_a_while",
        "unit/test_redis_watch.py::test_after_a_step_of_the_clock_it_starts_again",
        "unit/test_redis_watch.py::test_after_a_restart_between_two_answers_it_starts_again",
        "integration/test_worker_consumer.py::"
        "test_after_an_outage_of_its_own_a_consumer_waits_though_the_watch_saw_nothing",
        "chaos/test_scenarios.py::test_a_step_of_the_clock_of_redis_moves_no_call_to_another_worker",
    ),
    "our own pending entries are found again": (
        "integration/test_worker_consumer.py::test_a_delivery_whose_reply_was_lost_is_found_in_our_own_pending_list",
    ),
    "consumers leave the group without taking work along": (
        "contract/test_ledger_lease.py::test_a_consumer_that_holds_entries_is_not_retired",
        "integration/test_worker_consumer.py::test_a_consumer_with_nothing_in_hand_leaves_the_group",
        "contract/test_ledger_tidy.py::test_a_thousand_workers_that_were_killed_are_taken_out_together",
        "contract/test_ledger_tidy.py::test_a_consumer_that_holds_something_is_never_taken_out",
    ),
    "a group that vanished is made again and nothing is passed over": (
        "integration/test_worker_consumer.py::test_a_group_that_vanished_is_made_again_and_nothing_is_passed_over",
    ),
    "a call that another incarnation of Redis may have had is not published as if it were new": (
        "integration/test_relay.py"
        "::test_a_call_is_published_unless_it_may_have_been_offered_to_another_incarnation_of_redis",
        "contract/test_ledger_servers.py"
        "::test_a_call_that_was_offered_to_another_incarnation_and_is_not_known_is_not_queued",
    ),
    "a once call that an earlier server of Redis may have started is not started at the next one": (
        "contract/test_ledger_servers.py::test_a_once_call_of_an_earlier_server_waits_until_every_worker_has_reported",
        "contract/test_ledger_servers.py::test_what_a_worker_ended_last_is_ended_at_a_server_that_lost_it",
        "unit/test_worker_leases.py::test_at_another_server_a_worker_writes_all_that_it_knows_before_it_reports",
    ),
    "a stop that Redis lost is written again": (
        "contract/test_ledger_servers.py"
        "::test_a_once_call_of_an_earlier_server_waits_until_engines_had_the_time_to_write_their_stops",
        "integration/test_executor.py::test_a_stop_that_redis_lost_is_written_again_to_the_next_server",
    ),
    "a commit that a killed PostgreSQL lost is not taken for one that it has": (
        "integration/test_postgres.py"
        "::test_a_commit_that_a_killed_server_lost_is_not_taken_for_another_one_that_got_its_id",
    ),
    "a call given back is free at once and does not count": (
        "contract/test_ledger_lease.py::test_a_released_call_can_be_claimed_at_once",
        "contract/test_ledger_lease.py::test_a_released_once_call_runs_as_if_it_were_new",
    ),
    "progress resets the idle limit, never the total": (
        "integration/test_mcp_limits.py::test_progress_extends_the_idle_timeout",
        "integration/test_mcp_limits.py::test_progress_does_not_extend_the_total_timeout",
    ),
    "a late result is recorded and never spoken": (
        "integration/test_executor.py::"
        "test_a_silent_worker_times_the_call_out_and_its_late_result_is_recorded_but_not_shown",
    ),
    "past the backlog limit calls are refused with OVERLOADED": (
        "contract/test_ledger_enqueue.py::test_past_the_backlog_limit_nothing_is_written",
        "integration/test_relay.py::test_a_full_backlog_refuses_and_writes_nothing",
        "integration/test_overload.py::test_calls_past_the_limit_are_refused_at_once_and_each_is_answered",
    ),
    "a call that was refused never runs, and is not taken for lost": (
        "integration/test_relay.py::test_a_call_that_was_answered_as_refused_never_runs",
        "integration/test_relay.py::test_a_refusal_that_no_turn_receives_is_retried",
    ),
    "an MCP server that talks nonsense, or too much, harms no other and no call but its own": (
        "integration/test_mcp_stdio.py::test_bytes_that_are_no_text_on_standard_output_do_no_harm",
        "integration/test_mcp_stdio.py::test_a_text_that_was_cut_in_the_middle_of_a_character_is_an_answer",
        "integration/test_mcp_stdio.py::test_an_answer_that_is_not_valid_ends_its_call_at_once_and_no_other",
        "integration/test_mcp_stdio.py::"
        "test_a_line_that_is_too_long_to_be_held_ends_the_connection_and_the_next_one_is_as_good",
        "integration/test_mcp_stdio.py::test_progress_that_cannot_travel_is_made_to_fit_or_left_out",
        "integration/test_mcp_stdio.py::test_a_listing_that_takes_long_to_check_holds_up_nothing_else",
    ),
    "concurrency is bounded per server": (
        "integration/test_mcp_stdio.py::test_no_more_calls_run_at_once_than_configured",
    ),
    "subjects get fair shares of one stream": (
        "integration/test_fair_shares.py::test_a_new_subject_waits_behind_one_window_of_each_other",
        "integration/test_fair_shares.py::test_with_several_engines_one_window_of_each_is_ahead_at_most",
        "unit/test_fair_scheduler.py::test_in_any_order_of_events_a_subject_keeps_to_its_window_and_its_order",
    ),
    "the mistakes of other producers have a ticket of their own, and neither page anybody nor count as dead calls": (
        "integration/test_other_producers.py::test_the_mistakes_of_a_producer_are_counted_apart_from_calls_that_died_and_logged_with_the_subject",
        "unit/test_alerts.py::test_each_scenario_fires_these_alerts_and_no_others",
    ),
    "an alert arrives at the receiver with a link that opens, and so does the watchdog": (
        "integration/test_notifications.py::test_the_watchdog_arrives_and_its_link_opens_at_its_entry",
        "integration/test_notifications.py::test_a_redis_that_runs_full_is_a_notification_while_nothing_else_is",
        "unit/test_alerts.py::test_in_kubernetes_the_links_lead_to_the_address_of_the_component",
    ),
    "one subject's slow calls are refused to that subject alone, and a server that hangs is still found": (
        "unit/test_mcp_breaker.py::test_late_calls_of_one_subject_do_not_open_a_server_and_those_of_two_do",
        "integration/test_mcp_breaker.py::test_98_late_calls_of_one_user_refuse_that_user_this_tool_and_nobody_else",
        "integration/test_mcp_breaker.py::test_calls_of_several_users_that_hang_open_it",
        "integration/test_mcp_breaker.py::test_a_server_that_hangs_for_one_user_is_found_out_by_its_owner",
    ),
    "a call that ends while it is held back never reaches the stream": (
        "integration/test_fair_shares.py::test_a_call_that_ends_while_it_is_held_back_never_reaches_the_stream",
    ),
    "a circuit breaker per MCP server, its state visible": (
        "unit/test_mcp_breaker.py::test_each_fact_leads_to_its_state",
        "integration/test_mcp_breaker.py::test_several_refusals_in_a_row_open_the_circuit",
        "integration/test_mcp_breaker.py::test_an_open_circuit_is_logged_once_and_shown_in_health",
        "integration/test_catalog_reader.py::test_when_a_server_in_trouble_is_tried_again_is_known",
    ),
    "a dead letter answers its caller too": (
        "contract/test_ledger_complete.py::test_a_dead_letter_answers_its_caller_too",
        "integration/test_worker_consumer.py::test_the_caller_of_a_request_that_is_too_new_for_all_workers_is_answered_at_its_deadline",
    ),
    "operators list, show, requeue and discard dead letters": (
        "contract/test_dead_letters.py::test_of_many_operators_one_requeues",
        "contract/test_dead_letters.py::test_a_requeue_whose_answer_was_lost_may_be_asked_for_again",
        "contract/test_dead_letters.py::test_a_dead_letter_has_the_attempts_and_the_answer_to_the_caller",
        "integration/test_dead_letter_commands.py::test_an_exhausted_call_of_a_real_worker_is_shown_requeued_and_runs_once",
        "integration/test_dead_letter_commands.py::test_of_two_processes_that_requeue_at_once_one_does",
        "integration/test_dead_letter_commands.py::test_a_call_that_may_have_run_is_refused_until_one_says_that_one_knows",
        "integration/test_dead_letter_commands.py::test_at_a_terminal_it_asks_and_only_yes_is_yes",
    ),
    "writes are not retried blindly, connections are few": (
        "contract/test_connections.py::test_a_write_whose_connection_broke_is_not_sent_again",
        "contract/test_connections.py::test_many_callers_at_once_share_few_connections",
    ),
    "TLS, an ACL user and Sentinel can be configured": (
        "integration/test_redis_access.py::test_a_call_completes_over_tls_with_certificates_of_both_sides",
        "integration/test_redis_access.py::test_the_acl_users_of_the_runbook_are_all_that_the_services_need",
        "integration/test_redis_access.py::test_after_a_failover_both_services_find_the_new_master_and_calls_complete",
        "unit/test_redis_settings.py::test_a_wrong_value_names_its_variable_and_what_to_do_and_shows_no_secret",
        "unit/test_redis_settings.py::test_a_password_is_shown_nowhere",
    ),
    "both services start without Redis, say why it does not answer, and connect when it does": (
        "integration/test_redis_access.py::test_both_services_start_serve_and_connect_later_when_redis_is_absent",
        "integration/test_redis_access.py::test_a_wrong_password_is_an_outage_that_ends_when_it_is_put_right",
        "integration/test_redis_access.py::test_sentinels_that_know_no_master_are_an_outage_that_ends",
        "integration/test_redis_access.py::test_a_port_for_tls_is_distinguished_from_one_without",
    ),
    "a full disk under SQLite refuses before anything is accepted, and heals": (
        "integration/test_storage.py::test_a_full_disk_refuses_and_heals",
        "chaos/test_scenarios.py::test_a_full_disk_is_survived",
    ),
    "a database that does not fit is refused at the start with the reason, and without the password": (
        "integration/test_postgres.py::test_an_invalid_url_is_refused_without_its_password",
        "integration/test_postgres.py::test_a_refused_login_says_what_was_refused",
        "integration/test_postgres.py::test_the_error_of_a_user_without_rights_names_the_grants",
        "integration/test_postgres.py::test_a_database_that_may_lose_acknowledged_commits_is_refused",
        "integration/test_postgres.py::test_a_server_that_does_not_sync_is_refused",
        "integration/test_postgres.py::test_a_read_only_standby_is_refused",
        "integration/test_postgres.py::test_an_old_server_is_refused",
    ),
    "while PostgreSQL is away every request has its 503 within a second, and what it refused is not written": (
        "integration/test_postgres_outage.py::"
        "test_requests_get_503_within_a_second_when_postgresql_is_killed_stopped_or_frozen",
        "integration/test_postgres.py::test_a_unit_that_its_client_gave_up_before_the_commit_is_never_committed",
        "integration/test_postgres.py::test_a_slow_statement_of_a_server_that_answers_others_is_not_given_up",
    ),
    "PostgreSQL away, silent, locked or full is an error in bounded time, and heals without a restart": (
        "integration/test_postgres.py::test_a_killed_server_is_an_error_in_time_and_nothing_is_lost",
        "integration/test_postgres.py::test_a_server_that_was_restarted_while_nothing_happened_costs_no_error",
        "integration/test_postgres.py::test_a_server_that_is_killed_in_the_middle_of_a_unit_leaves_nothing_of_it",
        "integration/test_postgres.py::test_all_callers_during_an_outage_fail_in_time_together",
        "integration/test_postgres.py::test_a_held_lock_is_an_error_in_time",
        "integration/test_postgres.py::test_a_server_without_a_free_connection_is_an_error_in_time_and_heals",
        "integration/test_postgres.py::test_a_connection_to_a_server_that_became_a_standby_is_given_up",
        "integration/test_postgres.py::test_a_deadlock_is_resolved_by_running_the_unit_again",
    ),
    "a COMMIT whose connection is lost is neither reported wrongly nor run twice": (
        "integration/test_postgres.py::test_a_commit_whose_answer_is_lost_is_found_to_be_committed",
        "integration/test_postgres.py::test_a_commit_that_never_arrived_is_found_not_to_be_committed",
        "integration/test_postgres.py::test_a_commit_that_cannot_be_resolved_is_reported_as_unknown",
        "integration/test_postgres.py::test_a_server_that_is_killed_after_a_commit_is_asked_when_it_is_back",
    ),
    "a file of the last release is taken over whole or not at all, and one of a later release is refused": (
        "integration/test_storage_migration.py"
        "::test_what_a_file_of_the_first_release_holds_is_there_and_its_turn_goes_on",
        "integration/test_storage_migration.py::test_a_file_that_was_migrated_has_the_shape_of_a_new_one",
        "integration/test_storage_migration.py"
        "::test_a_migration_that_is_cut_off_leaves_the_old_file_whole_and_the_next_start_does_it",
        "integration/test_storage_migration.py"
        "::test_a_file_of_a_later_release_is_refused_with_both_releases_and_left_as_it_is",
        "integration/test_storage_migration.py::test_a_database_of_a_later_or_too_old_a_release_is_refused",
    ),
    "a SQLite file is moved into a PostgreSQL whole, also after a kill, and never are both in use": (
        "integration/test_move.py::test_every_row_is_moved_and_the_keys_go_on_behind_them",
        "integration/test_move.py"
        "::test_an_engine_goes_on_in_the_postgresql_with_sealed_texts_and_none_starts_on_the_file",
        "integration/test_move.py::test_a_move_that_is_killed_goes_on_where_it_was_and_meanwhile_no_engine_starts",
        "integration/test_move.py::test_a_row_that_was_changed_meanwhile_is_found_and_the_move_does_not_end",
    ),
    "sessions beyond the retention of their subject's class are erased whole, once, and not while they are used": (
        "integration/test_retention.py::test_each_class_of_subjects_has_its_days_and_the_command_shows_them_first",
        "integration/test_retention.py::test_of_two_engines_that_pass_at_once_each_session_is_erased_by_one",
        "integration/test_retention.py::test_a_message_that_comes_while_a_pass_decides_keeps_its_session",
        "integration/test_retention.py::test_an_engine_erases_what_redis_has_of_an_old_session_too_and_counts_it",
    ),
    "engines that open an empty database at the same time make its tables once": (
        "integration/test_storage_migration.py"
        "::test_engines_that_open_an_empty_database_at_the_same_time_make_its_tables_once",
        "integration/test_storage_migration.py"
        "::test_a_cut_off_creation_of_the_tables_leaves_nothing_and_the_next_start_does_it",
    ),
    "a turn of a dead engine is adopted by exactly one other": (
        "contract/test_engine_leases.py"
        "::test_each_turn_is_adopted_by_exactly_one_of_several_engines_that_adopt_at_once",
        "contract/test_engine_leases.py::test_the_outbox_rows_of_an_adopted_turn_move_with_it",
        "contract/ports/test_engines_port.py::test_a_turn_that_a_removed_engine_began_is_adopted",
    ),
    "a fenced turn that holds its commit costs the engine no other turn": (
        "unit/test_ownership.py::test_fenced_turns_that_hold_their_commits_do_not_keep_the_lease_from_being_renewed",
    ),
    "many rows are written in one round trip while the row of their turn is locked": (
        "integration/test_postgres.py::test_many_rows_of_one_statement_cost_one_round_trip",
    ),
    "an engine that lost a turn writes nothing of it, not even at the moment of the adoption": (
        "contract/test_engine_leases.py::test_a_fenced_engine_cannot_write",
        "contract/test_engine_leases.py::test_a_turn_that_is_adopted_while_its_owner_writes_is_written_by_one_of_them",
    ),
    "no clock of a database or a machine makes an engine seem dead or alive": (
        "unit/test_ownership.py::test_an_engine_that_renews_is_never_adopted_whatever_the_clock_of_the_database_does",
        "unit/test_ownership.py::test_a_dead_engine_is_adopted_after_its_lease_whatever_the_clock_of_the_database_does",
        "unit/test_ownership.py::test_time_without_the_database_does_not_count",
    ),
    "a full disk under Redis is an outage that heals": (
        "unit/test_redis_watch.py::test_a_server_that_takes_no_writes_is_not_steady_though_it_tells_the_time",
        "chaos/test_scenarios.py::test_a_full_disk_is_survived",
    ),
    "workers are killed at random: nothing lost, nothing doubled": (
        "integration/test_worker_processes.py::test_what_a_killed_worker_had_in_hand_ends_as_its_execution_class_allows",
        "chaos/test_scenarios.py::test_calls_survive_killed_workers",
    ),
    "stopped workers wake up and complete nothing that is not theirs": (
        "integration/test_worker_processes.py::test_a_worker_that_was_stopped_past_its_lease_neither_completes_nor_steals_back",
        "chaos/test_scenarios.py::test_a_stopped_worker_completes_no_call_that_another_took_over",
    ),
    "Redis is killed again and again: nothing lost, no live lease taken": (
        "e2e/test_stack_faults.py::test_a_redis_that_dies_during_a_call_and_comes_back_loses_nothing",
        "unit/test_worker_leases.py::test_an_outage_shorter_than_that_loses_nothing",
        "chaos/test_scenarios.py::test_calls_survive_a_killed_redis",
    ),
    "FLUSHALL: every open call is terminal within 15 seconds": (
        "integration/test_lost_calls.py::test_with_the_times_of_the_product_every_call_is_answered_or_runs_on_within_15_seconds",
        "chaos/test_scenarios.py::test_every_open_call_ends_when_redis_loses_everything",
    ),
    "two faults within seconds cost an `unknown` at most: nothing is doubled, without an end or told differently": (
        "chaos/test_scenarios.py::test_a_second_fault_within_seconds_doubles_no_call",
    ),
    "PostgreSQL is killed again and again: nothing accepted is lost, no living engine's turn is taken": (
        "integration/test_replicas.py::test_without_the_database_nothing_is_accepted_until_it_is_back",
        "unit/test_ownership.py::test_time_without_the_database_does_not_count",
        "chaos/test_scenarios.py::test_accepted_turns_survive_a_killed_postgresql",
    ),
    "one reply in a hundred of Redis is lost: no duplicate entry, no lost delivery": (
        "integration/test_relay.py::test_a_lost_mark_repeats_the_publication_and_enqueues_nothing_twice",
        "integration/test_worker_consumer.py::test_a_delivery_whose_reply_was_lost_is_found_in_our_own_pending_list",
        "chaos/test_scenarios.py::test_lost_replies_of_redis_neither_double_nor_lose_a_call",
    ),
    "a black-holed connection is noticed": (
        "contract/test_connections.py::test_every_kind_of_client_notices_within_8_seconds_that_its_server_is_silent",
        "chaos/test_scenarios.py::test_silent_connections_to_redis_are_noticed_and_nothing_waits_forever",
    ),
    "an MCP server killed mid-call leaves exactly the crash table": (
        "e2e/test_stack_faults.py::test_an_mcp_server_that_dies_during_a_call_leaves_it_unknown_and_comes_back",
        "unit/test_worker_handler.py::test_a_call_that_may_not_run_twice_is_not_repeated_after_a_lost_connection",
        "chaos/test_scenarios.py::test_killed_mcp_servers_leave_what_the_crash_table_says",
    ),
    "10,000 calls wait on at most 8 connections": (
        "integration/test_mailbox.py::test_two_thousand_calls_wait_on_the_connections_of_one",
        "chaos/test_scenarios.py::test_thousands_of_calls_wait_on_few_connections",
    ),
    "a soak with rolling restarts leaves nothing behind": (
        "chaos/test_scenarios.py::test_rolling_restarts_leave_nothing_behind",
    ),
    "what comes twice is done once; a lost notification delays an answer and loses none": (
        "integration/test_worker_consumer.py::test_the_same_request_twice_in_the_stream_runs_once",
        "chaos/test_scenarios.py::test_duplicate_requests_run_once_and_lost_notifications_are_made_up_for",
    ),
    "a run in which a fault struck nothing is not taken for one that held": (
        "chaos/test_invariants.py::test_a_fault_that_struck_nothing_is_found",
    ),
    "a checker of every call finds out what must not be, and breaks when a guard is taken out": (
        "chaos/test_invariants.py::test_what_must_not_be_is_found",
        "chaos/test_observer.py::test_what_must_not_be_is_found",
        "chaos/test_fault_pairs.py::test_what_must_not_be_after_two_faults_is_found",
        "chaos/test_guard_mutations.py::test_without_the_guard_the_run_fails",
    ),
}

TURNS: dict[str, tuple[str, ...] | str] = {
    "a turn ends without a client": ("story/test_01_a_turn.py::test_a_turn_runs_to_its_end_without_a_client",),
    "the turn log is in Redis, fenced by epoch, and any replica serves it": (
        "integration/test_turn_logs.py::test_a_stale_owner_cannot_write_into_a_log_that_was_taken_over",
        "integration/test_turn_logs.py::test_clients_here_and_elsewhere_get_the_same_entries_under_the_same_ids",
        "integration/test_turn_logs.py::test_however_many_follow_logs_that_grow_elsewhere_each_is_read_once",
    ),
    "a log that Redis lost is stored again by its owner": (
        "integration/test_turn_logs.py::"
        "test_a_log_that_redis_lost_is_stored_again_from_its_beginning_and_readers_elsewhere_miss_nothing",
        "integration/test_turn_logs.py::test_a_log_is_stored_again_without_new_events",
    ),
    "a cursor that is too old gets a reset with a snapshot": (
        "unit/test_turn_events.py::test_a_gap_in_the_log_of_a_running_turn_is_filled_with_a_reset",
        "unit/test_turn_events.py::test_a_reader_of_a_part_gets_a_reset_and_then_nothing_more",
    ),
    "one id per entry, given after deltas are coalesced, and the first delta goes at once": (
        "unit/test_live_log.py::test_the_first_delta_goes_at_once_and_those_that_follow_are_one_entry",
        "unit/test_live_log.py::test_any_other_event_comes_at_once_and_after_the_deltas_that_wait",
        "contract/ports/test_log_ports.py::"
        "test_here_and_elsewhere_the_ids_are_the_same_and_after_each_comes_exactly_what_was_missed",
    ),
    "ids never go back: what died with an engine is a reset in the next epoch": (
        "integration/test_turn_log_faults.py::test_ids_only_rise_and_the_text_is_complete_whatever_fails",
        "integration/test_turn_logs.py::test_a_reader_ahead_of_a_dead_engines_log_waits_for_the_next_epoch",
        "unit/test_turn_events.py::test_a_log_behind_its_reader_ends_the_stream_without_a_reset",
    ),
    "what was committed before a crash is sent after it": (
        "story/test_07_a_restart.py::test_finished_calls_are_not_repeated_and_running_ones_are_awaited",
        "integration/test_http_turns.py::test_a_log_that_lost_its_end_is_completed_from_the_database",
        "e2e/test_stack_resume.py::test_a_client_that_reconnects_and_one_that_starts_over_receive_what_is_stored",
    ),
    "streams cut at random have no gap and no duplicate": (
        "integration/test_turn_log_faults.py::test_ids_only_rise_and_the_text_is_complete_whatever_fails",
        "chaos/test_scenarios.py::test_streams_that_are_cut_at_random_have_no_gap_and_no_duplicate",
    ),
    "a dropped stream goes on where it stopped": (
        "e2e/test_page_connections.py::test_a_dropped_stream_resumes_where_it_stopped",
    ),
    "a restarted engine goes on: finished tools are not run again": (
        "story/test_07_a_restart.py::test_finished_calls_are_not_repeated_and_running_ones_are_awaited",
    ),
    "an LLM call that was cut is made again after a reset": (
        "story/test_07_a_restart.py::test_an_interrupted_message_is_made_again_and_the_user_gets_a_reset",
    ),
    "another engine adopts the turns of an engine that is gone, and the old owner is fenced": (
        "e2e/test_stack_replicas.py::test_a_call_that_runs_is_waited_for_by_the_other_and_runs_once",
        "e2e/test_stack_replicas.py::test_a_call_that_ended_while_its_engine_stood_still_is_not_run_again",
        "integration/test_replicas.py::test_of_several_engines_one_adopts_the_turn_of_a_dead_one",
        "integration/test_replicas.py::test_an_unpublished_call_is_published_by_the_adopter",
        "integration/test_replicas.py::test_a_fenced_owner_stops_and_ends_nothing",
        "integration/test_replicas.py::"
        "test_a_model_that_calls_tools_at_once_does_not_overtake_the_beginning_of_its_turn",
        "integration/test_replicas.py::test_an_engine_that_is_frozen_during_a_commit_does_not_prevent_adoption",
        "contract/ports/test_storage_ports.py::test_an_earlier_life_of_a_turn_writes_nothing",
        "unit/test_turn_recovery.py::test_a_turn_that_another_engine_owns_is_dropped_and_shows_nothing_more",
        "chaos/test_scenarios.py::test_an_engine_that_stops_for_three_leases_writes_nothing_of_adopted_turns",
        "chaos/test_scenarios.py::test_an_engine_that_stops_for_three_leases_writes_nothing_of_adopted_turns",
    ),
    "an engine that goes down in good order leaves its turns to the others at once": (
        "integration/test_replicas.py::test_an_engine_that_goes_down_leaves_its_turns_to_the_other_at_once",
        "unit/test_ownership.py::test_an_engine_that_was_shut_down_is_adopted_at_once",
        "unit/test_ownership.py::test_a_released_lease_is_not_renewed",
    ),
    "a turn that the store gives to an engine runs there once, whatever happens beside it": (
        "unit/test_ownership.py::test_a_renewal_resumes_turns_that_do_not_run_and_not_those_that_are_beginning",
        "unit/test_ownership.py::test_a_renewal_drops_turns_that_another_engine_owns_and_no_others",
        "unit/test_ownership.py::test_an_engine_that_shuts_down_adopts_nothing_but_renews_its_lease_and_executes_stops",
    ),
    "engines killed at any step of a turn, restarted or replaced: clients receive what is stored, tools run once": (
        "e2e/test_stack_resume.py::test_a_client_that_reconnects_and_one_that_starts_over_receive_what_is_stored",
        "e2e/test_stack_replicas.py::test_a_call_that_runs_is_waited_for_by_the_other_and_runs_once",
        "chaos/test_scenarios.py::test_turns_survive_an_engine_that_is_killed_at_any_step",
    ),
    "the turns of an engine that is gone for good end elsewhere, and the model is shown the whole history": (
        "e2e/test_stack_replicas.py::test_an_engine_that_dies_in_the_middle_of_a_text_is_followed_by_the_other",
        "chaos/test_scenarios.py::test_turns_survive_an_engine_that_never_comes_back",
    ),
    "a turn that its engines die of is given up": (
        "integration/test_replicas.py::test_a_turn_that_crashes_its_engines_fails",
        "contract/test_engine_leases.py::test_crashes_in_a_row_are_counted_until_the_turn_is_written",
        "unit/test_ownership.py::test_a_turn_fails_after_too_many_crashes",
    ),
    "a request that this release cannot read is answered so, and holds up no turn": (
        "integration/test_storage.py::test_a_request_that_this_release_cannot_read_is_answered_so_and_holds_up_no_turn",
    ),
    "a turn that begins while its engine goes down is left in good order too": (
        "unit/test_turns.py::test_a_turn_that_begins_during_a_shutdown_gets_the_rest_of_the_grace_period",
    ),
    "what ends with the last turns is counted and published before an engine is gone": (
        "integration/test_attacks_consumption.py"
        "::test_a_shutdown_counts_the_tokens_of_the_last_turn_and_publishes_that_its_session_is_free",
        "unit/test_background.py::test_closing_waits_for_tasks_and_for_those_that_begin_meanwhile",
        "contract/test_connections.py::test_a_closed_client_says_so_and_does_not_connect_again",
    ),
    "only an outage of Redis is called one: a defect of the engine is told as an internal error": (
        "integration/test_executor.py::test_a_defect_of_the_engine_is_told_as_one_and_not_as_an_outage",
    ),
    "the end of a turn includes the cost of its earlier runs": (
        "unit/test_turn_recovery.py::test_the_usage_of_earlier_lives_is_in_done",
    ),
    "any engine serves the next turn of a session, and knows all that was said and deleted": (
        "integration/test_replicas.py::test_the_next_turn_of_a_session_can_be_asked_of_any_engine",
        "integration/test_replicas.py::test_sessions_are_listed_read_and_deleted_anywhere",
    ),
    "with Redis away sessions and text go on at every engine": (
        "integration/test_replicas.py::test_without_redis_every_session_works_at_every_engine",
        "integration/test_replicas.py::test_without_redis_turns_are_stopped_and_shown_at_every_engine",
    ),
    "what Redis loses is missing in no session": (
        "integration/test_replicas.py::test_a_turn_is_resumed_when_redis_and_its_engine_are_lost_together",
    ),
    "with the database away nothing is accepted, and it heals without a restart": (
        "integration/test_replicas.py::test_without_the_database_nothing_is_accepted_until_it_is_back",
    ),
    "one turn at a time per session, at whichever engine it is asked for": (
        "integration/test_storage.py::test_one_turn_runs_at_a_time_in_a_session_however_many_are_asked_for",
        "contract/ports/test_storage_ports.py::test_a_session_has_one_running_turn",
        "integration/test_replicas.py::test_a_session_is_answered_once_at_a_time_whichever_engine_is_asked",
        "integration/test_queued_messages.py::test_a_message_that_does_not_wait_overtakes_none_that_does",
    ),
    "the place of a message that waits goes with its client, and with the engine at which it waited": (
        "integration/test_queued_messages.py::test_a_message_whose_client_goes_away_is_not_accepted",
        "integration/test_queued_messages.py::"
        "test_a_message_whose_client_goes_away_while_its_turn_begins_is_answered_all_the_same",
        "integration/test_queued_messages.py::test_a_waiting_message_ends_with_its_engine",
    ),
    "messages that wait for their session are answered in the order in which they came, on all engines": (
        "integration/test_queued_messages.py::test_they_are_answered_in_the_order_in_which_they_came_wherever_that_was",
        "integration/test_queued_messages.py::test_the_order_holds_while_redis_is_away",
        "integration/test_queued_messages.py"
        "::test_a_message_that_is_queued_during_a_renewal_of_the_lease_keeps_its_place",
        "integration/test_queued_messages.py::test_a_message_that_has_waited_too_long_is_refused",
        "contract/ports/test_storage_ports.py::test_messages_that_wait_begin_in_the_order_in_which_they_came",
    ),
    "what users receive after a stop is what happened, whenever and wherever they press it": (
        "e2e/test_stack_replicas.py::test_a_turn_is_stopped_and_a_question_decided_at_the_engine_that_does_not_run_it",
        "e2e/test_stack_chat.py::test_stop_during_a_slow_job_reaches_its_mcp_server",
        "chaos/test_scenarios.py::test_stop_at_any_moment_reports_what_really_happened",
    ),
    "a Redis that falls silent does not keep a turn's first words": (
        "integration/test_turn_logs.py::test_the_first_words_of_a_new_turn_do_not_wait_for_a_redis_that_hangs",
        "chaos/test_scenarios.py::test_silent_connections_to_redis_are_noticed_and_nothing_waits_forever",
    ),
    "stop closes the stream at the provider and keeps the partial text": (
        "story/test_06_stop.py::test_stopping_keeps_the_partial_text_and_closes_the_stream_at_the_provider",
    ),
    "stop reaches the MCP server": (
        "e2e/test_stack_chat.py::test_stop_during_a_slow_job_reaches_its_mcp_server",
        "unit/test_worker_handler.py::test_a_cancelled_call_is_cancelled_at_its_server",
    ),
    "unstarted calls are cancelled at once": (
        "contract/test_ledger_cancel.py::test_a_call_that_was_not_started_ends_at_once",
        "contract/test_ledger_cancel.py::test_a_call_that_was_not_enqueued_yet_leaves_a_tombstone",
    ),
    "a call's last step says what really happened": (
        "story/test_06_stop.py::test_stopping_cancels_running_calls_and_keeps_finished_results",
        "story/test_06_stop.py::test_a_running_call_that_no_worker_confirms_ends_as_unknown",
    ),
    "the history is valid after a stop": (
        "story/test_06_stop.py::test_after_a_stop_the_history_has_a_result_for_every_call",
    ),
    "stop works from any engine": (
        "integration/test_replicas.py::test_a_turn_is_stopped_from_the_other_engine",
        "integration/test_replicas.py::test_a_stop_request_whose_message_was_lost_is_found_in_the_store",
        "e2e/test_stack_replicas.py::test_a_turn_whose_engine_is_gone_can_be_stopped",
        "e2e/test_stack_replicas.py::test_a_turn_is_stopped_and_a_question_decided_at_the_engine_that_does_not_run_it",
    ),
    "destructive tools wait for approval, durably": (
        "unit/test_mcp_listing.py::test_which_tools_need_approval",
        "contract/ports/test_approval_store.py::test_a_call_that_waits_has_no_outbox_row_and_is_not_open",
        "integration/test_approvals.py::test_only_the_approved_call_reaches_the_workers",
        "integration/test_approvals.py::test_a_turn_that_waits_is_adopted_with_its_question",
        "integration/test_approvals.py::test_stopping_cancels_a_waiting_call_which_is_never_enqueued",
        "e2e/test_stack_approvals.py::test_after_a_reload_and_a_restart_of_the_engine_the_question_is_still_there",
        "e2e/test_stack_approvals.py::test_the_other_tab_decides_and_this_one_sees_it_at_once",
    ),
    "an approval is bound to its arguments, given once, and expires": (
        "unit/test_approval_rules.py::test_a_tool_that_has_changed_needs_a_new_question",
        "unit/test_approval_rules.py::test_decisions_after_the_timeout_are_refused",
        "contract/ports/test_approval_store.py::test_of_decisions_at_the_same_time_one_is_taken",
        "integration/test_approvals.py::test_a_second_decision_is_answered_with_the_first",
        "integration/test_approvals.py::test_an_approval_expires_and_a_late_decision_is_refused",
        "unit/test_approvals.py::test_a_decision_that_cannot_be_committed_fails_and_can_be_given_again",
    ),
    "approvals: a person is not asked again in a turn about a call that they refused": (
        "unit/test_approvals.py::test_a_call_that_a_person_refused_is_not_put_to_them_again_in_the_turn",
        "unit/test_approvals.py::test_what_was_not_refused_by_a_person_in_this_turn_is_put_to_them",
        "unit/test_repeats.py::test_a_call_that_a_person_refused_keeps_its_refusal_until_the_user_speaks_again",
    ),
    "any engine takes a decision on the turn of any other, also while Redis is away": (
        "integration/test_approvals.py::test_any_engine_accepts_a_decision_and_the_owner_of_the_turn_continues",
        "integration/test_approvals.py::test_a_decision_is_found_by_its_turn_when_no_engine_can_wake_another",
        "integration/test_approvals.py::test_one_of_concurrent_decisions_at_several_engines_is_committed",
        "integration/test_approvals.py::test_an_approved_call_is_adopted_with_the_arguments_that_were_approved",
        "contract/ports/test_approval_store.py::test_a_decision_is_for_the_turn_whoever_runs_it",
    ),
    "a frozen client is dropped and affects no other": (
        "integration/test_unread_streams.py::test_it_is_dropped_and_counted_and_its_turn_ends_completely",
        "chaos/test_scenarios.py::test_frozen_clients_are_dropped_and_can_resume",
    ),
    "several tabs watch one turn": (
        "e2e/test_page_connections.py::test_two_tabs_follow_one_turn_and_either_can_stop_it",
        "e2e/test_stack_streams.py::test_two_tabs_show_the_same_turn_as_it_goes",
    ),
    "the page resumes without an error, a flicker or a duplicate": (
        "e2e/test_page_connections.py::test_items_of_a_reset_are_shown_once_and_keep_their_state",
        "e2e/test_page_connections.py::test_a_reconnect_hint_of_the_server_is_followed_silently",
        "e2e/test_stack_streams.py::test_a_tool_call_outlives_the_engine_and_the_page_shows_it_once",
    ),
    "after a stop the page says what became of each call": (
        "e2e/test_chat_page.py::test_after_a_stop_each_card_says_what_became_of_its_call",
    ),
    "SIGTERM has streams reconnect": (
        "integration/test_http_turns.py::test_at_shutdown_streams_end_with_a_reconnect_hint",
        "integration/test_http_turns.py::test_a_turn_that_ends_within_the_grace_period_is_streamed_to_its_end",
    ),
    "streams pass a real nginx": (
        "e2e/test_nginx.py::test_events_are_not_buffered_by_nginx",
        "e2e/test_nginx.py::test_a_client_that_does_not_read_through_nginx_is_dropped",
        "e2e/test_nginx.py::test_pings_keep_a_quiet_stream_open",
        "e2e/test_nginx.py::test_the_reconnect_hint_passes_nginx_and_the_restarted_engine_continues_the_turn",
    ),
    "with Redis or all workers down chat still answers": (
        "e2e/test_stack_faults.py::test_without_redis_the_chat_still_answers_and_with_it_tools_work_again",
        "integration/test_engine_start.py::test_with_the_demo_model_and_no_worker_at_all_text_chat_works",
    ),
    "the page says when no tools are there": (
        "e2e/test_page_connections.py::test_the_page_says_that_no_tools_are_available",
    ),
    "a call that waits for Redis or for a worker says so, until it goes on": (
        "e2e/test_stack_missing_parts.py::test_a_call_says_that_redis_is_away_and_goes_on_when_it_is_back",
        "e2e/test_stack_missing_parts.py::test_a_call_that_runs_says_so_too",
        "e2e/test_stack_missing_parts.py::test_a_call_says_that_no_worker_is_there_and_goes_on_when_one_is",
        "integration/test_executor.py::test_a_blocked_call_is_reported_and_so_is_its_release",
        "integration/test_executor.py::test_missing_workers_block_a_call_only_after_they_had_time_to_report",
        "unit/test_views.py::test_each_step_says_what_the_call_waits_for",
        "e2e/test_page_modules.py::test_waits_for_is_that_of_the_newest_step",
    ),
    "a page from elsewhere can do nothing to an engine without keys": (
        "integration/test_http_problems.py::test_bodies_other_than_json_are_refused",
        "integration/test_http_problems.py::test_without_keys_pages_from_elsewhere_are_not_served",
        "integration/test_http_problems.py::test_without_keys_only_this_machines_own_names_are_served",
    ),
    "a call whose worker was lost says what happens next": (
        "e2e/test_stack_missing_parts.py::test_a_call_whose_worker_was_lost_says_so_while_another_runs_it",
        "e2e/test_stack_faults.py::test_a_worker_that_dies_during_a_call_leaves_it_unknown_when_it_may_not_run_twice",
    ),
    "the page survives a reload in the middle of an answer": (
        "e2e/test_page_connections.py::test_a_reload_during_an_answer_follows_it_again",
    ),
}

MODELS: dict[str, tuple[str, ...] | str] = {
    # Exposure
    "one gateway tool lists servers, operations and parameters, within a budget": (
        "unit/test_gateway.py::test_every_operation_has_one_line_while_that_fits_the_budget",
        "unit/test_gateway.py::test_descriptions_are_left_out_first_then_parameters_then_operations",
        "unit/test_gateway.py::test_with_very_many_servers_some_are_left_out_and_counted",
    ),
    "an unknown resource or operation is answered with what exists": (
        "unit/test_gateway.py::test_unknown_names_are_answered_with_existing_ones",
        "unit/test_exposure_turns.py::test_an_unknown_operation_is_answered_with_suggestions_and_the_turn_continues",
    ),
    "a call through the gateway is that of the tool it means, for users, workers and approvals, in every life": (
        "unit/test_exposure_turns.py::test_users_and_workers_see_the_real_tool_and_the_model_its_own_call",
        "unit/test_exposure_turns.py::test_the_request_names_the_real_tool",
        "unit/test_exposure_turns.py::test_a_person_approves_the_tool_and_its_own_arguments",
        "unit/test_exposure_turns.py::test_a_call_that_waits_for_approval_is_resumed_after_a_restart",
        "contract/ports/test_storage_ports.py::"
        "test_the_tool_that_a_call_means_is_kept_beside_the_name_that_the_model_used",
    ),
    "a catalog that outgrows the budget is searched, and what was found stays on offer": (
        "unit/test_exposure.py::test_the_mode_depends_on_setting_and_budget",
        "unit/test_exposure.py::test_found_tools_are_offered_behind_the_others",
        "unit/test_exposure_turns.py::test_with_five_hundred_tools_found_ones_are_offered_for_the_whole_session",
        "unit/test_exposure_turns.py::test_a_tool_that_was_not_offered_runs_and_is_offered_from_then_on",
        "unit/test_exposure_turns.py::test_found_tools_are_still_offered_after_a_restart",
    ),
    "every known habit of providers is understood": (
        "unit/test_llm_assembly.py::test_a_provider_is_understood",
        "unit/test_llm_assembly.py::test_every_quirk_has_a_file",
        "integration/test_llm_corpus.py::test_the_client_reads_what_the_provider_sends",
    ),
    "an error in a recorded provider trace is reported with its file": (
        "unit/test_corpus_files.py::test_what_is_wrong_is_named",
        "unit/test_llm_assembly.py::test_every_trace_has_what_is_expected_of_it",
    ),
    "header fields, organisation and project of the environment arrive as from the official SDKs, and are secrets": (
        "integration/test_llm_providers.py::test_account_and_header_fields_of_the_environment_are_sent",
        "integration/test_llm_connections.py::"
        "test_the_operators_header_fields_replace_those_of_the_sdk_and_an_empty_one_removes_it",
        "unit/test_config_engine.py::test_header_fields_are_read_line_by_line_and_are_secrets",
    ),
    "answers come, are stopped and fail in the same way whichever protocol a provider speaks": (
        "integration/test_llm_answers.py::test_a_stream_may_be_cut_in_any_way",
        "integration/test_llm_answers.py::test_cancelling_the_reader_closes_the_stream_at_the_provider",
        "integration/test_llm_answers.py::test_after_the_first_byte_it_is_not_tried_again",
        "integration/test_llm_answers.py::test_an_error_inside_the_stream_is_reported_after_its_text_and_without_the_key",
    ),
    "of a long conversation each model is sent what fits, and the model and the client know what is missing": (
        "unit/test_history.py::test_what_is_sent_is_valid_fits_and_could_not_have_one_part_more",
        "unit/test_llm_routing.py::test_each_model_is_sent_what_fits_its_own_context",
        "integration/test_fallbacks.py::"
        "test_of_a_long_conversation_each_model_gets_what_fits_and_the_model_and_the_client_are_told",
    ),
    "the name of a tool at its server is enough where one server has it; else the error lists them": (
        "unit/test_planning.py::test_the_bare_name_of_a_tool_that_one_server_has_is_that_tool",
        "unit/test_planning.py::test_the_bare_name_of_tools_of_several_servers_is_answered_with_their_names",
        "integration/test_tool_names.py::test_a_model_may_call_a_tool_by_its_bare_name_where_one_server_has_it",
        "integration/test_other_producers.py::"
        "test_the_bare_name_of_a_tool_is_enough_where_one_server_has_it_and_the_sender_may_use_it",
    ),
    "every history becomes one that providers accept": (
        "unit/test_normalise.py::test_every_history_is_normalised_to_one_that_providers_accept",
        "unit/test_normalise.py::test_each_history_of_the_corpus_is_sent_as_its_file_says",
    ),
    "however a stream is cut, its calls are the same": (
        "unit/test_llm_assembly.py::test_cutting_and_interleaving_changes_no_call",
        "unit/test_llm_assembly.py::test_wherever_the_network_cuts_a_stream_the_events_are_the_same",
    ),
    "a call that a limit cuts off is tried once more, and then the turn ends as cut": (
        "unit/test_pipeline.py::test_a_call_that_is_cut_off_twice_is_not_tried_a_third_time",
        "unit/test_pipeline.py::test_a_reply_that_is_cut_off_after_a_complete_call_continues",
        "story/test_05_rounds.py::test_a_call_that_is_cut_off_by_the_length_limit_is_made_once_more",
    ),
    "a tool with a long description is offered to models whose provider bounds descriptions": (
        "integration/test_llm_openai_client.py::test_long_descriptions_are_in_the_instructions_where_they_are_refused",
    ),
    "no more tools are offered by themselves than providers take": (
        "unit/test_exposure.py::test_auto_offers_no_more_tools_than_providers_accept",
    ),
    "very many tools do not delay other turns: the work on all of them is done in a thread, and once": (
        "unit/test_exposure.py::test_the_work_on_very_many_tools_is_done_once_and_in_a_thread",
    ),
    "a call of what does not exist is answered with the names that come nearest": (
        "unit/test_descriptions.py::test_similar_names_come_first",
        "unit/test_descriptions.py::test_of_very_many_names_the_most_similar_are_listed",
        "unit/test_gateway.py::test_unknown_names_are_answered_with_existing_ones",
        "integration/test_catalog_reader.py::test_a_misspelled_name_is_answered_with_the_nearest",
    ),
    "reasoning that comes in blocks goes back with the calls, to the model that made it": (
        "unit/test_llm_encoding.py::test_reasoning_in_blocks_goes_back_as_it_came_and_not_as_text_as_well",
        "unit/test_llm_encoding.py::test_blocks_that_another_model_has_signed_do_not_go_back",
        "integration/test_llm_openai_client.py::test_reasoning_in_blocks_goes_back_to_the_model_that_made_it",
    ),
    "every answer of the API is one that its OpenAPI document names": (
        "integration/test_api_schema.py::test_every_operation_answers_as_the_document_says",
    ),
    "hostile input of any side gives a named error, and others are served": (
        "fuzz/test_fuzzers.py::test_a_short_run_finds_nothing",
        "integration/test_attacks_control.py::test_control_messages_that_cannot_be_read_are_passed_by",
    ),
    "prompt mode: both dialects and <tool_call>, no argument dropped, safe at every split, no tag ever shown": (
        "unit/test_prompt_corpus.py::test_each_reply_of_the_corpus_gives_its_events",
        "unit/test_prompt_corpus.py::test_a_reply_gives_the_same_events_wherever_it_is_cut_into_pieces",
        "unit/test_prompt_corpus.py::test_no_part_of_a_tag_is_shown_when_a_limit_cuts_a_reply_off",
        "fuzz/test_fuzzers.py::test_a_short_run_finds_nothing",
    ),
    "prompt mode: results in the dialect's own form, parse errors go to the model": (
        "unit/test_prompt_mode.py::test_results_have_the_form_of_their_dialect",
        "story/test_12_without_function_calling.py::test_a_call_that_cannot_be_parsed_is_answered_with_an_error",
    ),
    "prompt mode: a result that the model makes up is never shown, nor what it says of it": (
        "story/test_12_without_function_calling.py::test_a_fabricated_result_is_not_shown_and_the_model_makes_the_call",
        "unit/test_prompt_mode.py::test_a_fabricated_result_is_not_shown_and_the_model_reads_that_nothing_was_run",
        "unit/test_prompt_mode.py::test_a_quoted_result_is_hidden_without_an_error",
    ),
    "prompt mode: in both dialects, behind a gateway and with a search": (
        "integration/test_tags_and_many_tools.py::test_a_call_of_the_gateway_runs_the_real_tool",
        "integration/test_tags_and_many_tools.py::test_found_tools_are_described_in_the_next_request_and_can_be_called",
        "integration/test_tags_and_many_tools.py::test_tool_modes_and_exposures_can_be_combined",
    ),
    "prompt mode: with and without a stop sequence": (
        "unit/test_prompt_mode.py::test_the_stop_sequence_is_asked_for_where_it_is_wanted",
        "integration/test_llm_openai_client.py::test_a_stop_sequence_is_sent_and_left_out_where_it_is_refused",
    ),
    "a session may change between function calling and prompt mode": (
        "story/test_12_without_function_calling.py::test_a_session_can_continue_in_another_tool_mode",
    ),
    "TOOL_MODE=auto falls back when the provider rejects tools": (
        "unit/test_tool_modes.py::test_rejected_tools_are_described_in_the_prompt_from_then_on_and_it_is_logged_once",
        "e2e/test_stack_others.py::test_a_provider_that_rejects_tools_has_them_called_by_tags",
    ),
    "one gateway tool can stand for all": (
        "story/test_11_many_tools.py::test_a_gateway_is_one_tool_whose_calls_are_resolved_to_the_real_tools",
        "unit/test_exposure_turns.py::test_users_and_workers_see_the_real_tool_and_the_model_its_own_call",
    ),
    "tools are searched when the catalog outgrows its budget": (
        "story/test_11_many_tools.py::test_tools_that_a_search_finds_are_offered_from_the_next_request_on",
        "unit/test_exposure_turns.py::test_with_five_hundred_tools_found_ones_are_offered_for_the_whole_session",
    ),
    "a message may ask for a model and a tool mode that are allowed, and for no other": (
        "unit/test_choices.py::test_other_choices_are_refused_with_the_list_of_allowed_ones",
        "integration/test_choices.py::test_the_chosen_model_answers_in_the_chosen_way_and_the_next_message_chooses_anew",
        "integration/test_choices.py::test_what_is_not_allowed_is_refused_before_anything_begins",
        "integration/test_choices.py::test_a_message_that_waits_keeps_its_choice",
    ),
    "the choice holds for all of the turn, also after a restart and at another engine": (
        "integration/test_choices.py::test_after_a_restart_the_same_choice_holds",
        "integration/test_choices.py::test_the_engine_that_adopts_a_turn_goes_on_with_its_choice",
    ),
    "the page lets the model be picked where there is more than one": (
        "e2e/test_chat_page.py::test_with_one_model_there_is_nothing_to_pick",
        "e2e/test_chat_page.py::"
        "test_with_several_models_the_picked_one_is_asked_also_by_a_message_that_waits_and_after_a_reload",
    ),
    "the page lets the tool mode be picked where it may be chosen": (
        "e2e/test_chat_page.py::test_with_one_model_there_is_nothing_to_pick",
        "e2e/test_chat_page.py::test_where_tool_modes_may_be_chosen_the_picked_one_is_asked_for_and_kept",
    ),
    "Anthropic messages": (
        "unit/test_llm_anthropic_assembly.py::test_an_answer_is_understood",
        "unit/test_llm_anthropic_assembly.py::test_wherever_the_network_cuts_a_stream_the_events_are_the_same",
        "integration/test_llm_anthropic_client.py::test_the_request_carries_the_key_the_model_and_the_history",
        "e2e/test_stack_others.py::test_anthropic_messages_have_tools_called",
    ),
    "another model is asked before any text reached the user": (
        "unit/test_llm_routing.py::test_the_next_one_answers_for_a_model_that_cannot",
        "unit/test_llm_routing.py::test_after_the_first_word_no_other_model_is_asked",
        "unit/test_llm_routing.py::test_a_wrong_request_or_setting_is_reported_and_no_other_model_is_asked",
        "integration/test_fallbacks.py::test_after_the_first_word_there_is_no_fallback",
        "integration/test_fallbacks.py::"
        "test_while_the_first_cannot_answer_the_next_one_does_and_the_first_is_left_in_peace",
    ),
    "a model that could not answer is asked last for a while": (
        "unit/test_llm_routing.py::test_models_that_cool_down_are_asked_last",
        "unit/test_llm_routing.py::test_an_unavailable_model_cools_down_and_is_then_asked_first_again",
        "unit/test_llm_routing.py::test_a_cooldown_lasts_as_long_as_retry_after_says",
    ),
    "the scripted model is used only where no real one is configured": (
        "repo/test_entrypoint.py::test_without_a_model_the_scripted_one_answers",
        "repo/test_entrypoint.py::test_a_model_that_is_configured_in_a_file_answers",
    ),
    "a provider that sends nothing ends a turn after a bounded time": (
        "integration/test_engine_and_providers.py::test_a_provider_that_accepts_and_says_nothing_does_not_hold_the_turn",
        "integration/test_llm_answers.py::test_what_only_keeps_the_connection_open_is_no_beginning",
        "integration/test_llm_answers.py::test_what_only_keeps_the_connection_open_is_silence",
    ),
    "rate limits and overload are reported as such": (
        "integration/test_llm_openai_client.py::test_a_status_gets_its_name_and_keeps_the_providers_words",
    ),
    "usage is summed over rounds": ("unit/test_pipeline.py::test_the_end_carries_the_usage_of_all_rounds",),
    "an image that a provider does not take fails no request, and no conversation": (
        "unit/test_llm_images.py::test_the_first_bytes_say_what_an_image_is",
        "integration/test_llm_openai_client.py::test_a_refused_image_is_left_out_and_a_refusal_of_images_is_remembered",
        "integration/test_llm_anthropic_client.py::test_an_image_that_is_refused_is_left_out_of_that_request_only",
    ),
    "images reach the page as URLs": ("e2e/test_stack_chat.py::test_an_image_is_a_url_that_answers_with_the_picture",),
    "an empty result is said to be empty": ("unit/test_mcp_content.py::test_an_empty_result_gets_a_text_that_says_so",),
    "large results are paged through with a tool": (
        "integration/test_http_turns.py::test_a_model_reads_parts_of_a_result_of_half_a_megabyte",
        "unit/test_shortening.py::test_every_character_is_shown_or_counted_at_its_offset",
        "unit/test_read_result.py::test_the_pages_of_a_text_make_up_the_text",
        "contract/ports/test_storage_ports.py::test_a_result_is_found_in_its_own_session_by_its_own_name_and_for_its_own_user",
    ),
    "the user can see the whole of a result, as nothing but text": (
        "e2e/test_chat_page.py::test_a_long_result_is_shown_in_part_and_whole_when_that_is_asked_for",
        "integration/test_http_turns.py::test_a_long_result_is_shortened_and_its_whole_text_is_served_as_plain_text",
        "e2e/test_stack_chat.py::test_of_a_result_that_is_too_large_to_keep_it_is_said_how_much_is_gone",
    ),
    "content for the user only does not go to the model": (
        "unit/test_views.py::test_content_for_the_user_only_is_shown_to_the_user",
        "unit/test_views.py::test_a_picture_for_the_user_only_does_not_go_to_the_model",
    ),
    "structured content is sent once": (
        "unit/test_mcp_content.py::test_structured_content_that_the_text_repeats_is_left_out",
        "unit/test_mcp_content.py::test_structured_content_that_the_text_does_not_repeat_follows_it",
    ),
    "a call that repeats itself with the same result is noticed": (
        "unit/test_repeats.py::test_a_call_is_refused_after_it_had_the_same_result_three_times",
        "unit/test_repeats.py::test_a_model_that_repeats_refused_calls_has_to_answer",
        "story/test_13_repeated_calls.py::test_repetitions_are_counted_across_a_restart",
    ),
    "one bad tool schema never fails a request": (
        "unit/test_mcp_listing.py::test_a_tool_that_would_spoil_a_request_is_quarantined",
    ),
    "the relay of tokens is ten times cheaper than a naive one": (
        "integration/test_relay_benchmark.py::test_relaying_costs_a_tenth_of_what_it_costs_naively",
    ),
}

OPERATIONS: dict[str, tuple[str, ...] | str] = {
    "a call leaves its trail in both logs under the same ids, without arguments and texts": (
        "e2e/test_stack_observability.py::test_a_call_leaves_its_trail_in_both_logs_under_the_same_ids",
        "e2e/test_stack_observability.py::test_no_argument_and_no_text_is_logged",
    ),
    "every refused request and every refused call has a line with its subject": (
        "integration/test_attacks_consumption.py::test_requests_beyond_the_limit_get_429_with_retry_after_at_every_engine_and_other_subjects_do_not",
        "unit/test_observed.py::test_a_call_that_is_refused_before_it_is_requested_has_its_line",
    ),
    "operators see which subjects use most, at all engines, however many there are": (
        "integration/test_subjects.py::test_engines_add_up_what_is_open_and_what_was_counted_in_the_last_hour",
        "integration/test_subjects.py::test_very_many_subjects_take_bounded_memory_and_do_not_hide_those_that_use_most",
        "integration/test_subjects.py::test_without_redis_an_engine_reports_its_own_numbers_and_the_command_says_so",
        "integration/test_subjects.py::test_a_flood_is_named_by_the_api_and_the_command",
    ),
    "what was used by day, subject, model and tool is counted once, priced, and not kept by the name of the erased": (
        "integration/test_usage.py::test_a_turn_counts_once_for_each_model_that_answered_and_for_the_tools_that_ran",
        "integration/test_usage.py::test_a_turn_of_a_killed_engine_counts_at_its_new_owner_only",
        "integration/test_usage.py::test_engines_that_count_at_once_lose_nothing_and_pages_have_every_row_once",
        "integration/test_usage.py::test_the_counts_outlive_sessions_and_an_erased_subject_is_not_among_them_by_name",
        "integration/test_usage.py::test_operators_alone_see_it_by_the_api_and_the_command_with_prices",
        "integration/test_usage.py::test_no_name_is_a_formula_in_a_spreadsheet",
    ),
    "logs have digests of subjects where that is set": (
        "unit/test_log_lines.py::test_subjects_are_logged_as_digests_by_a_key_that_all_services_share",
    ),
    "dialog-engine trace shows the store, the ledger and both logs in order": (
        "e2e/test_stack_observability.py::test_the_command_shows_the_store_the_ledger_and_both_logs_in_order_and_what_is_away",
    ),
    "a turn is one trace over both services": (
        "e2e/test_stack_observability.py::test_a_turn_is_one_trace_over_both_services",
    ),
    "metrics are declared once, documented, and bounded in number": (
        "unit/test_metrics.py::test_the_documented_metrics_are_the_declared_ones",
        "unit/test_metrics.py::test_neither_service_makes_a_series_for_each_of_very_many_tools",
    ),
    "dashboards, alerts and documents use declared metrics only": (
        "repo/test_dashboards.py::test_every_query_and_rule_uses_declared_metrics_and_can_be_parsed",
        "repo/test_dashboards.py::test_the_documents_name_metrics_as_they_are_declared",
    ),
    "every panel of the dashboards has data under load": (
        "integration/test_monitoring.py::test_every_panel_shows_something_under_a_small_load",
    ),
    "Kubernetes manifests are restricted, bounded and without secrets": (
        "repo/test_kubernetes.py::test_every_container_is_restricted_and_bounded",
        "repo/test_kubernetes.py::test_pods_reach_nothing_but_what_a_policy_names",
        "repo/test_kubernetes.py::test_there_is_no_secret_in_the_manifests",
    ),
    "workers are scaled by the stream, from a floor to a ceiling": (
        "unit/test_autoscaling.py::test_a_recorded_burst_adds_workers_within_a_minute_and_removes_them_slowly",
        "unit/test_autoscaling.py::test_without_load_there_is_the_floor",
    ),
    "parts of the last release and of this one work together": (
        "e2e/test_upgrades.py::test_an_old_and_a_new_part_run_tools_report_progress_and_failures_and_stop_calls",
        "e2e/test_upgrades.py::test_a_migration_of_postgresql_goes_forward_while_an_old_engine_runs_a_turn",
    ),
    "a restored backup has its sessions and messages, continues, and runs no once call twice": (
        "e2e/test_backup.py::test_a_restore_under_load_has_what_the_backup_has_and_runs_no_once_call_twice",
        "integration/test_restore.py::test_a_once_call_of_a_backup_is_unknown_and_a_repeatable_one_runs_again",
        "integration/test_restore.py"
        "::test_a_call_that_may_have_been_approved_after_the_backup_is_not_run_as_if_it_were_new",
    ),
    "a backup that is none, or is that of a later release, changes nothing": (
        "integration/test_restore.py::test_what_is_no_backup_is_refused_and_the_file_stays",
        "integration/test_restore.py::test_a_backup_of_a_later_release_is_refused",
        "integration/test_restore.py::test_nothing_is_restored_under_an_engine",
    ),
    "every block of commands in the documents for operators is run by a test": (
        "repo/test_commands.py::test_every_block_of_commands_says_how_it_is_tested",
        "repo/test_commands.py::test_the_commands_for_kubernetes_name_what_is_there",
        "integration/test_commands.py::test_a_block_does_what_the_document_says",
    ),
    "in Compose, engines and workers scale and may be killed": (
        "integration/test_compose_scale.py::test_a_killed_engine_and_a_killed_worker_lose_nothing",
    ),
}

SECURITY: dict[str, tuple[str, ...] | str] = {
    "Markdown is rendered within a budget": (
        "unit/test_markdown_budget.py::test_what_becomes_more_than_its_budget_is_shown_as_text",
        "unit/test_markdown_budget.py::test_a_few_requests_are_rendered_at_once_one_of_each_subject_and_others_are_answered_meanwhile",
    ),
    "no schema of a server holds the event loop": (
        "unit/test_bounded_validation.py::test_no_schema_holds_the_event_loop",
    ),
    "requests are signed, and a worker with keys runs no other": (
        "integration/test_attacks_requests.py::test_unsigned_forged_and_foreign_requests_are_answered_and_not_run",
        "integration/test_attacks_requests.py::test_a_signed_request_with_any_field_changed_is_not_run",
    ),
    "heads, bodies and connections are limited before authentication": (
        "integration/test_attacks_http.py::test_a_large_head_is_answered_with_431",
        "integration/test_attacks_http.py::test_a_slow_request_is_answered_with_408",
        "integration/test_attacks_http.py::test_connections_are_limited_by_address_and_in_all",
        "integration/test_attacks_http.py::test_the_key_is_checked_before_the_body_is_read",
    ),
    "what a reply, a turn and a subject consume is limited": (
        "integration/test_attacks_consumption.py::test_of_a_thousand_calls_in_one_reply_only_the_first_are_run_and_the_turn_ends",
        "integration/test_attacks_consumption.py::test_turns_and_streams_of_one_subject_are_bounded_and_free_again_when_they_end",
    ),
    "DELETE removes what a session said from the store and from Redis": (
        "integration/test_attacks_deletion.py::test_what_a_deleted_session_said_is_in_no_key_and_in_no_page",
    ),
    "an erasure that was accepted is completed, whatever becomes of Redis and of the engine": (
        "integration/test_attacks_deletion.py"
        "::test_an_erasure_while_redis_is_away_is_done_when_it_is_back_by_whichever_engine_there_is",
        "integration/test_attacks_deletion.py"
        "::test_an_error_after_the_commit_of_an_erasure_is_not_the_answer_and_it_can_be_asked_for_again",
        "contract/test_erasures.py::test_what_one_engine_erases_is_due_again_for_others_until_it_is_done",
        "contract/test_erasures.py::test_a_call_that_still_runs_is_waited_for_and_keeps_its_ledger",
    ),
    "an erasure misses no session that is used meanwhile": (
        "contract/test_erasures.py::test_every_session_is_erased_in_one_pass_though_they_are_used_meanwhile",
        "contract/test_erasures.py::test_a_session_with_a_running_turn_is_named_and_erased_after_it",
    ),
    "an erasure costs one pass over each stream, whatever the number of sessions": (
        "integration/test_attacks_deletion.py::test_the_sessions_of_a_subject_are_erased_in_one_pass_over_each_stream",
        "contract/test_erasures.py::test_deletions_of_one_subject_that_follow_each_other_are_erased_together",
    ),
    "what is kept of the erased names nobody and says nothing": (
        "integration/test_attacks_deletion.py::test_what_is_kept_of_an_erasure_has_neither_the_subject_nor_a_text",
    ),
    "a subject exports and erases its data": (
        "integration/test_attacks_deletion.py::test_a_subject_exports_and_erases_what_is_theirs_and_nothing_else",
    ),
    "make run keeps Redis private and secrets out of the environment of stdio servers": (
        "integration/test_attacks_make_run.py::test_valkey_has_no_port_and_secrets_are_in_no_environment_that_a_stdio_server_reads",
    ),
    "every call, decision and deletion is in the audit, which nothing changes": (
        "integration/test_audit.py::test_a_call_is_recorded_when_it_is_accepted_and_when_it_has_ended",
        "integration/test_audit.py::test_a_decision_is_recorded_with_the_credential_of_the_person",
        "integration/test_audit.py::test_an_event_and_what_it_records_are_one_commit",
        "integration/test_audit.py::test_the_events_of_a_session_outlive_it_and_hold_no_text",
        "integration/test_audit.py::test_the_database_refuses_to_change_or_delete_an_event",
        "integration/test_audit.py::test_the_database_refuses_to_replace_an_event",
        "integration/test_audit.py::test_a_name_of_any_length_is_recorded_in_few_characters",
    ),
    "a hash chain shows what was changed in the audit, and no commit waits for it": (
        "integration/test_audit_chain.py::test_a_chain_holds_and_says_what_is_not_sealed_yet",
        "integration/test_audit_chain.py::test_what_the_owner_of_the_database_changes_is_found",
        "integration/test_audit_chain.py::test_a_chain_that_was_written_anew_does_not_have_the_head_that_was_exported",
        "integration/test_audit_chain.py::test_engines_seal_what_all_of_them_write_in_one_chain",
        "integration/test_audit_chain.py::test_an_event_that_is_committed_after_one_with_a_higher_number_is_sealed_in_its_place",
        "integration/test_audit_chain.py::test_the_retention_deletes_whole_seals_and_leaves_the_last_as_an_anchor",
        "integration/test_audit_chain.py::test_an_erasure_changes_nothing_that_was_sealed",
    ),
    "with encryption at rest no text is readable in the store or in Redis": (
        "integration/test_encryption.py::test_no_key_and_no_page_holds_a_text_an_argument_or_a_result",
        "integration/test_encryption.py::test_an_engine_without_a_key_of_its_store_does_not_start_and_names_it",
        "integration/test_encryption.py::test_a_key_is_retired_by_the_command",
        "unit/test_encryption.py::test_a_value_cannot_be_moved_changed_or_cut",
    ),
    "a secret in a file is found before a release": ("repo/test_supply_chain.py::test_a_secret_in_a_file_is_found",),
    "a trusted server cannot change its tools past the approval": (
        "integration/test_attacks_catalog.py::test_a_trusted_server_cannot_change_its_tools_past_the_approval",
    ),
    "no route serves a sender who has not proved who they are, and none shows what belongs to another subject": (
        "integration/test_attacks_identity.py::test_no_route_serves_a_sender_who_has_proved_nothing",
        "integration/test_attacks_identity.py::test_no_route_shows_or_changes_what_belongs_to_another_subject",
        "integration/test_attacks_identity.py::test_a_role_opens_its_own_routes_only",
    ),
    "API keys are stored as hashes, expire, and are revoked without a restart": (
        "unit/test_api_keys.py::test_the_file_holds_hashes_and_is_private",
        "unit/test_api_keys.py::test_a_changed_file_is_read_again_and_a_bad_one_is_closed_after_a_warning",
        "integration/test_attacks_identity.py::test_no_route_serves_a_sender_who_has_proved_nothing",
    ),
    "tokens of an OpenID Connect provider are accepted while its keys rotate": (
        "integration/test_oidc.py::test_a_new_key_of_the_provider_is_fetched_when_its_first_token_arrives",
        "integration/test_oidc.py::test_tokens_with_unknown_keys_cause_one_request_in_some_seconds",
        "integration/test_oidc.py::test_known_keys_stay_in_use_while_the_provider_is_away",
    ),
    "people sign in on the page with PKCE, and only the page uses their session": (
        "integration/test_oidc.py::test_a_person_signs_in_chats_and_signs_out",
        "integration/test_oidc.py::test_an_answer_that_this_browser_did_not_ask_for_signs_nobody_in",
        "integration/test_oidc.py::test_requests_of_other_pages_with_the_cookie_are_refused",
    ),
    "operators' endpoints are apart from the API": (
        "integration/test_attacks_identity.py::test_readiness_shows_its_parts_to_operators_only",
        "integration/test_attacks_identity.py::test_the_operations_port_serves_operators_without_a_key_and_nothing_else",
    ),
    "wrong keys are slowed down, and right ones behind the same address are served": (
        "unit/test_failed_attempts.py::test_after_the_limit_an_address_waits_and_then_gets_one_attempt_after_the_other",
        "unit/test_failed_attempts.py::test_valid_keys_are_served_from_an_address_that_fails",
    ),
    "a tool that a sender may not use is neither offered nor requested nor run": (
        "unit/test_rights.py::test_what_is_not_allowed_is_neither_offered_nor_requested",
        "unit/test_rights.py::test_neither_the_gateway_nor_the_search_leads_around_the_rights",
        "unit/test_rights.py::test_an_approval_does_not_lift_a_missing_right",
        "unit/test_rights.py::test_a_worker_runs_only_what_its_own_file_allows",
        "integration/test_rights.py::test_a_request_carries_the_roles_of_its_turn_also_after_a_restart",
    ),
}

PARTS = (GROUND, RELIABILITY, TURNS, MODELS, OPERATIONS, SECURITY)
REQUIREMENTS = {promise: tests for part in PARTS for promise, tests in part.items()}
