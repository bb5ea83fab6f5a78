"""The clients of a server: their Telemetry streams, their waiting polls, and the end of both.

A client is an id and a connection. An id alone is not trusted: two programs may have the same.

Thread safety: the server's loop only.
Invariants:
    1. The polls of a client that says goodbye end at once, without messages, and so do its streams,
       also one that it opens later.
    2. The leases of a push consumer end when it says goodbye, or when no stream with its id was
       open for 30 s. A short break of the network ends none, unless `clients_max` others broke too.
    3. The streams of an id end when no call with this id came for `SILENT_S`: the client for Java
       may open one while it closes, and waits for its end. Each client sends heartbeats.
    4. A client does not end the leases of another connection that has a stream, whatever its id.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.leases import LeasedMessage
from timerstore._engine.leases.receive_request import ReceiveRequest
from timerstore.net.server_counters import ServerCounters
from timerstore.rocketmq.codes import RejectedError
from timerstore.rocketmq.definitions import Code
from timerstore.rocketmq.rocketmq_limits import RocketmqLimits

Got = TypeVar("Got")

ABSENT_S = 30.0
"""How long a client may be without a stream before its leases end."""
SILENT_S = 45.0
"""How long a stream stays open without a call of its client. The longest interval between two
heartbeats of an official client is 30 s, that of Rust."""


class Client(NamedTuple):
    """A program, as far as the server can tell it from others."""

    id: str
    connection: str


class KnownClients(NotCopyable):
    """The clients that are connected."""

    def __init__(
        self,
        limits: RocketmqLimits,
        counters: ServerCounters,
        end_leases: Callable[[str, Callable[[Client], bool]], None],
    ) -> None:
        """`end_leases`: ends the leases of those connections of an id that the predicate names."""
        self._limits = limits
        self._counters = counters
        self._end_leases = end_leases
        self._streams: dict[Client, set[asyncio.Task[Any]]] = {}
        self._ids: Counter[str] = Counter()  # of the streams
        self._seen_s: dict[str, float] = {}  # by id of a stream: the time of the last call
        self._ended: set[asyncio.Task[Any]] = set()  # streams and polls that this server ended
        self._polls: dict[Client, set[asyncio.Task[Any]]] = {}
        self._absent: dict[str, asyncio.TimerHandle] = {}  # by client id
        self._left_clients: dict[Client, None] = {}  # the latest ones that said goodbye
        self._is_closed = False

    def has_left(self, client: Client) -> bool:
        """Return whether a client has said goodbye, so that its streams end at once.

        The client for Java may open its stream again while it closes, and waits for its end.
        """
        return client in self._left_clients

    @contextmanager
    def stream(self, client: Client) -> Iterator[None]:
        """Count a Telemetry stream of a client while the block runs."""
        if self._counters.net_connections >= self._limits.clients_max:
            raise _too_many("clients with a Telemetry stream", self._limits.clients_max)
        task = asyncio.current_task()
        assert task is not None
        if (timer := self._absent.pop(client.id, None)) is not None:
            timer.cancel()
        self._streams.setdefault(client, set()).add(task)
        self._ids[client.id] += 1
        self.seen(client.id)
        self._counters.net_connections += 1
        self._counters.net_accepted_connections += 1
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._ended:  # the client is gone
                raise
        finally:
            self._counters.net_connections -= 1
            self._ended.discard(task)
            _discard(self._streams, client, task)
            self._left(client)

    def _left(self, client: Client) -> None:
        self._ids[client.id] -= 1
        if not self._ids[client.id]:
            del self._ids[client.id]
            del self._seen_s[client.id]
        if not self._is_closed and client.id not in self._ids:
            if len(self._absent) >= self._limits.clients_max:
                oldest = next(iter(self._absent))
                self._absent[oldest].cancel()
                self._look_for(oldest)
            loop = asyncio.get_running_loop()
            self._absent[client.id] = loop.call_later(ABSENT_S, self._look_for, client.id)

    def seen(self, client_id: str) -> None:
        """Keep the streams of a client, as a call of it came."""
        if client_id in self._ids:
            self._seen_s[client_id] = asyncio.get_running_loop().time()

    async def end_silent(self) -> None:
        """End the streams of clients that make no calls, until this task is cancelled."""
        while True:
            await asyncio.sleep(SILENT_S / 3)
            oldest_s = asyncio.get_running_loop().time() - SILENT_S
            for client, streams in self._streams.items():
                if self._seen_s[client.id] < oldest_s:
                    self._end(streams)

    def _look_for(self, client_id: str) -> None:
        self._absent.pop(client_id, None)
        if not self._is_closed and client_id not in self._ids:
            self._end_leases(client_id, lambda _: True)

    def goodbye(self, client: Client) -> None:
        """End the polls, streams and leases of a client, and the leases of earlier connections."""
        remember(self._left_clients, client, self._limits.clients_max)
        self._end(self._polls.get(client, ()))
        self._end(self._streams.get(client, ()))
        self._end_leases(client.id, lambda one: one == client or one not in self._streams)

    async def poll(
        self,
        client: Client,
        receive: Callable[[ReceiveRequest], Coroutine[Any, Any, list[LeasedMessage]]],
        request: ReceiveRequest,
    ) -> list[LeasedMessage]:
        """Return the messages of a `receive`; none if the poll was ended."""
        mine = self._polls.get(client, ())
        if self._counters.net_waiting_requests >= self._limits.polls_max:
            raise _too_many("polls of all clients that wait", self._limits.polls_max)
        if len(mine) >= self._limits.client_polls_max:
            raise _too_many("polls of this client that wait", self._limits.client_polls_max)
        task = asyncio.current_task()
        assert task is not None
        self._polls.setdefault(client, set()).add(task)
        self._counters.net_waiting_requests += 1
        try:
            return await receive(request)
        except asyncio.CancelledError:
            if task not in self._ended or task.uncancel():  # the client is gone
                raise
            return []
        finally:
            self._counters.net_waiting_requests -= 1
            self._ended.discard(task)
            _discard(self._polls, client, task)

    @property
    def waiting_count(self) -> int:
        """How many polls wait, of all clients."""
        return self._counters.net_waiting_requests

    def close(self) -> None:
        """End all polls and streams. The leases stay: their clients return with them."""
        self._is_closed = True
        for calls in (*self._polls.values(), *self._streams.values()):
            self._end(calls)

    def _end(self, calls: "Collection[asyncio.Task[Any]]") -> None:
        for one in calls:
            self._ended.add(one)
            one.cancel()


def remember(latest: dict[Got, None], one: Got, count_max: int) -> None:
    """Add a key to the latest ones, and forget the oldest above `count_max`."""
    latest.pop(one, None)
    latest[one] = None
    if len(latest) > count_max:
        del latest[next(iter(latest))]


def _discard(
    tasks: "dict[Client, set[asyncio.Task[Any]]]", client: Client, one: "asyncio.Task[Any]"
) -> None:
    tasks[client].discard(one)
    if not tasks[client]:
        del tasks[client]


def _too_many(subject: str, limit: int) -> RejectedError:
    return RejectedError(Code.TOO_MANY_REQUESTS, f"wanted at most {limit} {subject}")
