"""The limits of names, at the edge and one beyond, in an embedded store and through a server."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.served_bench import ServedBench
from timerstore import MessageError

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
