"""The fold of imported messages that this store continued, and of delay levels."""

from tests.support.record_kind import RecordKind
from tests.support.synthetic_log import SyntheticLog, timer_states
from timerstore._engine.log.fold import fold
from timerstore._engine.log.scanned_records import PLACE_OFFSET_BITS

OURS = 7


def test_own_delivery_delivers_an_imported_message(log: SyntheticLog) -> None:
    log.own_timer(OURS, "o")
    log.timer("a")
    log.timer("a", rolls=1)
    log.delivered("a", own=(OURS, 2))
    assert timer_states(log) == ([0], [2], [])


def test_own_cancel_cancels_an_imported_message(log: SyntheticLog) -> None:
    log.own_timer(OURS, "o")
    log.timer("a")
    log.delete("T+a", own=(OURS, 1))
    assert timer_states(log) == ([0], [], [1])


def test_own_roll_of_an_imported_message_keeps_its_id(log: SyntheticLog) -> None:
    log.own_timer(OURS, "o")
    log.timer("a")
    log.timer("a", rolls=1)
    log.timer("a", rolls=2, own=(OURS, 2))
    found = fold(log.scan)
    assert timer_states(log) == ([0, 2], [], [])
    assert found.rows_pending.tolist() == [0, 3]
    log.delivered("a", own=(OURS, 2))
    assert timer_states(log) == ([0], [2], [])


def test_two_equal_imported_messages_have_separate_ids(log: SyntheticLog) -> None:
    log.own_timer(OURS, "o")
    log.timer("a")
    log.timer("a")
    log.delivered("a", own=(OURS, 2))
    assert timer_states(log) == ([0, 1], [2], [])
    log.delivered("a")
    assert timer_states(log) == ([0], [1, 2], [])
    assert len(fold(log.scan).duplicate_rows) == 0


def test_brokers_roll_of_a_cancelled_import_stays_cancelled(log: SyntheticLog) -> None:
    log.own_timer(OURS, "o")
    log.timer("a")
    log.delete("T+a", own=(OURS, 1))
    log.timer("a", rolls=1)
    assert timer_states(log) == ([0], [], [1])


def test_brokers_delivery_delivers_a_moved_import(log: SyntheticLog) -> None:
    log.own_timer(OURS, "o")
    log.timer("a")
    log.timer("a", own=(OURS, 1))
    log.delivered("a")  # from the old copy: no TS_ID
    assert timer_states(log) == ([0], [1], [])


def test_claim_of_a_superseded_copy_takes_a_free_message(log: SyntheticLog) -> None:
    """Of two sends the first rolled. Claims of its rolled copy and its source are two messages."""
    log.own_timer(OURS, "o")
    log.timer("a")
    log.timer("a")
    log.timer("a", rolls=1)
    log.delivered("a", own=(OURS, 1))
    log.delivered("a", own=(OURS, 3))
    assert timer_states(log) == ([0], [1, 3], [])


def test_message_claimed_twice_keeps_both_claims(log: SyntheticLog) -> None:
    log.own_timer(OURS, "o")
    log.timer("a")
    log.timer("a", rolls=1)
    log.delivered("a", own=(OURS, 1))
    log.delivered("a", own=(OURS, 2))
    assert timer_states(log) == ([0], [1, 2], [])


def test_own_copy_after_a_brokers_delete_keeps_an_import_pending(log: SyntheticLog) -> None:
    log.own_timer(OURS, "o")
    log.timer("a")
    log.delete("T+a")
    log.timer("a", own=(OURS, 1))
    assert timer_states(log) == ([0, 1], [], [])


def test_delivery_after_an_own_delivery_is_a_duplicate(log: SyntheticLog) -> None:
    log.own_timer(OURS, "o")
    log.timer("a")
    log.delivered("a", own=(OURS, 1))
    second = log.delivered("a")
    assert fold(log.scan).duplicate_rows.tolist() == [second]


# --- delay levels ---


def test_levels_are_matched_by_key_and_level(log: SyntheticLog) -> None:
    first, second = log.level("a", 3), log.level("a", 4)
    other = log.level("b", 4)
    log.level("a", 4, delivered=True)
    found = fold(log.scan)
    assert found.level_rows_pending.tolist() == [first, other]
    assert len(found.level_places_done) == 1
    duplicate = log.level("a", 4, delivered=True)
    assert second < other < duplicate
    assert fold(log.scan).duplicate_rows.tolist() == [duplicate]


def test_level_delivery_without_source_is_an_orphan(log: SyntheticLog) -> None:
    orphan = log.level("a", 3, delivered=True)
    found = fold(log.scan)
    assert found.orphan_rows.tolist() == [orphan]


def test_retry_of_a_brokers_timer_is_a_level_delivery(log: SyntheticLog) -> None:
    """A consumer's send-back of a delivered timer carries TIMER_OUT_MS through a level."""
    pending = log.level("b", 4)
    log.level("a", 3)
    log.delivered("a", level=3)
    found = fold(log.scan)
    assert (found.level_rows_pending.tolist(), len(found.level_places_done)) == ([pending], 1)
    assert len(found.orphan_rows) == 0


def test_own_level_delivery_delivers_the_named_place(log: SyntheticLog) -> None:
    """The messages are equal. By matching, the first would count as delivered."""
    first, second = log.level("a", 3, offset=0), log.level("a", 3, offset=1)
    log.level("a", 3, delivered=True, names=1)
    found = fold(log.scan)
    assert found.level_rows_pending.tolist() == [first]
    assert found.level_places_done.tolist() == [2 << PLACE_OFFSET_BITS | 1]
    log.level("a", 3, delivered=True, names=0)
    duplicate = log.level("a", 3, delivered=True, names=0)
    found = fold(log.scan)
    assert (found.level_rows_pending.tolist(), found.duplicate_rows.tolist()) == ([], [duplicate])
    assert found.level_places_done.tolist() == [2 << PLACE_OFFSET_BITS | k for k in (0, 1)]
    assert first < second


def test_retry_with_an_own_mark_delivers_its_own_source(log: SyntheticLog) -> None:
    """A consumer sent a delivery of this store back; a broker delivered it with our mark."""
    log.level("a", 3, offset=0)
    log.level("a", 3, delivered=True, names=0)
    retry = log.level("a", 3, offset=1)
    assert fold(log.scan).level_rows_pending.tolist() == [retry]
    log.level("a", 3, delivered=True, names=0)
    found = fold(log.scan)
    assert (found.level_rows_pending.tolist(), len(found.duplicate_rows)) == ([], 0)


def test_mark_of_another_message_is_ignored(log: SyntheticLog) -> None:
    pending = log.level("a", 3, offset=0)
    orphan = log.level("stranger", 3, delivered=True, names=0)
    found = fold(log.scan)
    assert found.level_rows_pending.tolist() == [pending]
    assert found.orphan_rows.tolist() == [orphan]


def test_retry_of_an_own_timer_is_a_level_delivery(log: SyntheticLog) -> None:
    """Like the retry of a broker's timer, but it names the timer's id for the second time."""
    log.own_timer(OURS, "a")
    log.delivered("a", own=(OURS, 0))
    log.level("a", 3)
    log.delivered("a", own=(OURS, 0), level=3)
    found = fold(log.scan)
    assert (found.level_rows_pending.tolist(), len(found.duplicate_rows)) == ([], 0)
    duplicate = log.delivered("a", own=(OURS, 0), level=3)
    assert fold(log.scan).duplicate_rows.tolist() == [duplicate]


def test_unusable_level_message_is_done(log: SyntheticLog) -> None:
    pending = log.level("a", 1, offset=0)
    log.append(RecordKind.LEVEL_UNUSABLE, None, queue_offset=1)
    found = fold(log.scan)
    assert found.level_rows_pending.tolist() == [pending]
    assert found.level_places_done.tolist() == [1]
