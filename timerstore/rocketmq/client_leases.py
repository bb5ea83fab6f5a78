"""Leases that the server remembers while they are not settled: those that end with their client,
and the answers that a repeated call gets again.

Both are kept in memory only. After a restart of the server such a lease ends at its own time, and a
repeated call receives other messages.

Thread safety: the server's loop only.
Invariants: a receipt that was settled is in no table.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from timerstore._engine.leases import LeasedMessage
from timerstore.rocketmq.byte_budget import message_bytes
from timerstore.rocketmq.known_clients import Client
from timerstore.rocketmq.rocketmq_limits import RocketmqLimits


class ReceiveAttempt(NamedTuple):
    """A ReceiveMessage that its client may repeat."""

    client_id: str
    topic: str
    group: str
    id: str


class ClientLeases:
    """The tables of one server."""

    def __init__(self, limits: RocketmqLimits, now_ms: Callable[[], int]) -> None:
        self._limits = limits
        self._now_ms = now_ms
        self._renewed: dict[str, dict[str, Client]] = {}  # client id -> receipt -> client
        self._terms: dict[str, tuple[str, int]] = {}  # receipt -> client id, end of the lease
        self._replays: OrderedDict[ReceiveAttempt, dict[str, LeasedMessage]] = OrderedDict()
        self._attempt_of: dict[str, ReceiveAttempt] = {}  # receipt -> attempt
        self._replay_bytes = 0

    # --- leases that end with their client ---

    def renew(self, client: Client, messages: Sequence[LeasedMessage]) -> None:
        """Remember leases of a push consumer. Those above the limit end at their own time."""
        self._drop_expired()
        for one in messages:
            if len(self._terms) >= self._limits.renewed_leases_max:
                return
            self._renewed.setdefault(client.id, {})[one.receipt] = client
            self._terms[one.receipt] = client.id, one.lease_until_ms

    def is_renewed(self, receipt: str) -> bool:
        """Return whether a lease is one of a push consumer."""
        return receipt in self._terms

    def _drop_expired(self) -> None:
        """Forget the oldest leases that their clients let expire."""
        now_ms = self._now_ms()
        while self._terms:
            receipt, (_, end_ms) = next(iter(self._terms.items()))
            if end_ms > now_ms:
                return
            self.settled(receipt)

    def ended(self, client_id: str, has_left: Callable[[Client], bool]) -> list[str]:
        """Forget the leases of those connections that have left. Return their receipts."""
        found = self._renewed.get(client_id, {})
        receipts = [receipt for receipt, client in found.items() if has_left(client)]
        for one in receipts:
            self.settled(one)
        return receipts

    # --- answers of repeated calls ---

    def keep(self, attempt: ReceiveAttempt, messages: Sequence[LeasedMessage]) -> None:
        """Keep an answer for a repeated call."""
        if attempt in self._replays:  # the call was repeated while it waited
            self._forget_replay(attempt)
        self._replays[attempt] = {one.receipt: one for one in messages}
        for one in messages:
            self._attempt_of[one.receipt] = attempt
            self._replay_bytes += message_bytes(one)
        while (
            len(self._replays) > self._limits.replays_max
            or self._replay_bytes > self._limits.replay_bytes_max
        ):
            self._forget_replay(next(iter(self._replays)))

    def replay(self, attempt: ReceiveAttempt) -> list[LeasedMessage]:
        """Return the messages of an earlier call that are still leased."""
        found = self._replays.get(attempt, {})
        now_ms = self._now_ms()
        for one in list(found.values()):
            if one.lease_until_ms <= now_ms:
                self.settled(one.receipt)
        return list(found.values())

    def _forget_replay(self, attempt: ReceiveAttempt) -> None:
        for receipt, one in self._replays.pop(attempt).items():
            del self._attempt_of[receipt]
            self._replay_bytes -= message_bytes(one)

    # --- both ---

    def settled(self, receipt: str) -> None:
        """Forget a lease that its client has settled or changed, or that was given back."""
        client_id, _ = self._terms.pop(receipt, (None, 0))
        if client_id is not None:
            del self._renewed[client_id][receipt]
            if not self._renewed[client_id]:
                del self._renewed[client_id]
        attempt = self._attempt_of.pop(receipt, None)
        if attempt is not None:
            batch = self._replays[attempt]
            self._replay_bytes -= message_bytes(batch.pop(receipt))
            if not batch:
                del self._replays[attempt]
