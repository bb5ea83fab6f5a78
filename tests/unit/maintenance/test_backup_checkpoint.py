"""Backup: everything in it is as of one checkpoint, whatever happens during the copy."""

from collections.abc import Callable

import pytest

from tests.support.backups import restored
from tests.support.bench import Bench
from tests.support.elsewhere import elsewhere
from tests.support.inside import COPIER_CONFIG_TEXTS
from timerstore import (
    AckResult,
)
from timerstore._engine.base import failpoints
from timerstore._engine.maintenance import backup as copying


def between_reads(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> None:
    """Have something happen when the backup has read its first file, once."""
    real, calls = COPIER_CONFIG_TEXTS.value, [call]

    def config_texts(self: copying.Copier) -> dict[str, str]:
        found = real(self)
        if calls:
            calls.pop()()
        return found

    monkeypatch.setattr(*COPIER_CONFIG_TEXTS, config_texts)


def at_point(monkeypatch: pytest.MonkeyPatch, point: str, call: Callable[[], object]) -> None:
    """Have another thread do something while this one is at a fail point, once."""
    calls = [call]

    def hook(name: str) -> None:
        if name == point and calls:
            elsewhere(calls.pop())

    monkeypatch.setattr(failpoints, "hook", hook)


POINTS = ["", "checkpoint_taken", "checkpoint_log_synced", "checkpoint_watermark_written"]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("flushes", [False, True])
def test_backup_has_recurring_definitions_and_runs_of_one_checkpoint(
    source: Bench, monkeypatch: pytest.MonkeyPatch, point: str, flushes: bool
) -> None:
    source.store.put_every("t", b"old", every=60, name="old")
    source.turn()

    def change() -> None:
        source.store.put_every("t", b"new", every=60, name="new")
        assert source.store.cancel_every("old")
        if flushes:
            source.store.flush()

    if point:
        flushes = False
        at_point(monkeypatch, point, change)
    else:
        between_reads(monkeypatch, change)
    source.store.backup(source.root.parent / "backup")
    monkeypatch.undo()
    again = restored(source, source.root.parent / "backup")
    again.turn()
    names = [one.name for one in again.store.recurring()]
    assert names in (["old"], ["new"])
    assert [one.message_id.split("/")[1] for one in again.store.pending()] == names
    for _ in range(3):
        again.turn(60_000)
    assert again.bodies() == [names[0].encode()] * 3
    again.close()


@pytest.mark.parametrize("point", POINTS)
def test_backup_keeps_messages_that_are_leased_during_copy(
    source: Bench, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """What says how far a group is must not be ahead of the leases that are in the backup."""
    source.store.put_many("t", [b"a", b"b", b"c"])
    source.turn()
    [first] = source.store.receive("t", "g", lease=30)
    assert source.store.ack(first) is AckResult.ACKED

    def lease() -> None:
        source.store.receive("t", "g", lease=30)

    if point:
        at_point(monkeypatch, point, lease)
    else:
        between_reads(monkeypatch, lease)
    source.store.backup(source.root.parent / "backup")
    monkeypatch.undo()
    again = restored(source, source.root.parent / "backup")
    again.turn(31_000)
    found = again.store.receive("t", "g", lease=30, max_count=10)
    assert sorted(one.body for one in found) == [b"b", b"c"]
    again.close()
