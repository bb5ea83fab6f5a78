"""ReceiveMessage: lease messages, and send them.

    attempt id of an unsettled answer -> the same messages again
    otherwise                         -> `receive`, as a poll of the client
    the answer cannot be sent         -> the messages are given back, with the same attempt

A push consumer asks for no lease (`auto_renew`). Its lease lasts for the consume timeout of its
group, and ends early with its client.

Thread safety: the server's loop only.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

from timerstore._engine.leases import Backoff, LeasedMessage
from timerstore._engine.leases.receive_request import ReceiveRequest
from timerstore.aio import AsyncTimerStore
from timerstore.errors import CorruptError, MessageError
from timerstore.rocketmq.byte_budget import ByteBudget, answer_bytes
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

_SHARE_BYTES_MIN = 64 << 10

_backoff = lru_cache(maxsize=1024)(Backoff.steps)
"""The steps of a group, which its waiting calls share."""

Send = Callable[[Any], Awaitable[None]]


class Terms(NamedTuple):
    """A checked request, without the fields that only the check needs: thousands may wait."""

    request: ReceiveRequest
    lease_ms: int
    is_renewed: bool
    namespace: str
    name: str
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
        unsent: ByteBudget,
    ) -> None:
        self._store = store
        self._policies = policies
        self._names = names
        self._clients = clients
        self._held = held
        self._settling = settling
        self._limits = limits
        self._unsent = unsent
        self._senders: Counter[str] = Counter()  # by receipt; no entry once a call has sent it

    async def receive(self, client: Client, terms: Terms, send: Send) -> int:
        """Answer ReceiveMessage; return the code of the answer."""
        found = [] if terms.attempt is None else self._held.replay(terms.attempt)
        is_new = not found
        if is_new:
            self._unsent.check()
            found = await self._clients.poll(client, self._lease, terms.request)
        with (
            self._sending(found, is_new=is_new),
            self._unsent.hold(min(answer_bytes(found), self._limits.unsent_bytes_max)),
        ):
            if is_new and terms.is_renewed:
                self._held.renew(client, found)
            if is_new and found and terms.attempt is not None:
                self._held.keep(terms.attempt, found)
            return await self._send(found, terms, send)

    @contextmanager
    def _sending(self, found: Sequence[LeasedMessage], *, is_new: bool) -> Iterator[None]:
        """If the block fails, give back the messages that no other call sends or has sent."""
        senders = self._senders
        mine = [one.receipt for one in found if is_new or one.receipt in senders]
        senders.update(mine)
        try:
            yield
        except BaseException:
            mine = [one for one in mine if one in senders]  # the others have been sent
            senders.subtract(mine)
            mine = [one for one in mine if senders[one] == 0]
            self._settling.give_back(mine)
            raise
        finally:
            for one in mine:
                del senders[one]

    async def _lease(self, request: ReceiveRequest) -> list[LeasedMessage]:
        share = self._unsent.left_bytes // (4 * self._clients.waiting_count)  # itself included
        # A power of two: calls with the same limit share a read.
        request.bytes_max = max(1 << share.bit_length() >> 1, _SHARE_BYTES_MIN)
        return await self._store._receive(request)

    async def _send(self, found: Sequence[LeasedMessage], terms: Terms, send: Send) -> int:
        topic = messages.Resource(resource_namespace=terms.namespace, name=terms.name)
        has_begun = False
        for one in found:
            try:
                shown = view(one, topic, terms.lease_ms)  # one at a time, as it is a copy
            except (CorruptError, MessageError) as error:  # no client can read it
                await self._settling.bury(one.receipt, str(error))
                continue
            if not has_begun:
                has_begun = True
                await send(_answer(status=status()))
            await send(_answer(message=shown))
        if has_begun:
            await send(_answer(delivery_timestamp=timestamp(self._settling.now_ms())))
            return int(Code.OK)
        text = "no message came in time"
        await send(_answer(status=status(Code.MESSAGE_NOT_FOUND, text)))
        return int(Code.MESSAGE_NOT_FOUND)

    async def checked(self, client: Client, left_s: float | None, request: Any) -> Terms:
        """Return a request as it is kept while it waits. `left_s`: until the call's deadline."""
        named = request.message_queue.topic
        topic, group = resource_name(named), resource_name(request.group)
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
        found = ReceiveRequest(
            topic,
            group,
            lease=lease_ms / 1000,
            max_count=min(request.batch_size, self._limits.entries_max),
            wait=wait_s,
            max_attempts=policy.max_attempts,
            backoff=_backoff(policy.backoff_s),
            ordered=policy.fifo,
            **filter_of(request.filter_expression),
        )
        attempt = _attempt_of(client, topic, group, request)
        return Terms(found, lease_ms, request.auto_renew, named.resource_namespace, named.name,
                     attempt)  # fmt: skip


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
