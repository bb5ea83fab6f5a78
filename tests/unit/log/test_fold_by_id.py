"""The fold of records that name a timer by its id, and the choice of own store ids."""

from tests.support.synthetic_log import SyntheticLog, timer_states
from timerstore._engine.log.fold import fold

OURS, OLDER, STRANGER = 7, 6, 9


def test_own_timers_are_folded_by_id(log: SyntheticLog) -> None:
    pending, delivered, cancelled = (log.own_timer(OURS, key) for key in "abc")
    log.delivered("b", own=(OURS, delivered))
    log.delete("T+c", own=(OURS, cancelled))
    found = fold(log.scan)
    assert timer_states(log) == ([pending], [delivered], [cancelled])
    assert (found.store_id, found.store_ids) == (OURS, (OURS,))
    assert found.next_id == 4


def test_own_copies_keep_their_id_and_the_last_is_current(log: SyntheticLog) -> None:
    timer_id = log.own_timer(OURS, "a")
    log.timer("a", rolls=1, own=(OURS, timer_id))
    log.timer("a", rolls=2, own=(OURS, timer_id))
    log.timer("a", rolls=1, own=(OURS, timer_id))  # rolled twice by a broker that had crashed
    log.timer("a", rolls=2, own=(OURS, timer_id))  # moved by retention
    found = fold(log.scan)
    assert timer_states(log) == ([timer_id], [], [])
    assert found.rows_pending.tolist() == [4]


def test_most_rolled_own_copy_is_current_when_it_is_not_last(log: SyntheticLog) -> None:
    timer_id = log.own_timer(OURS, "a")
    log.timer("a", rolls=2, own=(OURS, timer_id))
    log.timer("a", rolls=1, own=(OURS, timer_id))
    assert fold(log.scan).rows_pending.tolist() == [1]


def test_own_id_takes_precedence_over_the_key(log: SyntheticLog) -> None:
    first, second = log.own_timer(OURS, "a"), log.own_timer(OURS, "a")
    log.delivered("a", own=(OURS, second))
    assert timer_states(log) == ([first], [second], [])


def test_first_evidence_of_an_id_decides(log: SyntheticLog) -> None:
    first, second = log.own_timer(OURS, "a"), log.own_timer(OURS, "b")
    log.delivered("a", own=(OURS, first))
    log.delete("T+a", own=(OURS, first))
    log.delete("T+b", own=(OURS, second))
    log.delivered("b", own=(OURS, second))
    found = fold(log.scan)
    assert timer_states(log) == ([], [first], [second])
    assert found.delivered_though_cancelled == 2


def test_second_delivery_of_an_id_is_a_duplicate(log: SyntheticLog) -> None:
    timer_id = log.own_timer(OURS, "a")
    log.delivered("a", own=(OURS, timer_id))
    second = log.delivered("a", own=(OURS, timer_id))
    assert fold(log.scan).duplicate_rows.tolist() == [second]


def test_evidence_counts_when_the_source_is_gone() -> None:
    log = SyntheticLog(first_log_offset=5000, first_queue_offset=40)
    timer_id = log.own_timer(OURS, "a")
    log.delivered("gone", own=(OURS, 3))
    log.timer("moved", own=(OURS, 5))
    found = fold(log.scan)
    assert timer_states(log) == ([5, timer_id], [3], [])
    assert found.next_id == 42


def test_next_id_is_above_ids_past_the_queue(log: SyntheticLog) -> None:
    log.delivered("gone", own=(OURS, 99))
    assert fold(log.scan, OURS).next_id == 100


# --- own and foreign store ids ---


def test_foreign_store_id_is_ignored(log: SyntheticLog) -> None:
    """A message that was forwarded from another store must not deliver a timer of this store."""
    timer_id = log.own_timer(OURS, "a")
    orphan = log.delivered("x", own=(STRANGER, timer_id))
    log.delete("T+y", own=(STRANGER, timer_id))
    found = fold(log.scan)
    assert timer_states(log) == ([timer_id], [], [])
    assert found.orphan_rows.tolist() == [orphan]


def test_store_id_with_ids_above_its_queue_is_not_own(log: SyntheticLog) -> None:
    log.timer("x", own=(STRANGER, 0))
    log.timer("y", own=(STRANGER, 55))
    timer_id = log.own_timer(OURS, "a")
    assert fold(log.scan).store_ids == (OURS,)
    assert timer_states(log) == ([0, 1, timer_id], [], [])


def test_store_id_without_a_source_is_not_own(log: SyntheticLog) -> None:
    log.next_queue_offset = 9
    log.timer("x", own=(STRANGER, 4))
    assert fold(log.scan).store_id is None
    assert timer_states(log) == ([9], [], [])


def test_newest_own_store_id_names_any_timer(log: SyntheticLog) -> None:
    older, ours = log.own_timer(OLDER, "a"), log.own_timer(OURS, "b")
    log.delivered("a", own=(OURS, older))
    assert timer_states(log) == ([ours], [older], [])


def test_each_of_two_own_store_ids_has_its_sources(log: SyntheticLog) -> None:
    older, ours = log.own_timer(OLDER, "a"), log.own_timer(OURS, "b")
    log.delivered("a", own=(OLDER, older))
    log.delivered("z", own=(OLDER, ours))  # foreign: OLDER never had this id
    found = fold(log.scan)
    assert found.store_ids == (OLDER, OURS)
    assert found.store_id == OURS
    assert timer_states(log) == ([ours], [older], [])
    assert len(found.orphan_rows) == 1


def test_given_store_id_is_own_without_a_source(log: SyntheticLog) -> None:
    log.timer("moved", own=(OURS, 0))
    log.next_queue_offset = 9
    log.timer("moved too", own=(OURS, 4))
    assert timer_states(log, OURS) == ([0, 4], [], [])
    assert fold(log.scan, OURS).store_id == OURS


def test_deliveries_are_matched_by_key_when_no_store_id_is_own(log: SyntheticLog) -> None:
    """An imported store lost its side files before it had a source of its own."""
    log.timer("a")
    log.delivered("a", own=(OURS, 0))
    assert fold(log.scan).store_id is None
    assert timer_states(log) == ([], [0], [])


# --- delete records of a broker ---


def test_brokers_delete_cancels_an_own_timer(log: SyntheticLog) -> None:
    timer_id = log.own_timer(OURS, "a")
    log.delete("T+a")
    assert timer_states(log) == ([], [], [timer_id])


def test_brokers_delete_does_not_cancel_a_later_own_timer(log: SyntheticLog) -> None:
    log.timer("a")
    log.delete("T+a")
    timer_id = log.own_timer(OURS, "a")
    assert timer_states(log) == ([timer_id], [], [0])


def test_brokers_delete_cancels_an_own_timer_that_is_copied_later(log: SyntheticLog) -> None:
    timer_id = log.own_timer(OURS, "a")
    log.delete("T+a")
    log.timer("a", rolls=1, own=(OURS, timer_id))
    assert timer_states(log) == ([], [], [timer_id])


def test_last_of_equal_deletes_cancels_an_own_timer(log: SyntheticLog) -> None:
    log.delete("T+z")
    log.delete("T+a")
    timer_id = log.own_timer(OURS, "a")
    log.delete("T+a")
    assert timer_states(log) == ([], [], [timer_id])
