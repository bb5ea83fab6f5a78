"""A server of one store for the official clients of RocketMQ 5.

    grpc.aio -> method_service.py -> sending.py, receiving.py, settling.py ... -> timerstore.aio

The store is one of this process, or one of another process (connected_calls.py).

Thread safety: any thread may start, ask and close it.
Invariants, with those of net/server_thread.py:
    1. At its end, polls are answered without messages, streams end, and running calls have 5 s.
    2. A port in use is an error: it is never shared (SO_REUSEPORT).
Raises: ConfigError for an address that cannot be used.
See also: docs/rocketmq-clients.md.
"""

import asyncio
import importlib
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

import grpc
import grpc.aio

from timerstore._engine.base.metrics import GROUP_SEPARATOR
from timerstore.aio import AsyncTimerStore
from timerstore.errors import ConfigError, FailedError, cannot_listen
from timerstore.net.endpoints import close_copies
from timerstore.net.server_counters import ServerCounters
from timerstore.net.server_thread import ServerThread
from timerstore.rocketmq.access_keys import AccessKeys
from timerstore.rocketmq.byte_budget import ByteBudget
from timerstore.rocketmq.call_counts import CallCount
from timerstore.rocketmq.client_leases import ClientLeases
from timerstore.rocketmq.client_names import ClientNames
from timerstore.rocketmq.group_policies import GroupPolicies
from timerstore.rocketmq.health import Health
from timerstore.rocketmq.known_clients import KnownClients
from timerstore.rocketmq.method_service import MethodService, Parts
from timerstore.rocketmq.receiving import Receiving
from timerstore.rocketmq.rocketmq_limits import RocketmqLimits
from timerstore.rocketmq.sending import Sending
from timerstore.rocketmq.settling import Settling
from timerstore.rocketmq.topic_routes import TopicRoutes, endpoints
from timerstore.rocketmq.transactions import Transactions
from timerstore.store import ConnectedStore, TimerStore
from timerstore.types.clock import SystemClock

_GOODBYE_S = 5.0
_FAILED_GOODBYE_S = 1.0
_WORKERS = 4
_REQUEST_OVERHEAD_BYTES = 1 << 20
_PENDING_MAX = 1 << 20
_PING_INTERVAL_MS = 10_000
_PORT_OF_PEER = re.compile(r":([0-9]+)$")


class GrpcAddress(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    @property
    def text(self) -> str:
        """HOST:PORT, with brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ServedOptions(NamedTuple):
    """The checked arguments of a server."""

    address: GrpcAddress
    tls: tuple[Path, Path] | None
    keys: AccessKeys
    policies: GroupPolicies
    advertise: GrpcAddress | None
    auto_create: bool
    limits: RocketmqLimits


class RocketmqServer(ServerThread):
    """A running server; `timerstore.rocketmq.serve` returns it.

    Close it, or use `with`. The close of its store closes it, too, unless that is a connected one:
    then the server has a connection of its own, and tries to reach the store until it is closed.
    """

    def __init__(self, store: TimerStore | ConnectedStore, options: ServedOptions) -> None:
        own = store if isinstance(store, TimerStore) else None
        super().__init__(own, "timerstore-rocketmq")
        self._source = store
        self._clock = SystemClock() if own is None else own.clock
        self._options = options
        self._counters = ServerCounters()
        self._service: MethodService | None = None
        self.address = options.address.text
        """HOST:PORT, as clients dial it; with the port that was chosen for port 0."""

    @property
    def urls(self) -> list[str]:
        """The address, as the other servers have it."""
        return [f"grpc{'s' if self._options.tls else ''}://{self.address}"]

    def stats(self) -> dict[str, Any]:
        """Return the counters of the server by name; docs/metrics.md describes them."""
        calls = {f"{one.method}{GROUP_SEPARATOR}{one.code}": one for one in self.calls()}
        return {
            **self._counters.values(),
            "net_calls": {key: one.calls for key, one in calls.items()},
            "net_calls_ms": {key: round(one.seconds * 1000, 3) for key, one in calls.items()},
        }

    def calls(self) -> list[CallCount]:
        """Return counts and times of the calls so far, by method and code."""
        return [] if self._service is None else self._service.counts.values()

    async def _serve(self, stop: asyncio.Event) -> None:
        reached = asyncio.ensure_future(self._reached())
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait({reached, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not reached.done():
            reached.cancel()
            await asyncio.wait({reached})  # it closes its connection
            return
        store = reached.result()
        server = grpc.aio.server(options=_channel_options(store, self._options.limits))
        try:
            port = self._listen(server)
            requests = ByteBudget("sending_bytes_max", self._options.limits.sending_bytes_max)
            parts = self._parts(store, port, requests)
            health = Health()
            self._service = service = MethodService(
                parts, self._options.keys, self._options.policies, requests, self._counters,
                 store.config.message_bytes_max,
            )  # fmt: skip
            server.add_generic_rpc_handlers((service.handler(), health.handler()))
            await server.start()
            self._ready.set()
            watch = asyncio.create_task(parts.clients.end_silent())
            await stop.wait()
            watch.cancel()
            service.is_closing = True
            health.close()
            parts.clients.close()
            parts.transactions.close()
            has_failed = isinstance(self._reason, FailedError)
            await server.stop(_FAILED_GOODBYE_S if has_failed else _GOODBYE_S)
            while self._counters.net_running_requests:  # cancelled calls give back their leases
                await asyncio.sleep(0.001)
            with suppress(TimeoutError):  # the other leases end at their own time
                await asyncio.wait_for(parts.settling.finish(), _GOODBYE_S)
        finally:
            await server.stop(None)
            if self._store is None:
                await store.close()  # its connection
            else:
                store.detach()  # blocks the loop, which nothing needs any more

    async def _reached(self) -> AsyncTimerStore:
        """Return the calls of the store; of a connected one those that the server makes."""
        if self._store is None:
            # Loaded here: it needs msgspec, as the connected store does.
            module = importlib.import_module("timerstore.rocketmq.connected_calls")
            return cast("AsyncTimerStore", await module.connected_calls(self._source))
        pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="timerstore-rocketmq")
        return AsyncTimerStore(self._store, pool, may_block=True)

    def _listen(self, server: Any) -> int:
        wanted = self._options.address
        try:
            if self._options.tls is None:
                port = server.add_insecure_port(wanted.text)
            else:
                cert, key = (one.read_bytes() for one in self._options.tls)
                port = server.add_secure_port(
                    wanted.text, grpc.ssl_server_credentials([(key, cert)])
                )
        except RuntimeError as error:
            raise _cannot_listen(wanted, error) from error
        self.address = GrpcAddress(wanted.host, port).text
        return int(port)

    def _parts(self, store: AsyncTimerStore, port: int, requests: ByteBudget) -> Parts:
        options = self._options
        own = options.advertise or GrpcAddress(options.address.host, port)
        names = ClientNames(store, options.limits, auto_create=options.auto_create)
        held = ClientLeases(options.limits, lambda: self._clock.now_ms)
        settling = Settling(
            store, held, options.limits, lambda: self._clock.now_ms, self._count_returned
        )
        clients = KnownClients(options.limits, self._counters, settling.end_leases)
        unsent = ByteBudget("unsent_bytes_max", options.limits.unsent_bytes_max)
        transactions = Transactions(store, settling, unsent, options.limits)
        return Parts(
            TopicRoutes(names, store.config.broker_name, endpoints(*own),
                   is_advertised=options.advertise is not None),
            clients,
            Sending(store, names, options.limits, requests, transactions),
            Receiving(store, options.policies, names, clients, held, settling, options.limits,
                      unsent),
            settling,
            transactions,
        )  # fmt: skip

    def _count_returned(self, count: int) -> None:
        self._counters.net_returned_leases += count

    def _release(self) -> None:
        """Do nothing: the loop has closed the port."""

    def _forget_in_child(self) -> None:
        """Close the copies of the server's sockets, which only grpc knows: those of its port."""
        if self._is_closed:
            return
        self._is_closed = True
        found = _PORT_OF_PEER.search(self.address)
        port = int(found[1]) if found else 0
        numbers = [int(one.name) for one in Path("/proc/self/fd").iterdir()]
        close_copies([one for one in numbers if _local_port(one) == port])


def _local_port(number: int) -> int | None:
    """Return the port of a descriptor that is a socket of TCP."""
    try:
        one = socket.socket(fileno=number)
    except OSError:
        return None
    try:
        is_tcp = one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM
        return int(one.getsockname()[1]) if is_tcp else None
    finally:
        one.detach()


def _cannot_listen(wanted: GrpcAddress, error: RuntimeError) -> ConfigError:
    """Return the error of an address, with the reason of the system, which grpc leaves out."""
    try:
        family = socket.getaddrinfo(wanted.host, wanted.port, type=socket.SOCK_STREAM)[0][0]
        socket.create_server(tuple(wanted), family=family).close()
    except (OSError, ValueError) as reason:
        return cannot_listen(wanted.host, wanted.port, reason)
    return cannot_listen(wanted.host, wanted.port, ValueError(str(error)))


def _channel_options(store: AsyncTimerStore, limits: RocketmqLimits) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length",
         store.config.message_bytes_max + _REQUEST_OVERHEAD_BYTES),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_allowed_incoming_connections", limits.connections_max),
        # Otherwise a burst of polls is cancelled.
        ("grpc.server.max_pending_requests", _PENDING_MAX),
        ("grpc.server.max_pending_requests_hard_limit", _PENDING_MAX),
        # The client for Java pings without calls, and is sent away by the default.
        ("grpc.keepalive_permit_without_calls", 1),
        # A client whose host is gone is noticed, so that its leases end.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", _PING_INTERVAL_MS),
        ("grpc.http2.max_ping_strikes", 0),
    ]  # fmt: skip
