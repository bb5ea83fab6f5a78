"""Memory of pages is reused, but never while a reference to it exists."""

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timerstore
from tests.support.bench import small
from tests.support.inside import kept_buffers, page_buffers
from tests.support.switching import many_switches
from timerstore._engine.read.page import Buffers, Page
from timerstore.testing import Stepper

SIZE = 1 << 20


def place(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def test_released_buffer_is_reused() -> None:
    buffers = Buffers()
    taken = buffers.take(SIZE)
    at = place(taken)
    del taken
    for size in (SIZE, SIZE // 2, SIZE + SIZE // 8):
        again = buffers.take(size)
        assert place(again) == at
        assert len(again) >= size
        del again


VIEWS = {
    "the array": lambda array: array,
    "a part": lambda array: array[10:20],
    "a part of a part": lambda array: array[10:90][5:7],
    "another type": lambda array: array[:800].view(np.int64)[3:],
    "a field": lambda array: array[:1600].view([("a", np.int64), ("b", np.int64)])["b"],
    "a memoryview": lambda array: memoryview(array)[5:6],
    "a cast one": lambda array: memoryview(array)[:8].cast("B").cast("q"),
    "an array of a memoryview": lambda array: np.frombuffer(memoryview(array)[:8], np.int64),
    "in a list": lambda array: [{"x": (array,)}],
}


@pytest.mark.parametrize("name", list(VIEWS))
def test_buffer_is_not_reused_while_referenced(name: str) -> None:
    buffers = Buffers()
    taken = buffers.take(SIZE)
    at, view = place(taken), VIEWS[name](taken)
    del taken
    others = [buffers.take(SIZE) for _ in range(3)]
    assert at not in [place(one) for one in others]
    del view
    assert place(buffers.take(SIZE)) == at


@pytest.mark.more
def test_concurrent_takes_get_different_buffers() -> None:
    buffers, wrong = Buffers(), []
    with many_switches(1e-6):

        def ask(value: int) -> None:
            for _ in range(5000):
                try:
                    mine = buffers.take(SIZE // 8)
                    mine[:8] = value
                    time.sleep(0)
                    if not (mine[:8] == value).all():
                        wrong.append("another thread has it too")
                except IndexError as error:
                    wrong.append(str(error))
                del mine

        threads = [threading.Thread(target=ask, args=(k,)) for k in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert not wrong


def test_page_grows_when_its_buffers_have_different_sizes() -> None:
    buffers = Buffers()
    large = buffers.take(8 * SIZE)
    del large
    page = Page(10, buffers)
    assert page.reserve(SIZE, 64 * SIZE)
    bodies, properties = page_buffers(page)
    assert len(bodies) != len(properties)
    for need in (2 * SIZE, 5 * SIZE, 9 * SIZE):
        assert page.reserve(need, 64 * SIZE)
        assert all(len(buffer) >= need for buffer in page_buffers(page))


def test_kept_buffers_are_limited() -> None:
    buffers = Buffers()
    held = [buffers.take(SIZE) for _ in range(100)]
    held += [buffers.take(64 * SIZE), buffers.take(10)]
    assert len(kept_buffers(buffers)) == 8
    assert sum(map(len, kept_buffers(buffers))) <= 32 * SIZE
    assert not any(one is held[-1] or one is held[-2] for one in kept_buffers(buffers))
    del held
    big = buffers.take(8 * SIZE)  # buffers that are too small for it are dropped
    assert [place(one) for one in kept_buffers(buffers)] == [place(big)]


def test_batch_is_unchanged_while_others_are_pulled(tmp_path: Path) -> None:
    count, rounds = 700, 12
    with timerstore.open(tmp_path / "store", small(), threads=False) as store:
        wanted = [[b"%06d" % (k * count + i) * 20 for i in range(count)] for k in range(rounds)]
        for bodies in wanted:
            store.put_many("t", bodies)
        Stepper(store).settle()
        held, places = [], set()
        for k in range(rounds):
            page = store.pull_batch("t", 0, k * count, max_count=count)
            places.add(place(np.frombuffer(page.bodies, np.uint8)))
            if k % 3 == 0:
                held.append((k, page, page.bodies, page.log_offset.copy()))
            assert page.body_list() == wanted[k]
        assert len(places) < rounds, "nothing was used again"
        for k, page, bodies, log_offsets in held:
            assert bytes(bodies) == b"".join(wanted[k])
            assert [one.body for one in page] == wanted[k]
            assert (page.log_offset == log_offsets).all()
            assert page.queue_offset.tolist() == list(range(k * count, (k + 1) * count))
