"""Each rule of the fold alone, then against a plain model, then over whole lives of a store."""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.synthetic_log import SyntheticLog
from timerstore._engine.log.fold import PLACE_OFFSET_BITS, SCAN_DTYPE, Fold, Kind, fold

OURS, OLDER, STRANGER = 7, 6, 9


@pytest.fixture
def log() -> SyntheticLog:
    return SyntheticLog()


def states(log: SyntheticLog, store_id: int | None = None) -> tuple[list[int], ...]:
    found = fold(log.scan, store_id)
    return (
        found.ids_waiting.tolist(),
        found.ids_handed.tolist(),
        found.ids_cancelled.tolist(),
    )


# --- the array ------------------------------------------------------------------------------------


def test_scan_dtype_is_the_struct_of_the_scanner() -> None:
    assert SCAN_DTYPE.itemsize == 104
    assert SCAN_DTYPE.fields is not None
    offsets = {name: int(field[1]) for name, field in SCAN_DTYPE.fields.items()}
    assert offsets["identity"] == 48
    assert offsets["size"] == 64
    assert offsets["store_id"] == 72
    assert offsets["route"] == 92
    assert offsets["vouches"] == 96


def test_nothing_gives_nothing(log: SyntheticLog) -> None:
    found = fold(log.scan)
    assert states(log) == ([], [], [])
    assert (found.store_id, found.store_ids, found.next_id) == (None, (), 0)
    assert (found.doubled_count, found.cancelled_count, found.level_handed_count) == (0, 0, 0)


def test_refuses_another_dtype_and_another_order(log: SyntheticLog) -> None:
    with pytest.raises(ValueError, match="SCAN_DTYPE"):
        fold(np.zeros(2, [("log_offset", np.int64)]))
    log.timer("a")
    log.timer("b")
    with pytest.raises(ValueError, match="log order"):
        fold(log.scan[::-1])


def test_ordinary_records_have_no_part(log: SyntheticLog) -> None:
    log.ordinary()
    log.timer("a")
    log.ordinary()
    assert states(log) == ([0], [], [])


# --- by matching ----------------------------------------------------------------------------------


def test_delivered_timer_is_handed(log: SyntheticLog) -> None:
    log.timer("a")
    log.timer("b")
    log.delivered("a")
    assert states(log) == ([1], [0], [])


def test_same_key_at_another_time_or_topic_is_another_message(log: SyntheticLog) -> None:
    log.timer("a", 1000)
    log.timer("a", 2000)
    log.timer("a", 1000, topic="U")
    log.delivered("a", 2000)
    assert states(log) == ([0, 2], [1], [])


def test_two_sends_with_equal_key_and_time_are_two_messages(log: SyntheticLog) -> None:
    log.timer("a")
    log.timer("a")
    assert states(log) == ([0, 1], [], [])
    log.delivered("a")
    assert states(log) == ([1], [0], [])
    log.delivered("a")
    assert states(log) == ([], [0, 1], [])
    assert fold(log.scan).doubled_count == 0


def test_doubled_delivery_is_found_by_its_row(log: SyntheticLog) -> None:
    log.timer("a")
    log.delivered("a")
    second, third = log.delivered("a"), log.delivered("a")
    found = fold(log.scan)
    assert found.doubled_rows.tolist() == [second, third]
    assert found.ids_handed.tolist() == [0]


def test_doubled_delivery_does_not_hand_a_later_send(log: SyntheticLog) -> None:
    log.timer("a")
    log.delivered("a")
    log.delivered("a")
    log.timer("a")
    assert states(log) == ([1], [0], [])


def test_delivery_without_source_is_an_orphan(log: SyntheticLog) -> None:
    orphan = log.delivered("gone")
    log.timer("gone")
    found = fold(log.scan)
    assert found.orphan_rows.tolist() == [orphan]
    assert found.doubled_count == 0
    assert found.ids_waiting.tolist() == [0]


def test_only_the_most_rolled_copy_lives(log: SyntheticLog) -> None:
    log.timer("a")
    log.timer("b")
    log.timer("a", rolls=1)
    log.timer("a", rolls=2)
    found = fold(log.scan)
    assert states(log) == ([1, 3], [], [])
    assert found.rows_waiting.tolist() == [1, 3]
    assert found.offsets_waiting.tolist() == [100, 300]


def test_most_rolled_copy_is_handed_by_one_delivery(log: SyntheticLog) -> None:
    log.timer("a")
    log.timer("a", rolls=1)
    log.delivered("a")
    assert states(log) == ([], [1], [])


def test_doubled_roll_is_one_message(log: SyntheticLog) -> None:
    log.timer("a")
    log.timer("a", rolls=1)
    log.timer("a", rolls=1)
    assert states(log) == ([2], [], [])
    log.delivered("a")
    second = log.delivered("a")
    assert states(log) == ([], [2], [])
    assert fold(log.scan).doubled_rows.tolist() == [second]


def test_doubled_roll_after_the_delivery_is_not_delivered_again(log: SyntheticLog) -> None:
    log.timer("a")
    log.timer("a", rolls=1)
    log.delivered("a")
    log.timer("a", rolls=1)
    assert states(log) == ([], [2], [])


def test_two_sends_of_which_one_rolled(log: SyntheticLog) -> None:
    log.timer("a")
    log.timer("a")
    log.timer("a", rolls=1)
    assert states(log) == ([1, 2], [], [])
    log.delivered("a")
    assert states(log) == ([1], [2], [])


def test_rolled_copies_whose_source_is_gone_are_one_message() -> None:
    log = SyntheticLog(first_log_offset=5000, first_queue_offset=40)
    log.timer("a", rolls=2)
    log.timer("a", rolls=3)
    log.timer("a", rolls=3)
    assert states(log) == ([42], [], [])
    log.delivered("a")
    assert states(log) == ([], [42], [])
    assert fold(log.scan).doubled_count == 0


def test_unusable_records_are_shown(log: SyntheticLog) -> None:
    log.timer("a")
    log.unusable()
    found = fold(log.scan)
    assert found.unusable_rows.tolist() == [1]
    assert found.ids_waiting.tolist() == [0]
    assert found.next_id == 2


# --- delete records -------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["T+a", "a"])
def test_delete_cancels_by_key_of_either_form(log: SyntheticLog, value: str) -> None:
    log.timer("a")
    log.timer("b")
    log.delete(value)
    assert states(log) == ([1], [], [0])
    assert fold(log.scan).cancelled_count == 1


def test_delete_reaches_every_copy_of_its_slot_and_no_other(log: SyntheticLog) -> None:
    log.timer("a", 1000)
    log.timer("a", 1000)
    log.timer("a", 2000)
    log.timer("a", 1000, topic="U")
    log.delete("T+a", 1000)
    assert states(log) == ([2, 3], [], [0, 1])


def test_delete_with_topic_is_not_the_bare_key_of_another(log: SyntheticLog) -> None:
    log.timer("a", topic="U")
    log.delete("T+a")
    assert states(log) == ([0], [], [])


def test_delete_reaches_a_send_stored_after_it_as_in_the_ancestor(log: SyntheticLog) -> None:
    log.delete("T+a")
    log.timer("a")
    assert states(log) == ([], [], [1])


def test_delete_does_not_take_back_a_delivery(log: SyntheticLog) -> None:
    log.timer("a")
    log.delete("T+a")
    log.delivered("a")
    found = fold(log.scan)
    assert states(log) == ([], [0], [])
    assert found.handed_though_cancelled == 1


def test_delete_reaches_the_living_copy_of_a_rolled_message(log: SyntheticLog) -> None:
    log.timer("a")
    log.delete("T+a")
    log.timer("a", rolls=1)
    log.delete("T+a")
    assert states(log) == ([], [], [2])


def test_delete_of_nothing(log: SyntheticLog) -> None:
    log.timer("a")
    log.delete("T+zzz")
    log.delete("T+a", 999)
    assert states(log) == ([0], [], [])


# --- by id ----------------------------------------------------------------------------------------


def test_own_timers_by_id(log: SyntheticLog) -> None:
    waiting, handed, cancelled = (log.own_timer(OURS, key) for key in "abc")
    log.delivered("b", own=(OURS, handed))
    log.delete("T+c", own=(OURS, cancelled))
    found = fold(log.scan)
    assert states(log) == ([waiting], [handed], [cancelled])
    assert (found.store_id, found.store_ids) == (OURS, (OURS,))
    assert found.next_id == 4


def test_own_copies_keep_their_id_and_the_last_lives(log: SyntheticLog) -> None:
    timer_id = log.own_timer(OURS, "a")
    log.timer("a", rolls=1, own=(OURS, timer_id))
    log.timer("a", rolls=2, own=(OURS, timer_id))
    log.timer("a", rolls=1, own=(OURS, timer_id))  # rolled twice by a broker that had crashed
    log.timer("a", rolls=2, own=(OURS, timer_id))  # moved by retention
    found = fold(log.scan)
    assert states(log) == ([timer_id], [], [])
    assert found.rows_waiting.tolist() == [4]


def test_most_rolled_own_copy_lives_wherever_it_stands(log: SyntheticLog) -> None:
    timer_id = log.own_timer(OURS, "a")
    log.timer("a", rolls=2, own=(OURS, timer_id))
    log.timer("a", rolls=1, own=(OURS, timer_id))
    assert fold(log.scan).rows_waiting.tolist() == [1]


def test_own_id_decides_and_not_the_key(log: SyntheticLog) -> None:
    first, second = log.own_timer(OURS, "a"), log.own_timer(OURS, "a")
    log.delivered("a", own=(OURS, second))
    assert states(log) == ([first], [second], [])


def test_first_evidence_of_an_id_decides(log: SyntheticLog) -> None:
    first, second = log.own_timer(OURS, "a"), log.own_timer(OURS, "b")
    log.delivered("a", own=(OURS, first))
    log.delete("T+a", own=(OURS, first))
    log.delete("T+b", own=(OURS, second))
    log.delivered("b", own=(OURS, second))
    found = fold(log.scan)
    assert states(log) == ([], [first], [second])
    assert found.handed_though_cancelled == 2


def test_second_delivery_of_an_id_is_doubled(log: SyntheticLog) -> None:
    timer_id = log.own_timer(OURS, "a")
    log.delivered("a", own=(OURS, timer_id))
    second = log.delivered("a", own=(OURS, timer_id))
    assert fold(log.scan).doubled_rows.tolist() == [second]


def test_evidence_stays_where_the_source_is_gone() -> None:
    log = SyntheticLog(first_log_offset=5000, first_queue_offset=40)
    timer_id = log.own_timer(OURS, "a")
    log.delivered("gone", own=(OURS, 3))
    log.timer("moved", own=(OURS, 5))
    found = fold(log.scan)
    assert states(log) == ([5, timer_id], [3], [])
    assert found.next_id == 42


def test_ids_beyond_the_queue_count_for_the_next_one(log: SyntheticLog) -> None:
    log.delivered("gone", own=(OURS, 99))
    assert fold(log.scan, OURS).next_id == 100


def test_foreign_store_id_is_no_id(log: SyntheticLog) -> None:
    """A message that was forwarded from another store must not hand a stranger."""
    timer_id = log.own_timer(OURS, "a")
    orphan = log.delivered("x", own=(STRANGER, timer_id))
    log.delete("T+y", own=(STRANGER, timer_id))
    found = fold(log.scan)
    assert states(log) == ([timer_id], [], [])
    assert found.orphan_rows.tolist() == [orphan]


def test_a_delivery_of_what_was_sent_on_with_the_id_of_another(log: SyntheticLog) -> None:
    """By a broker, of a message that a client sent on with our TS_ID: not to be delivered again."""
    first = log.own_timer(OURS, "a")
    log.delivered("a", own=(OURS, first))
    sent_on, waits = log.timer("b"), log.timer("c")
    log.delivered("b", own=(OURS, first))
    assert states(log) == ([waits], [first, sent_on], [])
    assert fold(log.scan).doubled_count == 0
    again = log.delivered("b", own=(OURS, first))
    doubled = log.delivered("a", own=(OURS, first))
    assert fold(log.scan).doubled_rows.tolist() == [again, doubled]


def test_the_same_where_the_first_is_gone() -> None:
    log = SyntheticLog(first_log_offset=5000, first_queue_offset=40)
    log.own_timer(OURS, "z")
    sent_on = log.timer("b")
    log.delivered("b", own=(OURS, 3))
    assert states(log) == ([40], [3, sent_on], [])
    assert fold(log.scan).doubled_count == 0


def test_a_copy_of_what_was_sent_on_that_a_broker_rolled() -> None:
    """It names the first one's id still, which is gone by now: of one message one copy waits."""
    log = SyntheticLog(first_log_offset=5000, first_queue_offset=40)
    own = log.own_timer(OURS, "z")
    log.timer("z", rolls=1, own=(OURS, own))
    log.timer("b")
    rolled = log.timer("b", rolls=1, own=(OURS, 3))
    assert states(log) == ([own, rolled], [], [])


def gone_before() -> tuple[SyntheticLog, int]:
    """A log whose beginning is removed, and a source of ours that is left."""
    log = SyntheticLog(first_log_offset=5000, first_queue_offset=40)
    return log, log.own_timer(OURS, "z")


def test_a_roll_count_that_was_left_on_what_was_sent_on(log: SyntheticLog) -> None:
    """It is no copy of the first one, whose key or time is another."""
    first = log.own_timer(OURS, "a")
    log.delivered("a", own=(OURS, first))
    sent_on = log.timer("a", 2000, rolls=1, own=(OURS, first))
    assert states(log) == ([sent_on], [first], [])
    log.delivered("a", 2000, own=(OURS, first))  # by a broker
    assert states(log) == ([], [first, sent_on], [])
    assert fold(log.scan).doubled_count == 0


def test_the_same_of_what_a_delivery_alone_tells() -> None:
    log, own = gone_before()
    log.delivered("a", own=(OURS, 3))
    sent_on = log.timer("b", rolls=1, own=(OURS, 3))
    assert states(log) == ([own, sent_on], [3], [])


def test_what_a_broker_rolled_of_our_own_stays_so() -> None:
    """Whatever is left to tell: its source, its delete record, its delivery, or nothing."""
    for told in ("source", "delete", "delivered", ""):
        log, own = gone_before()
        source = log.own_timer(OURS, "a") if told == "source" else 3
        log.timer("a", rolls=1, own=(OURS, source))
        if told == "delete":
            log.delete("T+a", own=(OURS, source))
        elif told == "delivered":
            log.delivered("a", own=(OURS, source))
        found = fold(log.scan)
        waits = {own} if told.startswith("d") else {own, source}
        assert set(found.ids_waiting.tolist()) == waits
        assert found.ids_handed.tolist() == ([source] if told == "delivered" else [])
        assert found.ids_cancelled.tolist() == ([source] if told == "delete" else [])
        assert (found.doubled_count, len(found.orphan_rows)) == (0, 0)


@pytest.mark.parametrize("is_delete", [False, True])
def test_a_copy_of_what_was_sent_on_whose_original_is_gone(*, is_delete: bool) -> None:
    """What became of it says the original's place: the copy does not come once more."""
    log, own = gone_before()
    copy = log.timer("b", rolls=1, own=(OURS, 3))
    if is_delete:
        log.delete("T+b", own=(OURS, 30))
        assert states(log) == ([own], [copy], [30])
    else:
        log.delivered("b", own=(OURS, 30))
        assert states(log) == ([own], [30, copy], [])
    assert (fold(log.scan).doubled_count, len(fold(log.scan).orphan_rows)) == (0, 0)


def test_two_that_were_sent_on_alike() -> None:
    """Of two messages with one key and time, one of which came, the other comes still."""
    log, own = gone_before()
    log.timer("b")
    log.timer("b")
    one, other = log.timer("b", rolls=1, own=(OURS, 3)), log.timer("b", rolls=1, own=(OURS, 3))
    assert states(log) == ([own, one, other], [], [])
    log.delivered("b", own=(OURS, one))
    assert states(log) == ([own, other], [one], [])


def test_an_id_that_we_have_still_to_give(log: SyntheticLog) -> None:
    """A client sends on what a store gave before it was restored; what rolled of ours stays so."""
    own = log.own_timer(OURS, "a")
    log.timer("a", rolls=1, own=(OURS, own))
    sent_on = log.timer("b", own=(OURS, 50))
    found = fold(log.scan, known_id=OURS)
    assert found.ids_waiting.tolist() == [own, sent_on]
    assert found.store_id == OURS


def test_a_delivery_of_an_imported_one_hands_no_other(log: SyntheticLog) -> None:
    """Two sends of the same key and time, one of which we delivered by its place."""
    first, other = log.timer("a"), log.timer("a")
    log.own_timer(OURS, "z")
    log.delivered("a", own=(OURS, first))
    assert states(log) == ([other, 2], [first], [])


def test_foreign_store_id_with_ids_above_its_queue_does_not_vouch(log: SyntheticLog) -> None:
    log.timer("x", own=(STRANGER, 0))
    log.timer("y", own=(STRANGER, 55))
    timer_id = log.own_timer(OURS, "a")
    assert fold(log.scan).store_ids == (OURS,)
    assert states(log) == ([0, 1, timer_id], [], [])


def test_store_id_without_a_source_of_its_own_does_not_vouch(log: SyntheticLog) -> None:
    log.next_queue_offset = 9
    log.timer("x", own=(STRANGER, 4))
    assert fold(log.scan).store_id is None
    assert states(log) == ([9], [], [])


def test_newest_own_store_id_counts_for_any_timer(log: SyntheticLog) -> None:
    older, ours = log.own_timer(OLDER, "a"), log.own_timer(OURS, "b")
    log.delivered("a", own=(OURS, older))
    assert states(log) == ([ours], [older], [])


def test_two_own_store_ids_each_with_its_sources(log: SyntheticLog) -> None:
    older, ours = log.own_timer(OLDER, "a"), log.own_timer(OURS, "b")
    log.delivered("a", own=(OLDER, older))
    log.delivered("z", own=(OLDER, ours))  # OLDER never had this id: a stranger
    found = fold(log.scan)
    assert found.store_ids == (OLDER, OURS)
    assert found.store_id == OURS
    assert states(log) == ([ours], [older], [])
    assert len(found.orphan_rows) == 1


def test_given_store_id_needs_no_vouching(log: SyntheticLog) -> None:
    log.timer("moved", own=(OURS, 0))
    log.next_queue_offset = 9
    log.timer("moved too", own=(OURS, 4))
    assert states(log, OURS) == ([0, 4], [], [])
    assert fold(log.scan, OURS).store_id == OURS


def test_without_own_store_id_deliveries_are_matched_by_key(log: SyntheticLog) -> None:
    """An imported store that lost its side files before it had a source of its own."""
    log.timer("a")
    log.delivered("a", own=(OURS, 0))
    assert fold(log.scan).store_id is None
    assert states(log) == ([], [0], [])


def test_brokers_delete_reaches_our_timer(log: SyntheticLog) -> None:
    timer_id = log.own_timer(OURS, "a")
    log.delete("T+a")
    assert states(log) == ([], [], [timer_id])


def test_brokers_delete_spares_our_later_timer(log: SyntheticLog) -> None:
    log.timer("a")
    log.delete("T+a")
    timer_id = log.own_timer(OURS, "a")
    assert states(log) == ([timer_id], [], [0])


def test_brokers_delete_reaches_our_timer_though_copied_later(log: SyntheticLog) -> None:
    timer_id = log.own_timer(OURS, "a")
    log.delete("T+a")
    log.timer("a", rolls=1, own=(OURS, timer_id))
    assert states(log) == ([], [], [timer_id])


def test_last_of_equal_deletes_counts_for_our_timer(log: SyntheticLog) -> None:
    log.delete("T+z")
    log.delete("T+a")
    timer_id = log.own_timer(OURS, "a")
    log.delete("T+a")
    assert states(log) == ([], [], [timer_id])


# --- imported messages that we went on with -------------------------------------------------------


def test_our_delivery_of_an_imported_message(log: SyntheticLog) -> None:
    log.own_timer(OURS, "o")
    log.timer("a")
    log.timer("a", rolls=1)
    log.delivered("a", own=(OURS, 2))
    assert states(log) == ([0], [2], [])


def test_our_cancel_of_an_imported_message(log: SyntheticLog) -> None:
    log.own_timer(OURS, "o")
    log.timer("a")
    log.delete("T+a", own=(OURS, 1))
    assert states(log) == ([0], [], [1])


def test_our_roll_of_an_imported_message_keeps_its_id(log: SyntheticLog) -> None:
    log.own_timer(OURS, "o")
    log.timer("a")
    log.timer("a", rolls=1)
    log.timer("a", rolls=2, own=(OURS, 2))
    found = fold(log.scan)
    assert states(log) == ([0, 2], [], [])
    assert found.rows_waiting.tolist() == [0, 3]
    log.delivered("a", own=(OURS, 2))
    assert states(log) == ([0], [2], [])


def test_each_of_two_imported_twins_has_its_own_id(log: SyntheticLog) -> None:
    log.own_timer(OURS, "o")
    log.timer("a")
    log.timer("a")
    log.delivered("a", own=(OURS, 2))
    assert states(log) == ([0, 1], [2], [])
    log.delivered("a")
    assert states(log) == ([0], [1, 2], [])
    assert fold(log.scan).doubled_count == 0


def test_broker_rolls_an_imported_message_after_we_cancelled_it(log: SyntheticLog) -> None:
    log.own_timer(OURS, "o")
    log.timer("a")
    log.delete("T+a", own=(OURS, 1))
    log.timer("a", rolls=1)
    assert states(log) == ([0], [], [1])


def test_broker_delivers_an_imported_message_that_we_moved(log: SyntheticLog) -> None:
    log.own_timer(OURS, "o")
    log.timer("a")
    log.timer("a", own=(OURS, 1))
    log.delivered("a")  # from the old copy: no TS_ID
    assert states(log) == ([0], [1], [])


def test_claim_of_a_superseded_copy_takes_what_is_free(log: SyntheticLog) -> None:
    """Two sends, the first rolled: claims of the rolled copy and of its source are two messages."""
    log.own_timer(OURS, "o")
    log.timer("a")
    log.timer("a")
    log.timer("a", rolls=1)
    log.delivered("a", own=(OURS, 1))
    log.delivered("a", own=(OURS, 3))
    assert states(log) == ([0], [1, 3], [])


def test_one_message_claimed_twice_loses_no_evidence(log: SyntheticLog) -> None:
    log.own_timer(OURS, "o")
    log.timer("a")
    log.timer("a", rolls=1)
    log.delivered("a", own=(OURS, 1))
    log.delivered("a", own=(OURS, 2))
    assert states(log) == ([0], [1, 2], [])


def test_our_later_copy_of_an_imported_message_shows_that_it_waited(log: SyntheticLog) -> None:
    log.own_timer(OURS, "o")
    log.timer("a")
    log.delete("T+a")
    log.timer("a", own=(OURS, 1))
    assert states(log) == ([0, 1], [], [])


def test_delivery_after_our_decided_delivery_is_doubled(log: SyntheticLog) -> None:
    log.own_timer(OURS, "o")
    log.timer("a")
    log.delivered("a", own=(OURS, 1))
    second = log.delivered("a")
    assert fold(log.scan).doubled_rows.tolist() == [second]


# --- fixed levels ---------------------------------------------------------------------------------


def test_levels_are_matched_by_key_and_level(log: SyntheticLog) -> None:
    first, second = log.level("a", 3), log.level("a", 4)
    other = log.level("b", 4)
    log.level("a", 4, delivered=True)
    found = fold(log.scan)
    assert found.level_rows_waiting.tolist() == [first, other]
    assert found.level_handed_count == 1
    doubled = log.level("a", 4, delivered=True)
    assert second < other < doubled
    assert fold(log.scan).doubled_rows.tolist() == [doubled]


def test_level_delivery_without_source_is_an_orphan(log: SyntheticLog) -> None:
    orphan = log.level("a", 3, delivered=True)
    found = fold(log.scan)
    assert found.orphan_rows.tolist() == [orphan]


def test_retry_of_a_delivered_timer_is_a_levels_delivery(log: SyntheticLog) -> None:
    """A consumer's send-back of a delivered timer carries TIMER_OUT_MS through a level."""
    waiting = log.level("b", 4)
    log.level("a", 3)
    log.delivered("a", level=3)
    found = fold(log.scan)
    assert (found.level_rows_waiting.tolist(), found.level_handed_count) == ([waiting], 1)
    assert len(found.orphan_rows) == 0


def test_our_delivery_of_a_level_hands_the_place_that_it_names(log: SyntheticLog) -> None:
    """Equal messages: by matching the first would count as out."""
    first, second = log.level("a", 3, offset=0), log.level("a", 3, offset=1)
    log.level("a", 3, delivered=True, names=1)
    found = fold(log.scan)
    assert found.level_rows_waiting.tolist() == [first]
    assert found.level_places_done.tolist() == [2 << PLACE_OFFSET_BITS | 1]
    log.level("a", 3, delivered=True, names=0)
    doubled = log.level("a", 3, delivered=True, names=0)
    found = fold(log.scan)
    assert (found.level_rows_waiting.tolist(), found.doubled_rows.tolist()) == ([], [doubled])
    assert found.level_places_done.tolist() == [2 << PLACE_OFFSET_BITS | k for k in (0, 1)]
    assert first < second


def test_a_retry_that_carries_our_mark_on_hands_its_own_source(log: SyntheticLog) -> None:
    """Delivered by us, sent back by its consumer, delivered by a broker with our mark on it."""
    log.level("a", 3, offset=0)
    log.level("a", 3, delivered=True, names=0)
    retry = log.level("a", 3, offset=1)
    assert fold(log.scan).level_rows_waiting.tolist() == [retry]
    log.level("a", 3, delivered=True, names=0)
    found = fold(log.scan)
    assert (found.level_rows_waiting.tolist(), found.doubled_count) == ([], 0)


def test_a_mark_of_another_message_is_none(log: SyntheticLog) -> None:
    waiting = log.level("a", 3, offset=0)
    orphan = log.level("stranger", 3, delivered=True, names=0)
    found = fold(log.scan)
    assert found.level_rows_waiting.tolist() == [waiting]
    assert found.orphan_rows.tolist() == [orphan]


def test_retry_of_our_timer_is_a_levels_delivery(log: SyntheticLog) -> None:
    """The same as of a broker's, but that it carries the timer's id for the second time."""
    log.own_timer(OURS, "a")
    log.delivered("a", own=(OURS, 0))
    log.level("a", 3)
    log.delivered("a", own=(OURS, 0), level=3)
    found = fold(log.scan)
    assert (found.level_rows_waiting.tolist(), found.doubled_count) == ([], 0)
    doubled = log.delivered("a", own=(OURS, 0), level=3)
    assert fold(log.scan).doubled_rows.tolist() == [doubled]


def test_a_level_message_that_cannot_be_delivered_is_done(log: SyntheticLog) -> None:
    waiting = log.level("a", 1, offset=0)
    log.append(Kind.LEVEL_UNUSABLE, None, queue_offset=1)
    found = fold(log.scan)
    assert found.level_rows_waiting.tolist() == [waiting]
    assert found.level_places_done.tolist() == [1]


# --- against a plain model ------------------------------------------------------------------------

Event = tuple[str, str, int, int]
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["timer", "timer", "roll", "delivered", "delete"]),
        st.sampled_from("ab"),
        st.sampled_from([1000, 2000]),
        st.integers(1, 3),
    ),
    max_size=30,
)


def write(log: SyntheticLog, event: Event) -> None:
    what, key, out_ms, rolls = event
    if what == "timer":
        log.timer(key, out_ms)
    elif what == "roll":
        log.timer(key, out_ms, rolls=rolls)
    elif what == "delivered":
        log.delivered(key, out_ms)
    else:
        log.delete(f"T+{key}", out_ms)


def modelled(events: list[Event]) -> tuple[list[int], list[int], list[int], int, int]:
    """The same rules, one record after another: (waiting, handed, cancelled, doubled, orphans)."""
    groups: dict[tuple[str, int], list[tuple[str, int, int]]] = defaultdict(list)
    deletes: set[tuple[str, int]] = set()
    queue_offset = 0
    for what, key, out_ms, rolls in events:
        at = queue_offset
        queue_offset += what != "delivered"
        if what == "delete":
            deletes.add((key, out_ms))
        else:
            groups[key, out_ms].append((what, at, rolls if what == "roll" else 0))
    waiting: list[int] = []
    handed: list[int] = []
    cancelled: list[int] = []
    doubled = orphans = 0
    for name, records in groups.items():
        copies = [(rolls, at) for what, at, rolls in records if what != "delivered"]
        without = sum(rolls == 0 for rolls, _ in copies)
        messages = without or min(1, len(copies))
        living = sorted(copies, reverse=True)[:messages]
        living.sort(key=lambda copy: (-copy[0], copy[1]))
        open_count = out = seen = 0
        for what, _, rolls in records:
            if what == "delivered" and open_count:
                open_count, out = open_count - 1, out + 1
            elif what == "delivered":
                doubled, orphans = doubled + bool(seen), orphans + (not seen)
            else:
                open_count += rolls == 0 if without else not seen
                seen += 1
        handed += [at for _, at in living[:out]]
        (cancelled if name in deletes else waiting).extend(at for _, at in living[out:])
    return sorted(waiting), sorted(handed), sorted(cancelled), doubled, orphans


@given(EVENTS)
def test_matching_agrees_with_the_model(events: list[Event]) -> None:
    log = SyntheticLog()
    for event in events:
        write(log, event)
    found = fold(log.scan)
    assert (*states(log), found.doubled_count, len(found.orphan_rows)) == modelled(events)


# --- whole lives of a store -----------------------------------------------------------------------


class Life:
    """A store that a broker and we open in turns; knows the truth about each message."""

    def __init__(self) -> None:
        self.log = SyntheticLog()
        self.messages: list[dict[str, Any]] = []
        self.by_offset: dict[int, int] = {}

    def copy(self, number: int, *, own: bool) -> None:
        """Put or roll a message; ours carries its id."""
        message = self.messages[number]
        message["row"] = len(self.log.rows)
        ts_id = (OURS, message["id"]) if own or message["carried"] else None
        message["carried"] = ts_id is not None
        at = self.log.timer(message["key"], rolls=message["rolls"], own=ts_id)
        self.by_offset[at] = number
        if ts_id is None:
            message["id"] = at  # an imported message's id is that of its living copy

    def put(self, *, own: bool) -> None:
        number = len(self.messages)
        at = self.log.next_queue_offset
        message = {"key": f"k{number}", "id": at, "state": "waiting", "rolls": 0, "carried": False}
        self.messages.append(message)
        self.copy(number, own=own)

    def roll(self, number: int, *, own: bool) -> None:
        self.messages[number]["rolls"] += 1
        self.copy(number, own=own)

    def hand(self, number: int, *, own: bool) -> None:
        message = self.messages[number]
        message["state"] = "handed"
        ts_id = (OURS, message["id"]) if own or message["carried"] else None
        self.log.delivered(message["key"], own=ts_id)

    def cancel(self, number: int, *, own: bool) -> None:
        message = self.messages[number]
        message["state"] = "cancelled"
        ts_id = (OURS, message["id"]) if own else None
        self.by_offset[self.log.delete(f"T+{message['key']}", own=ts_id)] = number

    def check(self) -> None:
        found: Fold = fold(self.log.scan, OURS)
        for state in ("waiting", "handed", "cancelled"):
            ids = [message["id"] for message in self.messages if message["state"] == state]
            assert getattr(found, f"ids_{state}").tolist() == sorted(ids)
        rows = {message["id"]: message["row"] for message in self.messages}
        for timer_id, row in zip(found.ids_waiting, found.rows_waiting, strict=True):
            assert rows[int(timer_id)] == row
        assert found.doubled_count == len(found.orphan_rows) == 0
        assert found.next_id == self.log.next_queue_offset


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "roll", "hand", "cancel", "check"]),
        st.integers(0, 50),
        st.booleans(),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(STEPS)
def test_lives_of_a_store_between_a_broker_and_us(steps: list[tuple[str, int, bool]]) -> None:
    life = Life()
    for what, pick, own in steps:
        waiting = [at for at, each in enumerate(life.messages) if each["state"] == "waiting"]
        if what == "check":
            life.check()
        elif what == "put":
            life.put(own=own)
        elif waiting:
            getattr(life, what)(waiting[pick % len(waiting)], own=own)
    life.check()


def test_kinds_are_the_scanners() -> None:
    native = pytest.importorskip("timerstore._engine.base.native")
    for kind in Kind:
        assert getattr(native.lib, f"TS_KIND_{kind.name}") == kind
