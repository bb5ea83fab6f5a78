"""Check crash images: other results that the same power cut could have had.

An image is opened, checked and thrown away. The checks hold for every image, whether or not the
calls in flight took effect. The store opens, and `verify` is clean. A message that was read is
still there, unchanged. An acknowledged message is pending or delivered. There is no message that
was never put.

Invariants:
    1. An image changes nothing of the run: neither the model, nor the disk, nor the clock.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.sim.disk import SimDisk
from tests.sim.world import World
from tests.support.inside.parts import allow_unclosed
from tests.support.models.messages import Put, Queue
from timerstore import Message, TimerStore


def check_image(world: Any, image: SimDisk) -> None:
    """Open an image next to a run, and check it."""
    with beside(world, image):
        store = TimerStore(world.store_path(), world.config, clock=world.clock, threads=False)
        allow_unclosed(store)  # the process of the image ends here
        check_store(world, store)


@contextmanager
def beside(world: Any, image: SimDisk) -> Iterator[None]:
    """Replace the disk by an image for a while."""
    world.count("images")
    disk, world.disk = world.disk, image
    fault, world.allocations.fault = world.allocations.fault, None
    image.free_pages = None
    listeners = world.clock.listeners()
    try:
        yield
    finally:
        world.disk, world.allocations.fault = disk, fault
        world.clock.listen_again(listeners)


def check_store(world: Any, store: TimerStore) -> None:
    """Check the store that was opened on an image."""
    waiting = {one.message_id for one in store.pending()}
    revocable = world.revocable()
    for queue, known in world.model.seen.items():
        begin, found = _read(store, queue)
        if world.config.visibility == "durable":
            again = [(m.body, m.delivered_ms) for m in found]
            assert again[: len(known) - begin] == known[begin:], f"{queue}: taken back"
            found = found[len(known) - begin :]
        _check_new(world, queue, found, revocable)
        came = {m.body for m in found}
        for one in world.model.puts.values():
            if one.queue == queue and _must_be_there(world, one):
                is_there = one.receipt.message_id in waiting or one.body in came
                assert is_there, f"an image without {one}"
    world.check_more(store)
    report = store.verify()
    assert report.clean, report


def _read(store: TimerStore, queue: Queue) -> tuple[int, list[Message]]:
    """Return all messages that a queue shows, and the offset of the first."""
    if store.topics().get(queue[0], 0) <= queue[1]:
        return 0, []
    offset, found = 0, []
    while True:
        result = store.pull(*queue, offset, max_count=1000)
        if result.messages:
            found += result.messages
        elif result.status not in ("OFFSET_TOO_SMALL", "MESSAGE_WAS_REMOVING"):
            return offset - len(found), found
        offset = result.next_offset


def _check_new(world: Any, queue: Queue, found: list[Message], revocable: set[bytes]) -> None:
    tried = {one.body for one in (*world.attempts, *world.tried)}
    bodies = [message.body for message in found]
    assert len(set(bodies)) == len(bodies), f"an image has twice: {found}"
    for body in bodies:
        one = world.model.puts.get(body)
        assert one is not None or body in tried, (
            f"an image has a message that was never put: {body!r}"
        )
        is_gone = one is not None and one.cancelled and body not in revocable
        assert one is None or (one.queue == queue and not is_gone), f"came in an image: {one}"


def _must_be_there(world: World, one: Put) -> bool:
    """Return whether a message was acknowledged and has not been read yet."""
    is_open = one.place is None and one.sure and not one.cancelled
    may_have_changed = one.maybe_cancelled or one.maybe_moved is not None
    return is_open and not may_have_changed and one.body not in world.async_bodies
