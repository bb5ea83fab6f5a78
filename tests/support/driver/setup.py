"""The sizes, constants and clock of a driven store."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.inside import failpoints, inside
from tests.support.models.dedupe import Onces
from tests.support.models.messages import Put
from tests.support.turned_clock import TurnedClock
from timerstore import (
    PutReceipt,
    StoreConfig,
    TimerStore,
)
from timerstore._engine.format.handle import decode, encode
from timerstore.errors import FailedError

BULK = ("bulk", 0)
"""The queue of all ingested rows."""
HOW = ("receipt", "handle", "broker")
"""Ways to name a message: its receipt, its handle, or its handle as a broker issues it."""
START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
YEAR_MS = 31_557_600_000
TAGS = (None, "Aa", "BB", "c")  # the second and third share a hash
WINDOW_MS = 20_000  # the dedupe window
WAIT_S = 5000.0  # of a waiting pull: some jumps of the clock end it


def tiny(
    precision_ms: int, flush: str, slot_messages_max: int = 0, retention_ms: int = 0
) -> StoreConfig:
    """Return sizes with near edges: a dozen records in a segment, a wheel of 128 slots."""
    return StoreConfig(
        commit_log_segment_bytes=16 * 1024,
        queue_segment_bytes=200,
        timer_log_segment_bytes=4096,
        wheel_slot_count=128,
        index_slot_count=5,
        index_entry_count=40,
        checkpoint_log_bytes=64 * 1024,  # the index is saved an eighth as often as it fills up
        precision_ms=precision_ms,
        staging_bytes=4096,
        reserve_bytes=4096,
        flush="sync" if flush == "sync" else "async",
        slot_messages_max=slot_messages_max,
        dedupe_window_ms=WINDOW_MS,
        retention_ms=retention_ms,
    )


def named(one: Put, how: str) -> PutReceipt | str:
    """Name a message; a message that was never pending has no broker's handle."""
    if how == "receipt":
        return one.receipt
    if how == "handle" or not one.waited:
        return one.receipt.handle
    return encode(decode(one.receipt.handle)._replace(timer_id=None))


def abandon(store: TimerStore) -> None:
    """Release the descriptors and maps of a store without changing a file."""
    inside(store).log.fail(FailedError("abandoned by a test"))  # so that close completes nothing
    store.close()


@contextmanager
def passed_points(point: str) -> Iterator[list[str]]:
    """Record each time a fail point is passed; call the present hook too."""
    found: list[str] = []
    before = failpoints.hook

    def hook(name: str) -> None:
        if name == point:
            found.append(name)
        if before is not None:
            before(name)

    failpoints.hook = hook
    try:
        yield found
    finally:
        failpoints.hook = before


def key_of(body: bytes) -> str:
    """Return the key of a message of the driver; some messages share a key."""
    return f"key-{int(body[:6]) % 5}"


class DriverClock(TurnedClock):
    """A clock that also ages message ids."""

    __slots__ = ("onces",)

    def __init__(self, now_ms: int) -> None:
        super().__init__(now_ms)
        self.onces = Onces()

    def _turn(self, ms: int, *, relative: bool) -> None:
        super()._turn(ms, relative=relative)
        self.onces.turned(self.now_ms)
