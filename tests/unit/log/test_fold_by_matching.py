"""The fold of a broker's timers, deliveries and delete records."""

import pytest

from tests.support.synthetic_log import SyntheticLog, timer_states
from timerstore._engine.log.fold import fold


def test_delivery_delivers_the_timer_of_its_key(log: SyntheticLog) -> None:
    log.timer("a")
    log.timer("b")
    log.delivered("a")
    assert timer_states(log) == ([1], [0], [])


def test_same_key_with_another_time_or_topic_is_another_message(log: SyntheticLog) -> None:
    log.timer("a", 1000)
    log.timer("a", 2000)
    log.timer("a", 1000, topic="U")
    log.delivered("a", 2000)
    assert timer_states(log) == ([0, 2], [1], [])


def test_two_sends_with_equal_key_and_time_are_two_messages(log: SyntheticLog) -> None:
    log.timer("a")
    log.timer("a")
    assert timer_states(log) == ([0, 1], [], [])
    log.delivered("a")
    assert timer_states(log) == ([1], [0], [])
    log.delivered("a")
    assert timer_states(log) == ([], [0, 1], [])
    assert len(fold(log.scan).duplicate_rows) == 0


def test_duplicate_deliveries_are_reported_by_row(log: SyntheticLog) -> None:
    log.timer("a")
    log.delivered("a")
    second, third = log.delivered("a"), log.delivered("a")
    found = fold(log.scan)
    assert found.duplicate_rows.tolist() == [second, third]
    assert found.ids_delivered.tolist() == [0]


def test_duplicate_delivery_does_not_deliver_a_later_send(log: SyntheticLog) -> None:
    log.timer("a")
    log.delivered("a")
    log.delivered("a")
    log.timer("a")
    assert timer_states(log) == ([1], [0], [])


def test_delivery_without_source_is_an_orphan(log: SyntheticLog) -> None:
    orphan = log.delivered("gone")
    log.timer("gone")
    found = fold(log.scan)
    assert found.orphan_rows.tolist() == [orphan]
    assert len(found.duplicate_rows) == 0
    assert found.ids_pending.tolist() == [0]


def test_most_rolled_copy_is_current(log: SyntheticLog) -> None:
    log.timer("a")
    log.timer("b")
    log.timer("a", rolls=1)
    log.timer("a", rolls=2)
    found = fold(log.scan)
    assert timer_states(log) == ([1, 3], [], [])
    assert found.rows_pending.tolist() == [1, 3]
    assert found.offsets_pending.tolist() == [100, 300]


def test_one_delivery_delivers_the_most_rolled_copy(log: SyntheticLog) -> None:
    log.timer("a")
    log.timer("a", rolls=1)
    log.delivered("a")
    assert timer_states(log) == ([], [1], [])


def test_repeated_roll_is_one_message(log: SyntheticLog) -> None:
    log.timer("a")
    log.timer("a", rolls=1)
    log.timer("a", rolls=1)
    assert timer_states(log) == ([2], [], [])
    log.delivered("a")
    second = log.delivered("a")
    assert timer_states(log) == ([], [2], [])
    assert fold(log.scan).duplicate_rows.tolist() == [second]


def test_repeated_roll_after_the_delivery_is_not_pending(log: SyntheticLog) -> None:
    log.timer("a")
    log.timer("a", rolls=1)
    log.delivered("a")
    log.timer("a", rolls=1)
    assert timer_states(log) == ([], [2], [])


def test_one_of_two_equal_sends_may_roll(log: SyntheticLog) -> None:
    log.timer("a")
    log.timer("a")
    log.timer("a", rolls=1)
    assert timer_states(log) == ([1, 2], [], [])
    log.delivered("a")
    assert timer_states(log) == ([1], [2], [])


def test_rolled_copies_without_a_source_are_one_message() -> None:
    log = SyntheticLog(first_log_offset=5000, first_queue_offset=40)
    log.timer("a", rolls=2)
    log.timer("a", rolls=3)
    log.timer("a", rolls=3)
    assert timer_states(log) == ([42], [], [])
    log.delivered("a")
    assert timer_states(log) == ([], [42], [])
    assert len(fold(log.scan).duplicate_rows) == 0


def test_unusable_records_are_reported(log: SyntheticLog) -> None:
    log.timer("a")
    log.unusable()
    found = fold(log.scan)
    assert found.unusable_rows.tolist() == [1]
    assert found.ids_pending.tolist() == [0]
    assert found.next_id == 2


# --- delete records ---


@pytest.mark.parametrize("value", ["T+a", "a"])
def test_delete_cancels_by_key_of_either_form(log: SyntheticLog, value: str) -> None:
    log.timer("a")
    log.timer("b")
    log.delete(value)
    assert timer_states(log) == ([1], [], [0])
    assert len(fold(log.scan).ids_cancelled) == 1


def test_delete_cancels_all_messages_of_its_slot_only(log: SyntheticLog) -> None:
    log.timer("a", 1000)
    log.timer("a", 1000)
    log.timer("a", 2000)
    log.timer("a", 1000, topic="U")
    log.delete("T+a", 1000)
    assert timer_states(log) == ([2, 3], [], [0, 1])


def test_delete_with_topic_does_not_cancel_in_another_topic(log: SyntheticLog) -> None:
    log.timer("a", topic="U")
    log.delete("T+a")
    assert timer_states(log) == ([0], [], [])


def test_delete_cancels_a_send_stored_after_it_as_in_rocketmq(log: SyntheticLog) -> None:
    log.delete("T+a")
    log.timer("a")
    assert timer_states(log) == ([], [], [1])


def test_delete_does_not_undo_a_delivery(log: SyntheticLog) -> None:
    log.timer("a")
    log.delete("T+a")
    log.delivered("a")
    found = fold(log.scan)
    assert timer_states(log) == ([], [0], [])
    assert found.delivered_though_cancelled == 1


def test_delete_cancels_the_current_copy_of_a_rolled_message(log: SyntheticLog) -> None:
    log.timer("a")
    log.delete("T+a")
    log.timer("a", rolls=1)
    log.delete("T+a")
    assert timer_states(log) == ([], [], [2])


def test_delete_without_a_message_changes_nothing(log: SyntheticLog) -> None:
    log.timer("a")
    log.delete("T+zzz")
    log.delete("T+a", 999)
    assert timer_states(log) == ([0], [], [])
