"""The tests of the API that run on a connected store, too, unchanged: one list.

Not in the list: tests that look into the engine, kill it at a point, or fill its disk.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

CONNECTED: Mapping[str, frozenset[str]] = {
    "change/test_cancel.py": frozenset(),
    "change/test_cancel_many.py": frozenset({"test_results_are_exact_after_a_full_disk"}),
    "change/test_reschedule.py": frozenset(),
    "leases/test_attempts.py": frozenset(),
    "leases/test_dead_letters.py": frozenset(
        {
            "test_bury_changes_nothing_when_the_disk_is_full",
            "test_buried_message_is_a_dead_letter_if_the_clock_is_set_back",
            "test_requeue_is_durable_with_asynchronous_flush",
            "test_requeue_continues_when_the_disk_has_space_again",
            "test_requeue_survives_a_restart_and_a_kill",
        }
    ),
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
    "leases/test_priorities.py": frozenset(
        {
            "test_batch_with_priorities_and_a_full_slot_stores_nothing",
            "test_priorities_survive_a_kill",
            "test_stored_messages_of_a_failed_batch_are_its_first",
            "test_waiting_receive_is_woken_by_any_priority",
        }
    ),
    "leases/test_receipts.py": frozenset(),
    "leases/test_receive.py": frozenset(),
    "leases/test_several_topics.py": frozenset(
        {
            "test_begin_that_fails_in_one_topic_leaves_no_waiter",
            "test_close_ends_the_wait",
            "test_messages_leased_before_an_error_are_returned",
            "test_one_message_wakes_one_waiter_once",
        }
    ),
    "leases/test_wrong_receipts.py": frozenset(),
    "levels/test_level_pending.py": frozenset(
        {
            "test_counts_are_exact_after_crash_at_any_step",
            "test_put_many_with_level_agrees_with_put",
            "test_undeliverable_message_does_not_count_as_pending",
            "test_verify_reports_wrong_count",
        }
    ),
    "read/test_consumer_seeks.py": frozenset(
        {
            "test_commit_below_one_that_a_seek_overtook_is_made",
            "test_commit_does_not_reduce_a_pending_commit",
            "test_seek_is_committed_while_another_commit_is_pending",
        }
    ),
    "read/test_pull_tags.py": frozenset(),
    "read/test_query.py": frozenset(
        {"test_edges_of_arguments", "test_query_names_invalid_arguments"}
    ),
    "recurring/test_put_every.py": frozenset(
        {"test_backup_contains_definitions", "test_put_every_rejects_invalid_arguments"}
    ),
    "write/test_atomic.py": frozenset(
        {
            "test_atomic_batch_is_whole_or_absent_when_killed",
            "test_atomic_batch_stores_nothing_when_the_disk_is_full",
        }
    ),
    "write/test_flow_control.py": frozenset(),
}
"""By file of tests/unit: tests that run only in the process of the store. Those that name invalid
arguments use numbers of more than 64 bits, which cannot travel.
"""

_ALWAYS = {
    "change/test_cancel.py",
    "leases/test_dead_letters.py",
    "leases/test_receive.py",
    "read/test_consumer_seeks.py",
}
"""In `make test`, too; the others in `make test-all`."""

_UNIT = Path(__file__).parents[1] / "unit"


def kinds_of(metafunc: pytest.Metafunc) -> list[Any]:
    """Return the kinds of bench on which a test runs; none if it is not in the list."""
    path = Path(metafunc.module.__file__ or "")
    if not path.is_relative_to(_UNIT):
        return []
    file = path.relative_to(_UNIT).as_posix()
    if file not in CONNECTED or metafunc.definition.name in CONNECTED[file]:
        return []
    marks = [] if file in _ALWAYS else [pytest.mark.more]
    return ["open", pytest.param("connected", marks=marks)]
