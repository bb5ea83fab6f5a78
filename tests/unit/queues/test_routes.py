"""An error while a route is made leaves no incomplete route."""

import pytest

from tests.support.bench import Bench
from tests.support.inside import ROUTES_STEPS, inside
from tests.support.inside.limits import SMALL_FILE_BYTES_MAX
from timerstore import FullError


@pytest.mark.parametrize("step", list(ROUTES_STEPS))
def test_route_is_complete_after_a_memory_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    for k in range(30):  # with the timer topic's route, the next one enlarges the table
        bench.store.put(f"before-{k}", b"x", queue_id=0)

    def refuse(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(*ROUTES_STEPS[step], refuse)
        with pytest.raises(MemoryError):
            bench.store.put("orders", b"1", delay=1.0, queue_id=0)
    bench.store.put("orders", b"2", delay=1.0, queue_id=0)
    bench.store.put("other", b"3", queue_id=0)
    bench.turn(2000)
    assert bench.bodies("orders") == [b"2"]
    assert bench.bodies("other") == [b"3"]
    routes = inside(bench.store).routes
    assert [route.native.index for route in routes.by_index] == list(range(len(routes.by_index)))


def test_each_queue_is_found_after_reopening(bench: Bench) -> None:
    for k in range(100):
        bench.store.put("t", b"x", queue_id=k)
    bench.turn()
    routes = inside(bench.reopen()).routes
    assert all(routes.is_found(route.topic, route.queue_id) for route in routes.by_index)
    assert not routes.is_found("t", 100)


def test_topic_is_rejected_if_the_file_of_topics_could_not_be_read_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put_topics() -> None:
        for k in range(10_000):
            bench.store.put(f"topic-{k}", b"x")

    with monkeypatch.context() as patched:
        patched.setattr(*SMALL_FILE_BYTES_MAX, 20_000)
        with pytest.raises(FullError, match="a side file would be too large") as caught:
            put_topics()
        assert not caught.value.retryable
        names = bench.store.topics().keys()
        bench.store.put("topic-0", b"y")
        assert bench.reopen().topics().keys() == names
    bench.store.put("another", b"x")
