"""A served store with the calls of AsyncTimerStore that the server makes: its store, if the server
is connected to the process that owns the store.

Thread safety: the server's loop only.
Raises: as AsyncRemoteStore: ConnectionLostError and UnavailableError after `retry_for`.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

from timerstore._engine.leases import LeasedMessage
from timerstore._engine.leases.receive_request import ReceiveRequest
from timerstore.errors import ClosedError
from timerstore.net.async_remote_store import AsyncRemoteStore
from timerstore.net.call_table import GIVE_BACK, pack_call
from timerstore.net.remote_store import RemoteStore
from timerstore.net.wire_messages import CONFIG_FEATURE, PROTOCOL_VERSION, Hello

_FRESH_S = 1.0
"""How long the topics of the store are not asked for again, so that a send is one call."""


class OwnerSettings(NamedTuple):
    """The settings of the store that the server uses, of its start."""

    message_bytes_max: int
    broker_name: str


class ConnectedCalls(AsyncRemoteStore):
    """A connection of a server; `connected_calls` makes it."""

    config: OwnerSettings
    _topics: frozenset[str] = frozenset()
    _fresh_until_s = 0.0

    async def _has_topic(self, topic: str) -> bool:
        """Return whether there is such a topic. One that was deleted is known for a second more."""
        if topic in self._topics and time.monotonic() < self._fresh_until_s:
            return True
        self._fresh_until_s = time.monotonic() + _FRESH_S  # first: other calls need not ask, too
        self._topics = frozenset((await self._made("topics", [], {}))[0])
        return topic in self._topics

    async def _receive(self, request: ReceiveRequest) -> list[LeasedMessage]:
        args, options = pack_call("receive", (request,))
        found, _ = await self._made("receive", args, options | {"bytes_max": request.bytes_max})
        leased: list[LeasedMessage] = found
        return leased

    async def _give_back(self, receipts: Sequence[str]) -> int:
        count, _ = await self._made(GIVE_BACK.name, [list(receipts)], {})
        return int(count)


async def connected_calls(store: RemoteStore) -> ConnectedCalls:
    """Connect to the server of a connected store, once more: for the loop of this call.

    Raises:
        ClosedError: the connected store is closed.
        UnavailableError: no server was found in time.
    """
    connector = store._connector
    if connector._is_closed:
        raise ClosedError("the store is closed", where=connector.endpoint)
    hello = Hello(PROTOCOL_VERSION, [CONFIG_FEATURE], connector._hello.token)
    made = ConnectedCalls(connector.endpoint, hello, connector._tls, connector.times)
    channel = await made._first_channel()
    config = channel.welcome.config
    made.config = OwnerSettings(int(config["message_bytes_max"]), str(config["broker_name"]))
    return made
