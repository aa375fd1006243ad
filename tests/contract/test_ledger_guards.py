"""Every guard of the ledger scripts, taken out in turn: the test that watches over it must fail.

A test here fails when a guard was reworded (say how it reads now) or when nothing notices that it is gone (write the
test that does).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis.exceptions import ResponseError

from plugins_contract.ledger import scripts
from tests.contract import test_dead_letters as dead_letters
from tests.contract import test_ledger_adopt as adopt
from tests.contract import test_ledger_cancel as cancel
from tests.contract import test_ledger_channel as channel
from tests.contract import test_ledger_complete as complete
from tests.contract import test_ledger_enqueue as enqueue
from tests.contract import test_ledger_lease as lease
from tests.contract import test_ledger_losses as losses
from tests.contract import test_ledger_pass as passing
from tests.contract import test_ledger_servers as servers
from tests.contract import test_ledger_start as start
from tests.contract import test_ledger_tidy as tidy
from tests.support.ledger import Bench

pytestmark = pytest.mark.anyio

LUA = Path(scripts.__file__).parent
Scenario = Callable[[Bench], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Guard:
    """`text`, in the script `script`, is what makes `scenario` hold; `without` stands there once it is gone."""

    script: str
    text: str
    without: str
    scenario: Scenario


GUARDS = [
    # ENQUEUE: once, only the same request, only what there is room for
    Guard(
        "enqueue",
        "if known[1] then",
        "if false then",
        enqueue.test_the_same_request_again_is_answered_with_the_first_entry,
    ),
    Guard("enqueue", "known[2] ~= hash", "false", enqueue.test_other_arguments_under_the_same_id_are_a_conflict),
    Guard("enqueue", "known[2] and known[2]", "known[2]", enqueue.test_a_call_cancelled_before_it_came_is_never_queued),
    Guard(
        "enqueue",
        "'fence', next_fence()",
        "'fence', 0",
        losses.test_the_fences_of_a_new_life_are_above_those_of_the_old,
    ),
    Guard("enqueue", "if TERMINAL[known[1]]", "if false", enqueue.test_a_finished_call_is_answered_with_its_outcome),
    Guard("enqueue", "backlog >= limit", "false", enqueue.test_past_the_backlog_limit_nothing_is_written),
    Guard(
        "enqueue",
        "keep_while_open(call, deadline)",
        "redis.call('PEXPIREAT', call, tonumber(deadline) + 86400000)",
        enqueue.test_a_request_that_comes_days_too_late_still_has_a_ledger,
    ),
    Guard(
        "enqueue",
        "keep_while_open(call, deadline)",
        "",
        enqueue.test_the_ledger_of_an_open_call_outlives_its_deadline_by_a_day,
    ),
    Guard(
        "enqueue",
        "'XADD', requests, '*'",
        "'XADD', requests, 'MAXLEN', '~', 10, '*'",
        enqueue.test_the_stream_is_never_trimmed,
    ),
    Guard(
        "enqueue",
        "and redis.call('EXISTS', requests) == 0",
        "and false",
        enqueue.test_makes_the_stream_and_its_group_when_they_are_missing,
    ),
    # The servers of Redis: what an earlier one may have started is not started again
    Guard(
        "enqueue",
        "ARGV[10] ~= '*' and",
        "false and",
        lambda bench: servers.test_a_call_that_was_offered_to_another_incarnation_and_is_not_known_is_not_queued(
            bench, "x/y"
        ),
    ),
    Guard(
        "report",
        "ARGV[2] == here",
        "true",
        servers.test_a_report_counts_at_the_server_to_which_it_was_written_and_keeps_its_first_time,
    ),
    Guard(
        "workers",
        "if report_of(rows[i + 1]) ~= here",
        "if false",
        servers.test_a_worker_that_reported_before_it_ever_read_must_report_at_the_next_server_too,
    ),
    Guard(
        "workers",
        "if not reported[name]",
        "if false",
        servers.test_a_once_call_of_an_earlier_server_waits_until_every_worker_has_reported,
    ),
    Guard(
        "workers",
        "if server == here or before",
        "if false",
        lambda bench: servers.test_once_calls_are_unknown_after_a_worker_is_removed_that_had_not_reported(bench, ""),
    ),
    Guard(
        "workers",
        "here or before",
        "here",
        servers.test_once_calls_are_unknown_at_the_server_after_that_one_too,
    ),
    Guard(
        "workers",
        "redis.call('HSET', workers, '*unreported', here .. ' ' .. now_ms())",
        "",
        lambda bench: servers.test_once_calls_are_unknown_after_a_worker_is_removed_that_had_not_reported(bench, ""),
    ),
    Guard(
        "start",
        "known_for(workers, here) > lease_ms",
        "false",
        servers.test_a_once_call_of_an_earlier_server_is_unknown_when_a_worker_does_not_report_within_a_lease,
    ),
    Guard(
        "start",
        " or now_ms() >= deadline)",
        ")",
        servers.test_a_once_call_that_may_have_run_does_not_expire_as_one_that_did_not_run,
    ),
    Guard(
        "start", "ARGV[12] ~= '' and", "false and", servers.test_a_worker_starts_no_once_call_where_it_has_not_reported
    ),
    Guard(
        "start",
        "ARGV[12] ~= here then",
        "ARGV[12] ~= here and known[6] ~= token then",
        servers.test_a_server_at_which_a_worker_has_not_reported_does_not_say_again_that_it_started_a_call,
    ),
    Guard(
        "start",
        "not since or now_ms() - since < tonumber(ARGV[13])",
        "false",
        servers.test_a_new_worker_starts_no_once_call_of_an_earlier_server,
    ),
    Guard(
        "start",
        "or known_for(workers, here) < tonumber(ARGV[14])",
        "",
        servers.test_a_once_call_of_an_earlier_server_waits_until_engines_had_the_time_to_write_their_stops,
    ),
    Guard(
        "start",
        "begin_lease()\n  return {'WAIT'}",
        "return {'WAIT'}",
        servers.test_while_a_call_waits_its_entry_is_not_taken_over,
    ),
    Guard(
        "retire",
        "forget_worker(KEYS[2], consumer, run_id())",
        "",
        servers.test_a_worker_that_leaves_or_dies_after_its_report_holds_nothing_up,
    ),
    Guard(
        "tidy",
        "forget_worker(workers, name, here)",
        "",
        lambda bench: servers.test_once_calls_are_unknown_after_a_worker_is_removed_that_had_not_reported(bench, ""),
    ),
    Guard(
        "tidy",
        "forget_worker(workers, rows[i], here)",
        "",
        servers.test_a_worker_that_leaves_or_dies_after_its_report_holds_nothing_up,
    ),
    Guard(
        "cancel",
        "unseen = may_have_started",
        "unseen = false and may_have_started",
        lambda bench: servers.test_a_stop_says_that_a_call_did_not_run_only_when_no_earlier_server_may_have_started_it(
            bench, False
        ),
    ),
    Guard(
        "cancel",
        "ARGV[10] ~= incarnation(KEYS[5])",
        "true",
        lambda bench: servers.test_a_stop_of_a_call_that_is_not_known_here_says_where_it_was_offered(
            bench, "here", False
        ),
    ),
    Guard(
        "cancel",
        "ARGV[10] ~= '' and",
        "",
        lambda bench: servers.test_a_stop_of_a_call_that_is_not_known_here_says_where_it_was_offered(bench, "", False),
    ),
    # PASS: what has not begun, is not overdue and ours to pass on; at once
    Guard("pass", "known[1] ~= 'published'", "false", passing.test_a_call_that_has_begun_is_not_passed_on),
    Guard("pass", "known[3] ~= entry", "false", passing.test_a_second_entry_of_a_call_is_not_passed_on),
    Guard(
        "pass",
        "now_ms() >= tonumber(known[2])",
        "false",
        passing.test_a_call_past_its_deadline_is_not_passed_on_but_answered,
    ),
    Guard(
        "pass",
        "pending_owner(requests, group, entry) ~= consumer",
        "false",
        passing.test_a_call_in_the_hands_of_another_is_not_passed_on,
    ),
    Guard(
        "pass",
        "'IDLE', tonumber(ARGV[4]) + 1",
        "'IDLE', 0",
        passing.test_a_call_that_is_passed_on_can_be_claimed_at_once_and_has_not_begun,
    ),
    # START: the owner, once per delivery, in time, as often as the execution class allows
    Guard(
        "start", "if TERMINAL[state]", "if false", start.test_a_finished_call_is_not_run_and_its_answer_is_sent_again
    ),
    Guard(
        "start",
        "    notify(channel, mailbox, id, reply)",
        "",
        start.test_a_finished_call_is_not_run_and_its_answer_is_sent_again,
    ),
    Guard(
        "start",
        "if reply == '' then",
        "if false then",
        channel.test_a_call_whose_channel_was_lost_is_answered_there_when_it_is_requested_again,
    ),
    Guard(
        "start",
        "if owner ~= consumer",
        "if false",
        start.test_only_the_owner_of_the_entry_may_start_it,
    ),
    Guard("start", "if known[6] == token", "if false", start.test_the_same_token_again_gets_the_same_answer),
    Guard("start", "'token', token,", "", start.test_an_abandoned_call_is_abandoned_for_the_same_token_again),
    Guard("start", "if known[8] ~= entry", "if false", start.test_a_second_entry_of_the_same_call_is_dropped),
    Guard(
        "start",
        "next_fence(known[4])",
        "tonumber(known[4])",
        complete.test_only_the_current_fence_completes,
    ),
    Guard(
        "start",
        "\nbegin_lease()",
        "",
        start.test_the_lease_runs_from_the_start,
    ),
    Guard(
        "start",
        "begin_lease()\n  return {known[7]",
        "return {known[7]",
        start.test_the_lease_runs_from_a_repeated_start_too,
    ),
    Guard(
        "start",
        "or state == 'started' and class ~= 'repeatable'",
        "",
        start.test_a_once_call_that_was_started_is_never_run_again,
    ),
    Guard(
        "start",
        "if known[9] then",
        "if false then",
        start.test_a_repeatable_call_whose_end_was_asked_for_is_not_run_again,
    ),
    Guard("start", "if starts >= max_starts", "if false", start.test_a_repeatable_call_runs_as_often_as_is_allowed),
    Guard("start", "if now_ms() >= deadline", "if false", start.test_past_its_deadline_a_call_is_answered_and_not_run),
    Guard(
        "start",
        "keep_while_open(channel, deadline)",
        "",
        adopt.test_the_channel_of_an_adopted_call_expires,
    ),
    # RENEW: only the current holder
    Guard(
        "renew",
        "not speaks(fence, state, known[2], known[4])",
        "false",
        lease.test_a_stalled_worker_cannot_renew_what_another_one_started,
    ),
    Guard("renew", "TERMINAL[state] or", "", lease.test_a_finished_call_is_not_renewed),
    Guard(
        "renew",
        "if owner and owner ~= consumer and",
        "if false and",
        lease.test_a_stalled_worker_that_wakes_up_cannot_steal_the_entry_back,
    ),
    Guard(
        "renew",
        "if owner and owner",
        "if not owner or owner",
        lease.test_a_running_call_whose_request_vanished_is_still_ours,
    ),
    Guard(
        "renew",
        "and deliveries > 1",
        "",
        losses.test_a_worker_keeps_a_call_that_a_new_group_has_just_given_to_another,
    ),
    Guard(
        "renew",
        "if owner then redis.call('XCLAIM'",
        "if false then redis.call('XCLAIM'",
        lease.test_renewal_restarts_the_lease,
    ),
    # RENEW puts back what was lost: all of it, but nothing that others know better
    Guard("renew", "  keep_while_open(call, ARGV[7])", "", losses.test_who_runs_a_call_puts_back_what_redis_lost_of_it),
    Guard("renew", "'class', ARGV[6],", "", losses.test_a_call_that_was_put_back_keeps_its_execution_class),
    Guard(
        "renew", "  redis.call('HINCRBY', call, 'starts', 1)", "", losses.test_a_start_that_a_failover_lost_is_put_back
    ),
    Guard("renew", "if state ~= 'started' or", "if state and", losses.test_a_call_that_was_put_back_can_be_stopped),
    Guard(
        "renew",
        "forget_entry(requests, group, known[5])",
        "",
        losses.test_a_call_that_was_published_anew_goes_back_to_the_worker_that_runs_it,
    ),
    Guard("renew", "'entry', entry,", "", losses.test_a_restored_once_call_is_run_by_no_other_worker),
    Guard("renew", "'verdict', 'RUN',", "", losses.test_a_call_that_was_put_back_can_be_given_back),
    Guard(
        "renew",
        "redis.call('HSET', call, 'renewedAt', now_ms())",
        "",
        losses.test_a_running_call_without_a_request_is_stranded_once_its_worker_is_silent,
    ),
    # Whose word counts: not that of an older fence, that of an earlier life only until a worker starts the call anew
    Guard(
        "common",
        "if fence >= tonumber(current or 0) then return true end",
        "if fence == tonumber(current or 0) then return true end",
        losses.test_a_result_under_a_fence_that_a_failover_lost_is_written,
    ),
    Guard(
        "common", "return state == 'published' and", "return", losses.test_a_call_that_was_begun_anew_does_not_go_back
    ),
    Guard(
        "common",
        "return state == 'published' and fence > 0 and fence <= tonumber(base or 0)",
        "return false",
        losses.test_a_call_that_was_published_anew_goes_back_to_the_worker_that_runs_it,
    ),
    Guard("common", "fence > 0 and", "", losses.test_who_found_no_ledger_does_not_end_a_call_that_is_published_anew),
    Guard(
        "common",
        "and fence <= tonumber(base or 0)",
        "",
        lease.test_who_gave_a_call_back_has_nothing_more_to_say_about_it,
    ),
    # START hands back what runs elsewhere, for as long as its lease
    Guard(
        "start",
        "if state == 'started' and deliveries == 1",
        "if false",
        losses.test_a_running_call_that_a_new_group_delivers_goes_back_to_its_worker,
    ),
    Guard(
        "start",
        "and deliveries == 1",
        "",
        losses.test_a_call_that_went_back_to_a_worker_that_is_gone_is_taken_over_when_its_lease_ends,
    ),
    Guard(
        "start",
        "and known[10] ~= consumer",
        "",
        start.test_a_worker_that_comes_back_under_its_old_name_does_not_run_a_once_call_again,
    ),
    Guard(
        "start",
        "and unheard_ms < lease_ms",
        "",
        losses.test_a_call_that_a_new_group_delivers_after_its_lease_is_abandoned,
    ),
    Guard(
        "start",
        "'IDLE', unheard_ms,",
        "",
        losses.test_the_lease_of_a_call_that_went_back_is_no_longer_than_it_was,
    ),
    # AUDIT and LOSE: lost is what no worker can run or answer any more, and only for as long as that is so
    Guard("audit", "if TERMINAL[known[1]] then", "if false then", losses.test_a_finished_call_is_not_lost),
    Guard(
        "loss",
        "if state == 'started' and",
        "if false and",
        losses.test_a_running_call_without_a_request_is_stranded_once_its_worker_is_silent,
    ),
    Guard(
        "loss",
        "if not out_of_reach(requests, group, entry, delivered)",
        "if false",
        losses.test_of_calls_that_wait_or_run_there_is_nothing_to_say,
    ),
    Guard(
        "loss",
        "if rows.err or #rows == 0",
        "if false",
        losses.test_a_call_whose_request_was_deleted_from_a_worker_s_hand_has_vanished,
    ),
    Guard(
        "loss",
        "return delivered and not later(entry, delivered) and not pending_owner(requests, group, entry)",
        "return false",
        losses.test_a_call_that_was_delivered_and_is_not_pending_has_vanished,
    ),
    Guard(
        "loss",
        "and not pending_owner(requests, group, entry)",
        "",
        losses.test_of_calls_that_wait_or_run_there_is_nothing_to_say,
    ),
    Guard(
        "loss",
        "not later(entry, delivered) and",
        "",
        losses.test_of_calls_that_wait_or_run_there_is_nothing_to_say,
    ),
    Guard(
        "loss",
        "return delivered and",
        "delivered = delivered or '99999999999999-0' return",
        losses.test_a_call_whose_group_was_lost_will_be_delivered_again,
    ),
    Guard(
        "loss",
        "return a_ms > b_ms or (a_ms == b_ms and a_seq > b_seq)",
        "return a > b",
        losses.test_undelivered_entries_are_recognised_by_their_whole_entry_ids,
    ),
    Guard(
        "audit",
        "if bytes >= max_bytes then",
        "if false then",
        losses.test_large_replies_are_read_by_several_audits_and_no_call_is_left_out,
    ),
    Guard(
        "audit",
        "return {n, rows}",
        "return {(#KEYS - 1) / 2, rows}",
        losses.test_large_replies_are_read_by_several_audits_and_no_call_is_left_out,
    ),
    Guard(
        "lose",
        "if TERMINAL[known[1]] then",
        "if false then",
        losses.test_a_call_that_its_worker_ended_meanwhile_keeps_its_result,
    ),
    Guard("lose", "~= ARGV[4]", "== ''", losses.test_a_call_that_its_worker_put_back_meanwhile_goes_on),
    Guard("renew", "'JUSTID'", "'FORCE'", lease.test_renewal_does_not_count_as_a_delivery),
    Guard("renew", "known[3] and 1 or 0", "0", lease.test_renewal_brings_word_of_a_cancellation),
    # RELEASE: only the current runner, without counting, claimable at once
    Guard("release", "known[2] ~= ARGV[4]", "false", lease.test_a_call_under_another_fence_cannot_be_released),
    Guard("release", "known[3] ~= 'RUN'", "false", lease.test_an_abandoned_call_cannot_be_released_to_run_again),
    Guard(
        "release",
        "pending_owner(requests, group, entry) ~= consumer",
        "false",
        lease.test_a_call_that_another_worker_took_cannot_be_released,
    ),
    Guard(
        "release",
        "redis.call('HINCRBY', call, 'starts', -1)",
        "",
        lease.test_a_released_once_call_runs_as_if_it_were_new,
    ),
    Guard(
        "release",
        ", 'fence', next_fence(known[2])",
        "",
        lease.test_who_gave_a_call_back_has_nothing_more_to_say_about_it,
    ),
    Guard(
        "release",
        "redis.call('XCLAIM'",
        "local _ = tostring('XCLAIM'",
        lease.test_a_released_call_can_be_claimed_at_once,
    ),
    # COMPLETE: once, only under the current fence, everything in one step
    Guard("complete", "TERMINAL[known[1]]", "false", complete.test_a_second_completion_changes_nothing),
    Guard(
        "complete",
        "not speaks(fence, known[1], known[2], known[3])",
        "false",
        complete.test_only_the_current_fence_completes,
    ),
    Guard(
        "common",
        "if fence >= tonumber(current or 0)",
        "if current and fence >= tonumber(current)",
        complete.test_a_result_in_hand_is_written_even_when_the_ledger_is_gone,
    ),
    Guard(
        "complete",
        "forget_entry(requests, group, known[4])",
        "",
        losses.test_a_result_from_before_the_loss_ends_the_call_that_was_published_anew,
    ),
    Guard("complete", "if reason ~= ''", "if false", complete.test_a_dead_letter_answers_its_caller_too),
    Guard(
        "common", "    redis.pcall('XACK', requests, group, entry)", "", complete.test_the_request_goes_with_its_call
    ),
    Guard("common", "    redis.pcall('XDEL', requests, entry)", "", complete.test_the_request_goes_with_its_call),
    Guard(
        "common", "  redis.call('EXPIRE', call, 86400)", "", complete.test_everything_of_a_finished_call_has_a_lifetime
    ),
    Guard(
        "common",
        "  redis.call('EXPIRE', channel, 86400)",
        "",
        complete.test_everything_of_a_finished_call_has_a_lifetime,
    ),
    Guard(
        "common",
        "redis.call('EXPIRE', mailbox, 86400)",
        "",
        complete.test_everything_of_a_finished_call_has_a_lifetime,
    ),
    Guard(
        "common", "string.sub(added, -2) == '-0'", "false", complete.test_each_reply_lengthens_the_life_of_the_mailbox
    ),
    Guard(
        "common",
        "if not added.err and string.sub(added",
        "if string.sub(added",
        adopt.test_a_mailbox_that_cannot_be_written_fails_no_call,
    ),
    Guard(
        "common",
        "  notify(channel, mailbox, id, reply)",
        "",
        complete.test_the_outcome_is_stored_once_in_the_channel_and_the_mailbox_is_notified,
    ),
    Guard("common", "'XADD', mailbox, 'MAXLEN', '~', 4096,", "'XADD', mailbox,", complete.test_the_mailbox_is_trimmed),
    # PROGRESS, BURY
    Guard("progress", "known[2] ~= ARGV[2]", "false", complete.test_progress_under_an_old_fence_is_refused),
    Guard("progress", "known[1] ~= 'started'", "false", complete.test_nothing_follows_the_terminal_entry),
    Guard(
        "progress",
        "keep_while_open(KEYS[2], known[3])",
        "",
        start.test_the_channel_of_a_running_call_has_a_lifetime,
    ),
    Guard(
        "bury",
        "if not worker then",
        "worker = worker or ''; if false then",
        complete.test_an_entry_that_cannot_be_read_is_buried_once,
    ),
    Guard("bury", "if its_call then", "if false then", complete.test_the_call_of_a_buried_entry_is_answered),
    Guard("bury", "known[2] == entry and", "", complete.test_an_unreadable_duplicate_does_not_end_its_call),
    # RETIRE: never what still holds something
    Guard("retire", "if #rows == 0", "if true", lease.test_a_consumer_that_holds_entries_is_not_retired),
    Guard(
        "retire",
        "  redis.call('XCLAIM'",
        "local _ = tostring('XCLAIM'",
        lease.test_a_consumer_that_holds_entries_is_not_retired,
    ),
    # TIDY: never who asks, who holds something, or who was heard of
    Guard("tidy", "name ~= ARGV[2] and info", "info", tidy.test_who_asks_stays),
    Guard("tidy", "info.pending == 0 and", "", tidy.test_a_consumer_that_holds_something_is_never_taken_out),
    Guard("tidy", "info.idle >= silent_ms", "true", tidy.test_a_consumer_that_read_recently_stays),
    # CANCEL: at once only what has not begun, never what is finished, and the relay finds the mark
    Guard("cancel", "if TERMINAL[known[1]]", "if false", cancel.test_a_finished_call_stays_as_it_is),
    Guard("cancel", "if known[1] == 'started'", "if false", cancel.test_of_a_running_call_the_end_is_asked_for),
    Guard("cancel", "if known[1] == 'started'", "if known[1]", cancel.test_a_call_that_was_not_started_ends_at_once),
    Guard(
        "cancel",
        "local unseen\n",
        "local unseen\nif not known[1] then return {'UNSEEN'} end\n",
        cancel.test_a_call_that_was_not_enqueued_yet_leaves_a_tombstone,
    ),
    Guard(
        "cancel",
        "ARGV[unseen and 8 or 4],\n  ARGV[unseen and 9 or 5]",
        "ARGV[4], ARGV[5]",
        losses.test_a_published_call_of_which_nothing_is_known_is_ended_as_the_engine_says,
    ),
    Guard(
        "cancel",
        "redis.call('PUBLISH', ARGV[6], ARGV[7])",
        "",
        losses.test_the_audit_reports_the_worker_of_an_unknown_call,
    ),
    Guard("cancel", "redis.call('HSET', call, 'cancel', 1)", "", lease.test_renewal_brings_word_of_a_cancellation),
    Guard(
        "cancel",
        "redis.call('PUBLISH', ARGV[6], ARGV[7])",
        "",
        lambda bench: cancel.test_the_workers_are_notified_at_once(bench, begun=False),
    ),
    # REQUEUE and DISCARD: a letter is taken away once, and it is the one that was looked at
    Guard(
        "requeue",
        "if entry then",
        "if false then",
        dead_letters.test_a_requeue_whose_answer_was_lost_may_be_asked_for_again,
    ),
    Guard(
        "requeue", "if not stands(dead, ARGV[1], ARGV[2])", "if false", dead_letters.test_of_many_operators_one_requeues
    ),
    Guard("requeue", "redis.call('XDEL', dead, ARGV[1])", "", dead_letters.test_of_many_operators_one_requeues),
    Guard(
        "requeue",
        "redis.call('EXISTS', requests) == 0",
        "false",
        dead_letters.test_a_requeue_makes_stream_and_group_when_they_are_gone,
    ),
    Guard(
        "requeue",
        "redis.call('EXISTS', dead_call) == 1",
        "true",
        dead_letters.test_a_dead_call_that_redis_has_forgotten_is_not_brought_back,
    ),
    Guard(
        "requeue",
        "keep_while_open(call, ARGV[8])",
        "",
        dead_letters.test_the_ledger_of_a_requeued_call_expires,
    ),
    Guard(
        "discard", "if not stands(KEYS[1], ARGV[1], ARGV[2])", "if false", dead_letters.test_a_letter_is_discarded_once
    ),
    Guard("letters", "== event\nend", "~= ''\nend", dead_letters.test_a_letter_that_is_another_by_now_is_not_requeued),
    # The channel: where the reply is found, for as long as the ledger, and no other entry for it
    Guard(
        "common",
        "if not known[1] then return known[2] or '' end",
        "if not known[1] then return '' end",
        channel.test_a_reply_that_the_previous_release_kept_in_the_ledger_is_found,
    ),
    Guard(
        "common",
        "redis.call('XRANGE', channel, known[1], known[1])",
        "redis.call('XREVRANGE', channel, '+', '-', 'COUNT', 1)",
        channel.test_another_entry_in_the_channel_is_not_taken_for_the_reply,
    ),
    Guard(
        "common",
        "'XADD', channel, 'MAXLEN', '~', 256,",
        "'XADD', channel,",
        channel.test_progress_never_trims_the_terminal_entry_away,
    ),
    Guard(
        "common",
        "if mailbox == channel then return end",
        "",
        adopt.test_an_adopted_call_runs_and_is_answered_in_its_channel_alone,
    ),
    Guard(
        "common",
        "redis.pcall('XADD', mailbox",
        "redis.call('XADD', mailbox",
        adopt.test_a_mailbox_that_cannot_be_written_fails_no_call,
    ),
    # ADOPT and BURY: who knows no ledger gets one, unless the call may have been begun, and is answered in any case
    Guard("enqueue", "'ledger', 1,", "", enqueue.test_its_entry_says_that_it_has_a_ledger),
    Guard("requeue", "'ledger', 1,", "", dead_letters.test_the_entry_of_a_requeued_call_says_that_it_has_a_ledger),
    Guard(
        "adopt",
        "if owner ~= consumer then return {'NOT_OWNER'} end",
        "",
        adopt.test_only_the_owner_of_the_entry_adopts_it,
    ),
    Guard(
        "adopt",
        "if deadline == '' then deadline =",
        "if true then deadline =",
        adopt.test_a_deadline_that_is_given_counts,
    ),
    Guard(
        "adopt",
        "if known[1] then",
        "if false then",
        adopt.test_a_finished_call_that_is_submitted_again_is_answered_again,
    ),
    Guard(
        "adopt",
        "if known[2] and known[2] ~= hash then return {'CONFLICT'} end",
        "",
        adopt.test_other_arguments_under_the_same_id_are_a_conflict,
    ),
    Guard("adopt", "known[3] or class", "class", adopt.test_the_execution_class_of_the_first_worker_is_frozen),
    Guard(
        "adopt", "known[4] or deadline", "deadline", adopt.test_the_time_of_a_call_runs_from_its_adoption_and_is_frozen
    ),
    Guard(
        "adopt",
        "if type(replies) == 'table' then return {'CONFLICT'} end",
        "replies = 0",
        adopt.test_a_channel_that_is_no_stream_is_a_conflict,
    ),
    Guard(
        "adopt",
        "if replies > 0 or",
        "if",
        adopt.test_a_call_that_was_begun_and_whose_ledger_was_lost_is_not_run_again,
    ),
    Guard(
        "start",
        "append_reply(channel, mailbox, id, tool_call_id, 'started', ARGV[8] .. starts .. '}')",
        "",
        adopt.test_a_call_that_was_begun_and_whose_ledger_was_lost_is_not_run_again,
    ),
    Guard(
        "adopt",
        "(deliveries > 1 and",
        "(false and",
        adopt.test_whether_a_call_delivered_days_ago_was_started_is_unknown,
    ),
    Guard(
        "adopt",
        "(deliveries > 1 and",
        "(",
        adopt.test_whether_a_call_delivered_days_ago_was_started_is_unknown,
    ),
    Guard(
        "adopt",
        "and now_ms() - written_at > 86400000",
        "",
        adopt.test_a_request_whose_first_worker_died_before_it_began_it_is_run_by_the_next,
    ),
    Guard("adopt", "keep_while_open(call, deadline)", "", adopt.test_the_ledger_of_an_adopted_call_expires),
    Guard(
        "bury",
        "if KEYS[6] ~= channel then",
        "if false then",
        adopt.test_a_refusal_goes_to_the_channel_that_was_named_as_well,
    ),
    Guard("bury", "id ~= '' and", "", adopt.test_a_refusal_without_a_correlation_id_is_written_to_the_channel_alone),
    Guard("bury", "and ARGV[9] == '0'", "", adopt.test_a_broken_request_whose_ledger_was_lost_is_left_to_its_engine),
    Guard("bury", "ARGV[9] == '0'", "false", adopt.test_a_request_that_is_refused_is_answered_once_and_kept),
]


def named(guard: Guard) -> str:
    return f"{guard.script}: {guard.text.strip()}"


def script(guard: Guard) -> str:
    return (LUA / f"{guard.script}.lua").read_text()


def test_each_guard_is_in_its_script_once() -> None:
    assert [named(guard) for guard in GUARDS if script(guard).count(guard.text) != 1] == []


@pytest.mark.parametrize("guard", GUARDS, ids=named)
async def test_without_the_guard_its_test_fails(guard: Guard, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    text = script(guard)
    shipped = scripts.load

    def crippled(name: str) -> str:
        return shipped(name).replace(text, text.replace(guard.text, guard.without))

    monkeypatch.setattr(scripts, "load", crippled)
    with pytest.raises((AssertionError, TimeoutError, ResponseError)):
        await guard.scenario(bench)
    await bench.redis.flushall()  # a crippled script may well leave keys behind
