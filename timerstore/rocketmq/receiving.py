"""ReceiveMessage: lease messages, and send them.

    attempt id of an unsettled answer -> the same messages again
    otherwise                         -> `receive`, as a poll of the client
    the answer cannot be sent         -> the messages are given back, with the same attempt

A push consumer asks for no lease (`auto_renew`). Its lease lasts for the consume timeout of its
group, and ends early with its client.

Thread safety: the server's loop only.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from timerstore._engine.leases import LeasedMessage
from timerstore.aio import AsyncTimerStore
from timerstore.errors import CorruptError, MessageError
from timerstore.rocketmq.client_leases import ClientLeases, ReceiveAttempt
from timerstore.rocketmq.client_names import ClientNames, resource_name
from timerstore.rocketmq.codes import RejectedError, status
from timerstore.rocketmq.definitions import Code, messages
from timerstore.rocketmq.group_policies import GroupPolicies
from timerstore.rocketmq.known_clients import Client, KnownClients
from timerstore.rocketmq.message_views import filter_of, milliseconds, timestamp, view
from timerstore.rocketmq.rocketmq_limits import ATTEMPT_ID_CHARACTERS_MAX, RocketmqLimits
from timerstore.rocketmq.settling import Settling

_DEFAULT_LEASE_MS = 60_000
"""As the proxy of RocketMQ."""
_ANSWER_S = 0.5
"""An answer leaves this long before the deadline of its call, so that it arrives in time."""

Send = Callable[[Any], Awaitable[None]]


class Terms(NamedTuple):
    """A checked request."""

    topic: str
    group: str
    lease_ms: int
    options: dict[str, Any]
    attempt: ReceiveAttempt | None


class Receiving:
    """The ReceiveMessage calls of a server."""

    def __init__(
        self,
        store: AsyncTimerStore,
        policies: GroupPolicies,
        names: ClientNames,
        clients: KnownClients,
        held: ClientLeases,
        settling: Settling,
        limits: RocketmqLimits,
    ) -> None:
        self._store = store
        self._policies = policies
        self._names = names
        self._clients = clients
        self._held = held
        self._settling = settling
        self._limits = limits

    async def receive(self, client: Client, left_s: float | None, request: Any, send: Send) -> None:
        """Answer ReceiveMessage. `left_s`: seconds until the deadline of the call."""
        terms = await self._checked(client, left_s, request)
        found = [] if terms.attempt is None else self._held.replay(terms.attempt)
        is_new = not found
        if is_new:
            found = await self._clients.poll(client, lambda: self._lease(terms))
        try:
            if is_new and request.auto_renew:
                self._held.renew(client, found)
            if is_new and found and terms.attempt is not None:
                self._held.keep(terms.attempt, found)
            await self._send(found, request.message_queue.topic, terms.lease_ms, send)
        except BaseException:
            self._settling.give_back(found)
            raise

    async def _lease(self, terms: Terms) -> list[LeasedMessage]:
        return await self._store.receive(terms.topic, terms.group, **terms.options)

    async def _send(
        self, found: Sequence[LeasedMessage], topic: Any, lease_ms: int, send: Send
    ) -> None:
        views = []
        for one in found:
            try:
                views.append(view(one, topic, lease_ms))
            except (CorruptError, MessageError) as error:  # no client can read it
                await self._settling.bury(one.receipt, str(error))
        if not views:
            text = "no message came in time"
            await send(_answer(status=status(Code.MESSAGE_NOT_FOUND, text)))
            return
        await send(_answer(status=status()))
        for one in views:
            await send(_answer(message=one))
        await send(_answer(delivery_timestamp=timestamp(self._settling.now_ms())))

    async def _checked(self, client: Client, left_s: float | None, request: Any) -> Terms:
        topic, group = resource_name(request.message_queue.topic), resource_name(request.group)
        await self._names.check_topic(topic)
        self._names.check_group(topic, group)
        policy = self._policies.of(group)
        lease_ms = _DEFAULT_LEASE_MS
        if request.HasField("invisible_duration"):
            lease_ms = milliseconds(request.invisible_duration)
        elif request.auto_renew:
            lease_ms = policy.consume_timeout_s * 1000
        wait_s = float(policy.poll_s)
        if request.HasField("long_polling_timeout"):
            wait_s = milliseconds(request.long_polling_timeout) / 1000
        if left_s is not None:
            wait_s = min(wait_s, max(left_s - _ANSWER_S, 0.0))
        if request.batch_size < 1:
            raise RejectedError(
                Code.BAD_REQUEST, f"batch_size: wanted 1 or more, got {request.batch_size}"
            )
        options = {
            "lease": lease_ms / 1000,
            "max_count": min(request.batch_size, self._limits.entries_max),
            "wait": wait_s,
            "max_attempts": policy.max_attempts,
            "backoff": policy.backoff_s,
            **filter_of(request.filter_expression),
        }
        return Terms(topic, group, lease_ms, options, _attempt_of(client, topic, group, request))


def _attempt_of(client: Client, topic: str, group: str, request: Any) -> ReceiveAttempt | None:
    if len(request.attempt_id) > ATTEMPT_ID_CHARACTERS_MAX:
        raise RejectedError(
            Code.BAD_REQUEST,
            f"attempt_id: wanted at most {ATTEMPT_ID_CHARACTERS_MAX} characters, got "
            f"{len(request.attempt_id)}",
        )
    return (
        ReceiveAttempt(client.id, topic, group, request.attempt_id) if request.attempt_id else None
    )


def _answer(**content: Any) -> Any:
    return messages.ReceiveMessageResponse(**content)
