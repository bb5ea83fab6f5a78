"""A store to back up, and the messages and timers of a restored one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import timerstore
from tests.support.bench import Bench, small
from tests.support.inside import failpoints
from timerstore import (
    PutReceipt,
)

SEGMENT = 16 * 1024


def fill(bench: Bench, count: int, begin: int = 0, delay_s: float = 60.0) -> list[PutReceipt]:
    return [
        bench.store.put("t", b"%05d" % n + bytes(300), delay=delay_s, keys=(f"k{n}",))
        for n in range(begin, begin + count)
    ]


def restored(bench: Bench, backup: Path, name: str = "restored") -> Bench:
    path = bench.root.parent / name
    timerstore.restore(backup, path)
    assert timerstore.verify_directory(path).clean
    return Bench(path, small(commit_log_segment_bytes=SEGMENT), bench.clock.now_ms)


@contextmanager
def cut_at(monkeypatch: pytest.MonkeyPatch, point: str) -> Iterator[None]:
    """End the call inside at a fail point."""

    def hook(name: str) -> None:
        if name == point:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "hook", hook)
        with pytest.raises(KeyboardInterrupt):
            yield


def numbers(bench: Bench) -> list[int]:
    return [int(message.body[:5]) for message in bench.out()]
