"""Calls of a store by name, for tests of closed and forked stores."""

from collections.abc import Callable

from timerstore import TimerStore

CALLS: dict[str, Callable[[TimerStore], object]] = {
    "put": lambda store: store.put("t", b"x"),
    "put_many": lambda store: store.put_many("t", [b"x"]),
    "cancel": lambda store: store.cancel("djEgdCBiIDUgaWQgMA=="),
    "cancel_many": lambda store: store.cancel_many(["djEgdCBiIDUgaWQgMA=="]),
    "pull": lambda store: store.pull("t", 0, 0),
    "pull_batch": lambda store: store.pull_batch("t", 0, 0),
    "pending": lambda store: store.pending(),
    "stats": lambda store: store.stats(),
    "topics": lambda store: store.topics(),
    "flush": lambda store: store.flush(),
    "verify": lambda store: store.verify(),
}
