"""QueryRoute and QueryAssignment: where a client finds a topic.

A topic has one queue for clients, whatever queues it has in the store: a `receive` reads all of
them. Its address is the one that the client dialled, so that port mappings and NAT need no setting;
`advertise` names another one.
"""

import ipaddress
import re
from collections.abc import Mapping
from typing import Any

from timerstore.rocketmq.client_names import ClientNames, resource_name
from timerstore.rocketmq.codes import status
from timerstore.rocketmq.definitions import (
    AddressScheme,
    MessageType,
    Permission,
    messages,
)

_ANY_QUEUE = -1
_NUMBER = re.compile("[0-9]{1,4}")
_TYPES = (
    MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION,
)  # fmt: skip
_WITH_PRIORITY = {"JAVA": (5, 2), "PYTHON": (5, 1), "HTTP": (1, 0)}
"""The first releases that know PRIORITY messages, by `x-mq-language`; Node says HTTP. The client
for Java does not start with a type that it does not know."""


def accepted_types(headers: Mapping[str, str]) -> tuple[Any, ...]:
    """Return the types of messages that a client is offered."""
    first = _WITH_PRIORITY.get(headers.get("x-mq-language", ""))
    version = tuple(int(one) for one in _NUMBER.findall(headers.get("x-mq-client-version", "")))
    return (*_TYPES, MessageType.PRIORITY) if first and version[:2] >= first else _TYPES


def endpoints(host: str, port: int) -> Any:
    """Return an address as clients are given it."""
    try:
        is_v6 = ipaddress.ip_address(host).version == 6
        scheme = AddressScheme.IPv6 if is_v6 else AddressScheme.IPv4
    except ValueError:
        scheme = AddressScheme.DOMAIN_NAME
    address = messages.Address(host=host, port=port)
    return messages.Endpoints(scheme=scheme, addresses=[address])


class TopicRoutes:
    """The routes of a server."""

    def __init__(
        self, names: ClientNames, broker_name: str, own: Any, *, is_advertised: bool
    ) -> None:
        """`own`: the address of the server; `is_advertised`: for all clients."""
        self._names = names
        self._broker_name = broker_name
        self._own = own
        self._is_advertised = is_advertised

    async def route(self, headers: Mapping[str, str], request: Any) -> Any:
        """Answer QueryRoute."""
        queue = await self._queue(headers, request, 0)
        return messages.QueryRouteResponse(status=status(), message_queues=[queue])

    async def assignment(self, headers: Mapping[str, str], request: Any) -> Any:
        """Answer QueryAssignment: each consumer of a group reads the one queue."""
        queue = await self._queue(headers, request, _ANY_QUEUE)
        return messages.QueryAssignmentResponse(
            status=status(), assignments=[messages.Assignment(message_queue=queue)]
        )

    async def _queue(self, headers: Mapping[str, str], request: Any, number: int) -> Any:
        await self._names.check_topic(resource_name(request.topic))
        dialled = request.endpoints
        is_known = bool(dialled.addresses) and dialled.scheme
        where = dialled if is_known and not self._is_advertised else self._own
        return messages.MessageQueue(
            topic=request.topic,
            id=number,
            permission=Permission.READ_WRITE,
            broker=messages.Broker(name=self._broker_name, id=0, endpoints=where),
            accept_message_types=accepted_types(headers),
        )
