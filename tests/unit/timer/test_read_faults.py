"""A file cannot be opened while a batch of due messages is read: none of them is lost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import Bench, small
from timerstore._engine.storage.disk import Disk, File
from timerstore.errors import FullError


def failing(monkeypatch: pytest.MonkeyPatch, folder: str, nth: int) -> Callable[[], int]:
    """Make the n-th opening of a file in this folder fail once. Return a counter of failures."""
    whole, left, hits = Disk.open, nth, 0

    def open_(self: Disk, path: Path, **given: Any) -> File:
        nonlocal left, hits
        if path.parent.name == folder:
            left -= 1
            if left == 0:
                hits += 1
                raise FullError("open: No space left on device", where=path)
        return whole(self, path, **given)

    monkeypatch.setattr(Disk, "open", open_)
    return lambda: hits


@pytest.mark.parametrize(("folder", "nth"), [
    ("timerlog", 1), ("timerlog", 2), ("timerlog", 3), ("timerlog", 9),
    ("commitlog", 1), ("commitlog", 2), ("commitlog", 3),
])  # fmt: skip
def test_due_messages_are_kept_when_file_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, nth: int
) -> None:
    sizes = small(timer_log_segment_bytes=128, commit_log_segment_bytes=16 * 1024)
    bench = Bench(tmp_path / "s", sizes)
    for k in range(40):
        bench.store.put("t", b"%02d" % k + bytes(900), deliver_ms=bench.clock.now_ms + 500 * k)
    bench.stepper.settle()
    bench.reopen()  # no file is mapped
    hits = failing(monkeypatch, folder, nth)
    bench.clock.advance(60_000)
    services = bench.store.services()
    for _ in range(2):  # a service that fails is stepped again, as its thread would do
        for name in ("dequeue_get", "dequeue_get_message", "dequeue_put") * 3:
            try:
                while services[name].step():
                    pass
            except FullError:
                continue
    bench.stepper.settle()
    assert hits() == 1
    assert [int(body[:2]) for body in bench.bodies()] == list(range(40))
    bench.close()
