"""Run the calls of one connection, and end its consumers, lists and leases.

Thread safety: runs on the server's loop.
Raises: MessageError for a call or an argument that does not exist; otherwise as the store.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, TypeVar

from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.leases import AckResult, LeaseCall
from timerstore._engine.leases.backoff import delay_ms
from timerstore._engine.leases.receive_request import ReceiveRequest
from timerstore._engine.leases.shared_receive import BegunReceive
from timerstore._engine.read.pull_request import whole_or
from timerstore.aio import AsyncConsumer, AsyncTimerStore
from timerstore.aio.async_store import PAGE_BYTES, PAGE_COUNT, body_bytes
from timerstore.errors import BusyError, MessageError, TimerStoreError, quoted
from timerstore.net.call_table import (
    CONSUMER_CALLS,
    GIVE_BACK,
    LIST_CALLS,
    SIGNATURES,
    STORE_CALLS,
    CallSpec,
    Signature,
)
from timerstore.net.packed_arguments import owner_folder
from timerstore.net.server_counters import ServerCounters
from timerstore.net.server_limits import ServerLimits
from timerstore.net.shortened_results import ResultShortener
from timerstore.net.wire_messages import Call
from timerstore.types.messages import PullResult
from timerstore.types.receipts import PutReceipt

Answer = TypeVar("Answer")

_SETTLING = frozenset({"ack", "nack", "extend", "bury", "commit", "rollback"})
_LEASE_CALLS = frozenset({"receive", "ack", "ack_many", "nack", "bury", "extend", "renew"})
"""The calls that the loop gathers. None of them waits before it is made."""


class MessageList(NotCopyable):
    """The rest of a `pending` or `dead_letters`, which a client reads page by page."""

    def __init__(self, calls: Mapping[str, CallSpec], found: AsyncIterator[Any]) -> None:
        self.calls = calls
        self._found = found
        self._kept: list[Any] = []
        self._is_read = False  # by a `next` that runs

    async def next(self) -> list[Any]:
        """Return the next messages; an empty list at the end. MessageError if another one runs."""
        if self._is_read:
            raise MessageError("next: wanted one at a time for a list, got a second one")
        self._is_read = True
        try:
            return await self._page()
        finally:
            self._is_read = False

    async def _page(self) -> list[Any]:
        if self._kept:
            page, self._kept = self._kept, []
            return page
        page, left_bytes = [], PAGE_BYTES
        async for one in self._found:
            page.append(one)
            left_bytes -= body_bytes(one)
            if left_bytes <= 0 or len(page) == PAGE_COUNT:
                break
        return page

    def keep(self, rows: list[Any]) -> None:
        """Return these rows before the others."""
        self._kept = rows + self._kept

    async def close(self) -> None:
        """Forget the rest."""


_CONSUMER_SIGNATURES = {
    name: Signature.of(getattr(AsyncConsumer, name)) for name in CONSUMER_CALLS if name != "queues"
}


class CallRunner(NotCopyable):
    """The calls of one connection."""

    def __init__(
        self,
        store: AsyncTimerStore,
        limits: ServerLimits,
        counters: ServerCounters,
        *,
        return_leases: bool,
    ) -> None:
        self._store = store
        self._limits = limits
        self._counters = counters
        self._targets: dict[int, AsyncConsumer | MessageList] = {}
        self._numbers = count(1)
        self._clock = store.blocking._clock
        self._leases: dict[str, int] | None = {} if return_leases else None  # to their ends, ms
        self._shortener = ResultShortener(limits.frame_bytes_max)

    def spec_of(self, call: Call) -> CallSpec:
        """Return the row of a call."""
        if call.target == 0:
            found = GIVE_BACK if call.name == GIVE_BACK.name else STORE_CALLS.get(call.name)
        else:
            target = self._target(call)
            calls = target.calls if isinstance(target, MessageList) else CONSUMER_CALLS
            found = calls.get(call.name)
        if found is None:
            raise MessageError(f"call: no such call can be made from here: {quoted(call.name)}")
        return found

    def _target(self, call: Call) -> AsyncConsumer | MessageList:
        target = self._targets.get(call.target)
        if target is None:
            raise MessageError(f"target: wanted one of this connection, got {call.target}")
        return target

    async def run(self, call: Call) -> Any:
        """Make a call and return its result."""
        if call.target:
            return await self._on_target(call)
        _check(call, SIGNATURES[call.name])
        if call.name == "backup":
            owner_folder(call.args[0])
        if call.name == GIVE_BACK.name:
            return await self._given_back(call.args[0])
        if call.name == "put_many":
            given = call.options
            self._shortener.check_batch(
                call.args[1], given.get("message_ids"), given.get("priority")
            )
        method: Callable[..., Any] = getattr(self._store, call.name)
        if call.name == "consumer":
            self._check_targets()
            return self._add(await method(*call.args, **call.options))
        if call.name in LIST_CALLS:
            self._check_targets()
            rows = method(*call.args, **call.options)
            return self._add(MessageList(LIST_CALLS[call.name], rows))
        found = await method(*call.args, **call.options)
        self.follow_leases(call, found)
        return found

    def lease_call(self, call: Call) -> LeaseCall | ReceiveRequest | None:
        """Return a call that needs no task; None for other calls."""
        if call.target or call.name not in _LEASE_CALLS:
            return None
        bytes_max = call.options.pop("bytes_max", 0) if call.name == "receive" else 0
        _check(call, SIGNATURES[call.name])
        if call.name != "receive":
            return LeaseCall(call.name, call.args[0], **call.options)  # type: ignore[arg-type]
        self._check_leases()
        topic, group = call.args
        request = ReceiveRequest.from_options(topic, group, call.options)
        if (asked := whole_or(bytes_max, -1)) < 0:
            raise MessageError(
                f"bytes_max: wanted a whole number from 0 on, got {quoted(bytes_max)}"
            )
        limit = self._limits.frame_bytes_max  # messages that fit into one answer
        request.bytes_max = min(asked or limit, limit)
        return request

    async def completed(self, call: Call, begun: Any) -> Any:
        """Return the result of a lease call; of a `receive` without messages after its wait."""
        is_receive = isinstance(begun, BegunReceive)
        found = await self._store._received(begun) if is_receive else begun
        self.follow_leases(call, found)
        return found

    def put_without_task(
        self, call: Call, done: Callable[[PutReceipt | BaseException], None]
    ) -> bool:
        """Make a put without a task, as AsyncTimerStore._put_without_task."""
        _check(call, SIGNATURES[call.name])
        return self._store._put_without_task(call.args, call.options, done)

    async def _on_target(self, call: Call) -> Any:
        target = self._target(call)  # an earlier call may have closed it
        if isinstance(target, MessageList):
            if call.args or call.options:
                raise MessageError(f"{call.name}: wanted no arguments")
        elif call.name == "queues":
            return list(target.queues)
        else:
            _check(call, _CONSUMER_SIGNATURES[call.name])
        if call.name == "close":
            del self._targets[call.target]
        return await getattr(target, call.name)(*call.args, **call.options)

    async def shortened(self, call: Call, found: Any) -> Any:
        """Return the part of a result that fits into a frame; the rest is in later results."""
        target = self._targets.get(call.target)
        if isinstance(target, MessageList):
            return self._shortener.listed(found, target.keep)
        if target is not None and call.name == "poll":
            return await self._shortener.polled(target, found)
        if call.name == "receive":
            fitting, cut_off = self._shortener.received(found)
            await self.give_back(cut_off)
            return fitting
        if isinstance(found, PullResult):
            return self._shortener.pulled(found)
        raise MessageError(
            f"{call.name}: the result is longer than a frame, which has at most "
            f"{self._limits.frame_bytes_max} bytes; ask for fewer messages (max_count)"
        )

    def _check_targets(self) -> None:
        if len(self._targets) >= self._limits.targets_max:
            raise BusyError(
                "the connection has too many consumers and lists of messages",
                wanted=f"at most {self._limits.targets_max}",
            )

    def _add(self, target: AsyncConsumer | MessageList) -> int:
        number = next(self._numbers)
        self._targets[number] = target
        return number

    # --- leases ---

    def _check_leases(self) -> None:
        leases = self._leases
        if leases is None or len(leases) < self._limits.leases_max:
            return
        now_ms = self._clock.now_ms
        for receipt in [one for one, end_ms in leases.items() if end_ms <= now_ms]:
            del leases[receipt]
        if len(leases) >= self._limits.leases_max:
            raise BusyError(
                "the connection has too many leases", wanted=f"at most {self._limits.leases_max}"
            )

    def follow_leases(self, call: Call, found: Any) -> None:
        """Record the leases that a call made or ended."""
        leases = self._leases
        if leases is None:
            return
        if call.name == "receive":
            self._forget_leases(call.options.get("ack", ()))
            leases.update((one.receipt, one.lease_until_ms) for one in found)
        elif call.name == "renew":
            # It may be one of an earlier server.
            if call.args[0] in leases or len(leases) < self._limits.leases_max:
                leases[call.args[0]] = found
        elif call.name in _SETTLING:
            leases.pop(call.args[0], None)
            if call.name == "extend":
                lease_ms = delay_ms("lease", call.options.get("lease", 30.0))
                leases[found] = self._clock.now_ms + lease_ms
        elif call.name == "ack_many":
            self._forget_leases(call.args[0])

    async def give_back(self, receipts: Sequence[str]) -> None:
        """Give back leases of messages that no consumer saw; their attempts do not count."""
        if receipts:
            with suppress(TimerStoreError):  # else they are delivered again when the leases end
                await self._given_back(receipts)

    async def _given_back(self, receipts: Sequence[str]) -> int:
        here = partial(self._store.blocking._give_back, receipts)
        count = await self._or_here(self._store._give_back(receipts), here)
        self._counters.net_returned_leases += count
        self._forget_leases(receipts)
        return count

    def _forget_leases(self, receipts: Sequence[str]) -> None:
        if self._leases is not None:
            for receipt in receipts:
                self._leases.pop(receipt, None)

    async def _return_leases(self, receipts: Sequence[str]) -> None:
        """Return leases whose holder is gone. It saw the messages, so their attempts count."""
        await asyncio.gather(*map(self._return_one, receipts))  # they share a sync

    async def _return_one(self, receipt: str) -> None:
        with suppress(TimerStoreError):  # else it is delivered again when its lease ends
            nacked = self._store.nack(receipt, delay=0)
            here = partial(self._store.blocking.nack, receipt, delay=0)
            if await self._or_here(nacked, here) is AckResult.NACKED:
                self._counters.net_returned_leases += 1

    async def _or_here(self, call: Awaitable[Answer], here: Callable[[], Answer]) -> Answer:
        """Await a call. Make it on this thread if the interpreter ends: no other one takes it."""
        try:
            return await call
        except RuntimeError:
            if not self._store._is_shut():
                raise
            return here()

    async def end(self, *, returns_leases: bool) -> None:
        """Close the consumers, and give back the leases if the client asked for it.

        `returns_leases`: False if the server ends. The client has not ended: it settles or renews
        its leases through the next server.
        """
        targets = list(self._targets.values())
        self._targets.clear()
        for one in targets:
            with suppress(TimerStoreError):  # as the store may be closed
                if isinstance(one, AsyncConsumer):
                    await self._or_here(one.close(), one.blocking.close)
        if self._leases and returns_leases:
            await self._return_leases(list(self._leases))


def _check(call: Call, signature: Signature) -> None:
    """Check the number and the names of a call's arguments; the store checks their values."""
    if problems := signature.problems(call.args, call.options):
        raise MessageError([f"{call.name}: {one}" for one in problems])


def is_wait(value: object) -> bool:
    """Return whether a value of `wait` is a time to wait; the store checks it."""
    return isinstance(value, int | float) and value > 0
