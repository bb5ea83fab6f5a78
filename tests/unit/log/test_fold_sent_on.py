"""The fold of messages that a client sent on with the TS_ID of another message."""

import pytest

from tests.support.synthetic_log import SyntheticLog, timer_states
from timerstore._engine.log.fold import fold

OURS = 7


def test_second_delivery_of_an_id_delivers_a_message_that_was_sent_on(log: SyntheticLog) -> None:
    """A broker delivered a message that a client sent on with our TS_ID."""
    first = log.own_timer(OURS, "a")
    log.delivered("a", own=(OURS, first))
    sent_on, pending = log.timer("b"), log.timer("c")
    log.delivered("b", own=(OURS, first))
    assert timer_states(log) == ([pending], [first, sent_on], [])
    assert len(fold(log.scan).duplicate_rows) == 0
    again = log.delivered("b", own=(OURS, first))
    duplicate = log.delivered("a", own=(OURS, first))
    assert fold(log.scan).duplicate_rows.tolist() == [again, duplicate]


def test_delivery_of_a_gone_id_delivers_a_message_that_was_sent_on() -> None:
    log = SyntheticLog(first_log_offset=5000, first_queue_offset=40)
    log.own_timer(OURS, "z")
    sent_on = log.timer("b")
    log.delivered("b", own=(OURS, 3))
    assert timer_states(log) == ([40], [3, sent_on], [])
    assert len(fold(log.scan).duplicate_rows) == 0


def test_brokers_roll_of_a_sent_on_message_is_one_message() -> None:
    """The copy still names the id of a removed message. Only one copy is pending."""
    log = SyntheticLog(first_log_offset=5000, first_queue_offset=40)
    own = log.own_timer(OURS, "z")
    log.timer("z", rolls=1, own=(OURS, own))
    log.timer("b")
    rolled = log.timer("b", rolls=1, own=(OURS, 3))
    assert timer_states(log) == ([own, rolled], [], [])


def log_with_gone_begin() -> tuple[SyntheticLog, int]:
    """Return a log without its first records, and the id of an own timer in it."""
    log = SyntheticLog(first_log_offset=5000, first_queue_offset=40)
    return log, log.own_timer(OURS, "z")


def test_sent_on_message_with_a_roll_count_is_no_copy_of_the_first(log: SyntheticLog) -> None:
    """Its key or its time differs from that of the first message."""
    first = log.own_timer(OURS, "a")
    log.delivered("a", own=(OURS, first))
    sent_on = log.timer("a", 2000, rolls=1, own=(OURS, first))
    assert timer_states(log) == ([sent_on], [first], [])
    log.delivered("a", 2000, own=(OURS, first))  # by a broker
    assert timer_states(log) == ([], [first, sent_on], [])
    assert len(fold(log.scan).duplicate_rows) == 0


def test_sent_on_message_with_a_roll_count_is_separate_when_only_a_delivery_is_left() -> None:
    log, own = log_with_gone_begin()
    log.delivered("a", own=(OURS, 3))
    sent_on = log.timer("b", rolls=1, own=(OURS, 3))
    assert timer_states(log) == ([own, sent_on], [3], [])


def test_brokers_roll_of_an_own_timer_keeps_its_id() -> None:
    """It does so with its source, its delete record, its delivery, or none of them in the log."""
    for evidence in ("source", "delete", "delivered", ""):
        log, own = log_with_gone_begin()
        source = log.own_timer(OURS, "a") if evidence == "source" else 3
        log.timer("a", rolls=1, own=(OURS, source))
        if evidence == "delete":
            log.delete("T+a", own=(OURS, source))
        elif evidence == "delivered":
            log.delivered("a", own=(OURS, source))
        found = fold(log.scan)
        pending = {own} if evidence.startswith("d") else {own, source}
        assert set(found.ids_pending.tolist()) == pending
        assert found.ids_delivered.tolist() == ([source] if evidence == "delivered" else [])
        assert found.ids_cancelled.tolist() == ([source] if evidence == "delete" else [])
        assert (len(found.duplicate_rows), len(found.orphan_rows)) == (0, 0)


@pytest.mark.parametrize("is_delete", [False, True])
def test_copy_of_a_sent_on_message_is_decided_by_the_id_of_its_original(*, is_delete: bool) -> None:
    """A delivery or delete of the original's id decides, so the copy is not delivered again."""
    log, own = log_with_gone_begin()
    copy = log.timer("b", rolls=1, own=(OURS, 3))
    if is_delete:
        log.delete("T+b", own=(OURS, 30))
        assert timer_states(log) == ([own], [copy], [30])
    else:
        log.delivered("b", own=(OURS, 30))
        assert timer_states(log) == ([own], [30, copy], [])
    assert (len(fold(log.scan).duplicate_rows), len(fold(log.scan).orphan_rows)) == (0, 0)


def test_two_equal_sent_on_messages_are_two_messages() -> None:
    """Key and time are equal. After one is delivered, the other is still pending."""
    log, own = log_with_gone_begin()
    log.timer("b")
    log.timer("b")
    one, other = log.timer("b", rolls=1, own=(OURS, 3)), log.timer("b", rolls=1, own=(OURS, 3))
    assert timer_states(log) == ([own, one, other], [], [])
    log.delivered("b", own=(OURS, one))
    assert timer_states(log) == ([own, other], [one], [])


def test_known_store_id_stays_own_when_a_client_sends_a_later_id(log: SyntheticLog) -> None:
    """A client sends on an id that this store gave before it was restored from a backup."""
    own = log.own_timer(OURS, "a")
    log.timer("a", rolls=1, own=(OURS, own))
    sent_on = log.timer("b", own=(OURS, 50))
    found = fold(log.scan, known_id=OURS)
    assert found.ids_pending.tolist() == [own, sent_on]
    assert found.store_id == OURS


def test_delivery_of_an_imported_message_does_not_deliver_an_equal_one(log: SyntheticLog) -> None:
    """Two sends have the same key and time; this store delivered one by its queue offset."""
    first, other = log.timer("a"), log.timer("a")
    log.own_timer(OURS, "z")
    log.delivered("a", own=(OURS, first))
    assert timer_states(log) == ([other, 2], [first], [])
