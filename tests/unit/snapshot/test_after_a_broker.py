"""Pending messages of a store that a broker had between two openings of ours."""

from pathlib import Path

import pytest

import timerstore
from tests.support.bench import NOW, Bench, copied_at
from tests.support.broker import resent as sent_on
from tests.support.inside import look_at_position, view_of
from tests.support.reader_and_owner import fill, same
from timerstore._engine.snapshot.position import take


def _went_on(bench: Bench) -> None:
    """A broker's session: messages of its clients of each kind, and deliveries of our messages."""
    root, at_ms = bench.root, bench.clock.now_ms
    sent_on.delayed(root, "K1", at_ms + 40_000, store_ms=at_ms)
    due = sent_on.delayed(root, "K2", at_ms + 1000, store_ms=at_ms)
    sent_on.delivered(root, due, store_ms=at_ms + 1000)
    sent_on.rolled(
        root, sent_on.delayed(root, "K3", at_ms + 50_000, store_ms=at_ms), store_ms=at_ms
    )


def test_reader_follows_broker_session_over_clean_store(bench: Bench) -> None:
    fill(bench)
    bench.close()
    with timerstore.open(bench.root, bench.config, clock=bench.clock, read_only=True) as one:
        assert len(list(one.pending())) == one.stats()["pending_messages"]
        _went_on(bench)
        bench.open()
        bench.turn()
        bench.store.put("t", b"ours again", delay=30)
        bench.turn()
        bench.store.flush()
        same(one, bench.store)
        bench.turn(45_000)
        bench.store.flush()
        same(one, bench.store)


def test_open_recovers_when_broker_was_killed(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel says that it is open, and the watermark is the one from before that broker."""
    fill(bench)
    bench.close()
    _went_on(bench)
    with copied_at(monkeypatch, "recover_wheel_lengthened", bench.root, tmp_path / "killed"):
        bench.open()
    with timerstore.open(
        tmp_path / "killed", bench.config, clock=bench.clock, read_only=True
    ) as one:
        assert list(one.pending()) == list(bench.store.pending())
        assert {NOW + 2000 + 40_000, NOW + 2000 + 50_000} <= {each.due_ms for each in one.pending()}


@pytest.mark.parametrize("is_open", [True, False])
def test_reader_follows_broker_when_its_first_record_began_a_file(
    bench: Bench, *, is_open: bool
) -> None:
    """A blank at our end, and the record in the next file."""
    fill(bench)
    bench.close()
    before = take(bench.root)
    if is_open:
        one = timerstore.open(bench.root, bench.config, clock=bench.clock, read_only=True)
    sent_on.begin_segment(bench.root)
    sent_on.write(bench.root, "t", {"UNIQ_KEY": "K"}, store_ms=NOW)
    if not is_open:
        one = timerstore.open(bench.root, bench.config, clock=bench.clock, read_only=True)
    with one:
        assert look_at_position(view_of(one)).mark is None
        assert [message.body for message in one.follow("t")][-1] == b"sent on"
    found = take(bench.root)
    assert (found.store_id, found.log_end > before.log_end) == (None, True)
    bench.open()
    assert bench.bodies("t")[-1] == b"sent on"
