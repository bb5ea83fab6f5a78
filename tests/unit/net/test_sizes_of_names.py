"""The limits of names and of properties, at the edge and one beyond, in an embedded store and
through a server.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import timerstore.aio
from tests.support.bench import Bench, small
from tests.support.served_bench import ServedBench
from timerstore import MessageError
from timerstore._engine.base.message_fields import PROPERTIES_HEADROOM_BYTES
from timerstore.aio import AsyncTimerStore

LIMITS: dict[str, tuple[int, Callable[[Any, str], Any]]] = {
    "topic": (127, lambda s, text: s.put(text, b"x")),
    "topic of a batch": (127, lambda s, text: s.put_many(text, [b"x"])),
    "message id": (128, lambda s, text: s.put("t", b"x", message_id=text)),
    "message id of a batch": (128, lambda s, text: s.put_many("t", [b"x"], message_ids=[text])),
    "name of a recurring message": (64, lambda s, text: s.put_every("t", b"x", every=9, name=text)),
    "group": (255, lambda s, text: s.committed("t", text)),
    "topic that is read": (255, lambda s, text: s.committed(text, "g")),
    "group with leases": (118, lambda s, text: s.receive("t", text)),  # 119 with the topic
    "topic with leases": (118, lambda s, text: s.receive(text, "g")),
    "key of a query": (32_767, lambda s, text: s.query("t", text)),
}


@pytest.mark.parametrize("door", ["embedded", "connected"])
@pytest.mark.parametrize("name", LIMITS)
def test_limit_of_a_name_at_the_edge_and_one_beyond(
    served: ServedBench, name: str, door: str
) -> None:
    store = served.bench.store if door == "embedded" else served.connect(retry_for=0)
    limit, call = LIMITS[name]
    call(store, "n" * limit)
    with pytest.raises(MessageError, match="wanted"):
        call(store, "n" * (limit + 1))


PROPERTIES_BYTES = 32_767 - PROPERTIES_HEADROOM_BYTES - len("t")
"""Most bytes of tags, keys and properties together."""


def _embedded(served: ServedBench, name: str, *args: Any, **named: Any) -> None:
    getattr(served.bench.store, name)(*args, **named)


def _connected(served: ServedBench, name: str, *args: Any, **named: Any) -> None:
    getattr(served.connect(retry_for=0), name)(*args, **named)


def _awaited(served: ServedBench, name: str, *args: Any, **named: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        store = AsyncTimerStore(served.bench.store, pool)
        asyncio.run(getattr(store, name)(*args, **named))


def _awaited_and_connected(served: ServedBench, name: str, *args: Any, **named: Any) -> None:
    async def call() -> None:
        async with timerstore.aio.connect(served.url, retry_for=0) as store:
            await getattr(store, name)(*args, **named)

    asyncio.run(call())


@pytest.mark.parametrize("call", [_embedded, _connected, _awaited, _awaited_and_connected])
@pytest.mark.parametrize("name", ["put", "put_many"])
def test_limit_of_all_properties_at_the_edge_and_one_beyond(
    tmp_path: Path, name: str, call: Callable[..., None]
) -> None:
    """None of the parts is near the limit. Each also has its name and two separators."""
    keys, value = "k" * 10_000, "v" * 10_000
    names = len("TAGS..") + len("KEYS..") + (len("a..") + len(value)) * (name == "put")
    tags = "g" * (PROPERTIES_BYTES - names - len(keys))
    if name == "put":
        args, named = ("t", b"x"), {"keys": keys, "properties": {"a": value}}
    else:
        args, named = ("t", [b"w", b"x"]), {"keys": ["", keys]}
    large = small(staging_bytes=1 << 17)  # else no message of the test is put on a loop
    served = ServedBench(Bench(tmp_path / "store", large), tmp_path / "x.sock")
    served.bench.store.put("t", b"makes the topic")
    call(served, name, *args, tags=tags, **named)
    wanted = f"properties: wanted at most {PROPERTIES_BYTES} bytes .* got {PROPERTIES_BYTES + 1}"
    with pytest.raises(MessageError, match=wanted):
        call(served, name, *args, tags=tags + "g", **named)
    served.bench.turn()
    assert [one.tags for one in served.bench.out()][-1] == tags
    assert len(served.bench.out()) == 1 + len(args[1])
    served.close()
