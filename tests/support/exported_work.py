"""Work on a store whose statistics are exported."""

from tests.support.bench import NOW, Bench


def some_work(bench: Bench) -> None:
    """Deliver five messages, one of a delay level, and keep one pending; a group reads two."""
    bench.store.put_many("a", [b"x"] * 5, deliver_ms=NOW + 1000)
    bench.store.put("b", b"x", level=1)
    bench.store.put("b", b"x", delay=90)
    bench.turn()
    bench.turn(1004)
    bench.turn(60)
    with bench.store.consumer("a", "g") as consumer:
        consumer.poll(2, 0)
        consumer.commit()
