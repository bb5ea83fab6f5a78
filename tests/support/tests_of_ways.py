"""The tests of the API that run in each way in which a store is reached, unchanged: one list.

Not in the list: tests that look into the engine, kill it at a point, or fill its disk.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.ways import WAYS

LISTED: Mapping[str, frozenset[str]] = {
    "change/test_cancel.py": frozenset(),
    "change/test_cancel_many.py": frozenset({"test_results_are_exact_after_a_full_disk"}),
    "change/test_find_by_handle.py": frozenset(),
    "change/test_reschedule.py": frozenset(),
    "change/test_reschedule_errors.py": frozenset(),
    "introspection/test_explain.py": frozenset(),
    "leases/test_attempts.py": frozenset(),
    "leases/test_dead_letters.py": frozenset(
        {
            "test_buried_message_is_a_dead_letter_if_the_clock_is_set_back",
            "test_requeue_survives_a_restart_and_a_kill",
        }
    ),
    "leases/test_error_reasons.py": frozenset({"test_reason_is_kept_when_the_last_lease_runs_out"}),
    "leases/test_half_messages.py": frozenset(
        {
            "test_call_that_a_kill_interrupts_has_one_outcome_and_is_repeated",
            "test_commit_needs_only_the_handle_in_another_opening",
            "test_id_of_a_committed_message_is_not_one_of_its_topic",
            "test_receipt_of_a_check_survives_a_restart",
            "test_repeated_put_of_a_half_message_stores_nothing",
            "test_wrong_check_after_is_named",
            "test_wrong_topic_is_named",
        }
    ),
    "leases/test_lease_consumer.py": frozenset(),
    "leases/test_lease_limits.py": frozenset(),
    "leases/test_message_groups.py": frozenset(
        {
            "test_lease_past_the_wheel_blocks_its_group",
            "test_message_given_back_comes_first_as_the_same_attempt",
            "test_order_survives_a_kill",
        }
    ),
    "leases/test_priorities.py": frozenset(
        {"test_priorities_survive_a_kill", "test_waiting_receive_is_woken_by_any_priority"}
    ),
    "leases/test_backlog.py": frozenset(
        {
            "test_counts_equal_a_model",
            "test_counts_survive_the_end_of_a_process",
            "test_dead_letter_is_counted_once_after_an_interrupted_count",
            "test_later_calls_read_no_pending_message",
            "test_memory_of_returned_messages_is_bounded",
            "test_renewed_lease_stays_a_lease",
        }
    ),
    "leases/test_receipts.py": frozenset(),
    "leases/test_receive.py": frozenset(),
    "leases/test_receive_limits.py": frozenset(),
    "leases/test_receive_request.py": frozenset(),
    "leases/test_receive_with_ack.py": frozenset(),
    "leases/test_renew.py": frozenset(),
    "leases/test_several_topics.py": frozenset(
        {
            "test_begin_that_fails_in_one_topic_leaves_no_waiter",
            "test_one_message_wakes_one_waiter_once",
        }
    ),
    "leases/test_wrong_receipts.py": frozenset(),
    "levels/test_level_pending.py": frozenset(
        {
            "test_counts_are_exact_after_crash_at_any_step",
            "test_counts_are_rebuilt_when_counts_file_lacks_them",
            "test_put_many_with_level_agrees_with_put",
        }
    ),
    "levels/test_level_put.py": frozenset(),
    "read/test_consumer_filters.py": frozenset(),
    "read/test_consumer_seeks.py": frozenset(),
    "read/test_consumer_shares.py": frozenset(
        {
            "test_collected_consumer_leaves_its_group",
            "test_reassigned_queue_waits_for_the_commit_of_its_previous_consumer",
        }
    ),
    "read/test_expiry.py": frozenset({"test_expiry_goes_with_ids_keys_and_replacing"}),
    "read/test_pull.py": frozenset(),
    "read/test_pull_tags.py": frozenset(),
    "read/test_query.py": frozenset(),
    "read/test_seek.py": frozenset(),
    "read/test_sql_pull.py": frozenset(),
    "recurring/test_put_every.py": frozenset(),
    "write/test_atomic.py": frozenset({"test_atomic_batch_is_whole_or_absent_when_killed"}),
    "write/test_flow_control.py": frozenset(),
    "write/test_put.py": frozenset(
        {"test_properties_at_the_limit_leave_the_headroom_that_delivery_needs"}
    ),
    "write/test_put_many.py": frozenset(),
    "write/test_replace.py": frozenset(),
    "write/test_spread.py": frozenset(),
    "write/test_unique.py": frozenset({"test_put_is_stored_if_the_first_is_done"}),
}
"""By file of tests/unit: tests that run only in the process of the store."""

_ALWAYS = {
    "change/test_cancel.py",
    "change/test_reschedule.py",
    "leases/test_attempts.py",
    "leases/test_dead_letters.py",
    "leases/test_error_reasons.py",
    "leases/test_lease_consumer.py",
    "leases/test_lease_limits.py",
    "leases/test_receive.py",
    "leases/test_receive_limits.py",
    "leases/test_receive_with_ack.py",
    "read/test_consumer_seeks.py",
    "read/test_consumer_shares.py",
    "write/test_flow_control.py",
}
"""In `make test`, too; the others in `make test-all`."""

_OF_TASKS = ["aio", "aio.connect"]
_UNIT = Path(__file__).parents[1] / "unit"


def ways_of(metafunc: pytest.Metafunc) -> list[Any]:
    """Return the ways in which a test runs; none if it is not in the list.

    Tests of the folder `ways` run in each, those of cancelled calls in those of tasks.
    """
    path, name = Path(metafunc.module.__file__ or ""), metafunc.definition.name
    if not path.is_relative_to(_UNIT):
        return []
    file = path.relative_to(_UNIT).as_posix()
    if file.startswith("ways/"):
        connected = [one for one in WAYS if WAYS[one].is_connected]
        return _OF_TASKS if "cancelled" in name else connected if "lost" in name else [*WAYS]
    if file not in LISTED or name in LISTED[file]:
        return []
    marks = [] if file in _ALWAYS else [pytest.mark.more]
    return ["open", *(pytest.param(one, marks=marks) for one in list(WAYS)[1:])]
