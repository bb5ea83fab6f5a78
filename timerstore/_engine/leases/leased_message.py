"""The results of leasing: leased messages, dead letters and the outcomes of receipts.

All are immutable.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from timerstore._engine.base.message_fields import UNIQUE_PROPERTY, is_of_engine
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.lease import LEASE_PROPERTY, TOPIC_PROPERTY, Lease, write_lease
from timerstore.errors import CorruptError, LeaseLostError, MessageError
from timerstore.types.messages import SYS_FLAG_COMPRESSED, Message
from timerstore.types.reports import CancelResult

# --- leased message ---


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LeasedMessage(Message):
    """A leased message: `ack` its receipt before `lease_until_ms`, or it is delivered again.

    At every attempt, the topic, queue, offset, due and delivery time, born time, body, tags, keys
    and properties are those of the original message. `log_offset` and `store_ms` are those of the
    copy that was read.
    """

    receipt: str
    """A text that identifies the lease; usable in JSON, after a restart and from any thread."""
    attempt: int
    """1 for the first delivery to the group, then 2, and so on."""
    lease_until_ms: int
    """The end of the lease, in ms since 1970 of the store's clock; then it is delivered again."""
    is_last_attempt: bool
    """Whether the message goes to the dead-letter topic unless it is acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DeadLetter(Message):
    """A dead letter of a group: a message that was buried, or whose attempts were used up.

    Topic, queue, offset, due and delivery time, born time, body, tags, keys and properties are
    those of the original message. `log_offset` is that of the dead letter, and `store_ms` is the
    time at which the message became one.
    """

    group: str
    """The group whose dead letter it is."""
    receipt: str
    """A text that identifies the dead letter for `requeue`; usable in JSON and after a restart."""
    attempt: int
    """How often the message was delivered to the group; 0: unknown, as a broker wrote it."""
    error: str | None = None
    """The reason that the last `nack` or `bury` with `error=` gave, at most its first 1,024 bytes
    of UTF-8. None: there was none."""


class AckResult(StrEnum):
    """The result of `ack`, `nack`, `bury`, `commit` or `rollback`."""

    ACKED = "ACKED"
    """The group is done with the message; it is not delivered again."""
    NACKED = "NACKED"
    """The message is delivered again when its back-off is over."""
    BURIED = "BURIED"
    """The message is a dead letter of the group; only `requeue` delivers it again."""
    COMMITTED = "COMMITTED"
    """The half message is in its topic, by this call or by an earlier one."""
    ROLLED_BACK = "ROLLED_BACK"
    """The half message is gone; no consumer of its topic has seen it."""
    EXPIRED = "EXPIRED"
    """The lease was over. The message is in the retry topic or the dead-letter topic, or has been
    leased again. Nothing was changed."""
    SETTLED = "SETTLED"
    """The receipt was used before: acked, nacked, buried, or extended, which returned another
    receipt. Nothing was changed."""
    UNKNOWN = "UNKNOWN"
    """The store has no such lease: it belongs to another store, or ended long ago."""


def lost(call: str, result: AckResult) -> LeaseLostError:
    """Return the error of a call whose lease has this outcome."""
    return LeaseLostError(
        f"{call}: the lease is not held any more",
        wanted="a lease that is neither over nor settled",
        got=result,
        result=result,
    )


RESULTS = {
    CancelResult.CANCELLED: AckResult.ACKED,
    CancelResult.ALREADY_DELIVERED: AckResult.EXPIRED,
    CancelResult.ALREADY_CANCELLED: AckResult.SETTLED,
    CancelResult.UNKNOWN: AckResult.UNKNOWN,
}
"""The outcome of a lease by the outcome of its timer."""


# --- message copies ---
# Copy a message for a lease, or back from a dead letter: its body, properties and id.
#
# Thread safety: any thread; there is no state.


def body_of(message: Message) -> bytes:
    """Return the body, inflated if possible: the copy has no flag for a compressed body."""
    if not message.sys_flag & SYS_FLAG_COMPRESSED:
        return message.raw_body
    try:
        return message.body
    except (MessageError, CorruptError):
        return message.raw_body


def properties_of(message: Message, lease: Lease, topic: str) -> bytes:
    """Return the encoded properties of a copy: those of the message and those of the lease.

    Those of the engine are set for each copy, or have no meaning for it; but a unique message stays
    one.
    """
    pairs = [
        f"{name}\x01{value}\x02"
        for name, value in message.properties.items()
        if name == UNIQUE_PROPERTY or (name != TOPIC_PROPERTY and not is_of_engine(name))
    ]
    pairs.append(f"{LEASE_PROPERTY}\x01{write_lease(lease)}\x02{TOPIC_PROPERTY}\x01{topic}\x02")
    return "".join(pairs).encode()


# --- unclaimed leases ---
# Leased messages that an awaited `receive` has not returned to its caller yet.
#
#     leased in a call of the store -> add -> claim by the task        it returns the messages
#                                          -> claim by the give-back   the task was cancelled
#                                          -> take_all                 the store is being closed
#
# Thread safety: any thread; one of several claims gets a message.


class UnclaimedLeases(NotCopyable):
    """The unclaimed messages of one store, by receipt."""

    def __init__(self) -> None:
        self._messages: dict[str, LeasedMessage] = {}

    def add(self, messages: Sequence[LeasedMessage]) -> None:
        """Add messages, in the call of the store that leases them."""
        self._messages.update((one.receipt, one) for one in messages)

    def claim(self, messages: Iterable[LeasedMessage]) -> list[LeasedMessage]:
        """Return those of the messages that no other claim got."""
        take = self._messages.pop  # a single step
        return [one for one in messages if take(one.receipt, None) is not None]

    def take_all(self) -> list[LeasedMessage]:
        """Claim all messages."""
        return self.claim(list(self._messages.values()))
