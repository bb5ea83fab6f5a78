"""The transport of kombu: connections to a store, and the event loop of a worker.

Thread safety: as kombu's, one thread at a time.
Raises: errors of a lost or absent server are in `connection_errors`, after which Celery connects
    again. Other errors of a store, such as an invalid queue name, are raised to the caller.
"""

import contextlib
import select
import time
from typing import Any

from celery.exceptions import ImproperlyConfigured
from kombu.transport import virtual
from kombu.utils.compat import detect_environment

import timerstore
from timerstore.contrib.celery.address import address_of
from timerstore.contrib.celery.broadcasts import BroadcastQueue
from timerstore.contrib.celery.broker import Broker
from timerstore.contrib.celery.not_offered import NOT_OFFERED
from timerstore.contrib.celery.store_channel import StoreChannel
from timerstore.errors import (
    BusyError,
    ClosedError,
    ConnectionLostError,
    FailedError,
    FullError,
    ServerError,
    UnavailableError,
)

_LOOK_S = 5.0
"""Seconds after which a wait without an answer is looked at: its time may be over."""


class Transport(virtual.Transport):
    """kombu's transport."""

    Channel = StoreChannel
    can_parse_url = True
    driver_type = "timerstore"
    driver_name = "timerstore"
    connection_errors = (
        *virtual.Transport.connection_errors,
        BusyError,
        ClosedError,
        ConnectionLostError,
        FailedError,
        FullError,
        ServerError,
        UnavailableError,
    )
    recoverable_connection_errors = connection_errors
    recoverable_channel_errors = ()
    implements = virtual.Transport.implements.extend(
        asynchronous=True,
        exchange_type=frozenset(["direct", "topic", "fanout"]),
        heartbeats=False,
    )

    def __init__(self, client: Any, **options: Any) -> None:
        if (environment := detect_environment()) != "default":
            raise ImproperlyConfigured(
                f"timerstore:// does not work with {environment} "
                f"({NOT_OFFERED['gevent and eventlet']}); use the pool prefork, threads or solo"
            )
        super().__init__(client, **options)
        self.broadcasts: dict[str, BroadcastQueue] = {}
        self._broker: Broker | None = None
        self._loop: _Loop | None = None

    @property
    def broker(self) -> Broker:
        """The store. It is opened by the first channel, so never before a fork."""
        if self._broker is None:
            self._broker = Broker.of(self.client)
        return self._broker

    def establish_connection(self) -> Any:
        """Open the store, or ask the server of the open one whether it is there."""
        try:
            self.broker.store.topics()
            return super().establish_connection()
        except BaseException:
            self._release()
            raise

    def close_connection(self, connection: Any) -> None:
        """Close the channels, and the store if it has no other users in this process."""
        if self._loop is not None:
            self._loop.end()
            self._loop = None
        try:
            super().close_connection(connection)
        finally:
            self.broadcasts.clear()
            self._release()

    def _release(self) -> None:
        if self._broker is not None:
            self._broker.release()
            self._broker = None

    def driver_version(self) -> str:
        """Return the version of timerstore."""
        return timerstore.__version__

    def as_uri(self, uri: str | None, include_password: bool = False, mask: str = "**") -> str:
        """Return the URL for logs; it has no secrets."""
        return str(address_of(self.client))

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """None: a URL names all that is needed."""
        return {}

    # --- waiting ---

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver the messages that come. Raise socket.timeout if none came in time.

        timeout: seconds; None waits without a limit.
        """
        end_s = None if timeout is None else time.monotonic() + timeout
        while True:
            waits = self.begin()
            if self.take():
                return
            left_s = _LOOK_S if end_s is None else end_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            poll = select.poll()
            for one in waits:
                poll.register(one.fileno(), select.POLLIN)
            poll.poll(min(left_s, _LOOK_S) * 1000)

    def begin(self) -> list[Any]:
        """Begin what the channels wait for; return the waits, each with a descriptor."""
        for one in list(self.channels):
            one.begin()
        return [wait for one in list(self.channels) for wait in one.consuming.waits]

    def take(self) -> int:
        """Deliver the messages that have come; return their number. Commands come
        first: one may revoke a task that came at the same time.
        """
        channels: list[StoreChannel] = list(self.channels)
        count = sum(one.take_broadcasts() for one in channels)
        return count + sum(one.take_tasks() for one in channels)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Have a worker's event loop wait for messages."""
        if self._loop is not None:
            self._loop.end()
        self._loop = _Loop(self, loop)


class _Loop:
    """The event loop of a worker, and the descriptors that it watches."""

    def __init__(self, transport: Transport, hub: Any) -> None:
        self._transport = transport
        self._hub = hub
        self._watched: dict[int, Any] = {}  # by descriptor, the wait that it belongs to
        self._looked_s = 0.0
        hub.on_tick.add(self._tick)

    def _tick(self) -> None:
        """Watch what the channels wait for now. The loop calls this before each of its waits."""
        if time.monotonic() - self._looked_s > _LOOK_S:
            self._looked_s = time.monotonic()
            self._transport.take()
        waits = {one.fileno(): one for one in self._transport.begin()}
        for number, one in list(self._watched.items()):
            if waits.get(number) is not one:
                self._forget(number)
        for number, one in waits.items():
            if number not in self._watched:
                self._watched[number] = one
                self._hub.add_reader(number, self._transport.take)

    def _forget(self, number: int) -> None:
        """Watch a descriptor no more. It is open until then, as its wait is kept here."""
        with contextlib.suppress(OSError, KeyError):  # the hub was reset
            self._hub.remove(number)
        del self._watched[number]

    def end(self) -> None:
        """Leave the loop."""
        self._hub.on_tick.discard(self._tick)
        for number in list(self._watched):
            self._forget(number)
