"""The arguments of `receive`, as a value, and their validation.

Raises: MessageError with everything that is wrong.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from timerstore._engine.base import argument_types
from timerstore._engine.format.lease import Receipt, read_receipt, retry_topic
from timerstore._engine.leases.backoff import Backoff, backoff_of, delay_ms
from timerstore._engine.leases.leased_message import AckResult, LeasedMessage
from timerstore._engine.read.filter import filter_problems
from timerstore._engine.read.groups import Filters, check_name
from timerstore._engine.read.pull_request import wait_problems, whole_or
from timerstore.errors import MessageError, plain, quoted, typed
from timerstore.types.config import StoreConfig

# --- receive request ---


COUNT_MAX = 10_000
ATTEMPTS_MAX = 1_000_000
TOPICS_MAX = 1_000
_TERMS_MAX = 256  # checked arguments that are kept
_PLAIN = frozenset({int, float, bool, str, type(None), timedelta, Backoff})

Topics = str | Sequence[str]
"""A topic, or several."""


@dataclass(slots=True)
class ReceiveRequest:
    """The arguments of StoreApi.receive, as the caller gave them; ReceiveChecks checks them."""

    topic: Topics
    group: str
    lease: timedelta | float = 30.0
    max_count: int = 1
    wait: float = 0.0
    tags: str | None = None
    sql: str | None = None
    max_attempts: int | None = 16
    backoff: Backoff | Sequence[float] | float | None = None
    ordered: bool = False
    ack: Iterable["ReceiptOrMessage"] = ()
    bytes_max: int = field(default=0, kw_only=True)  # of a server: of one answer; 0: no limit

    def __post_init__(self) -> None:
        if type(self.topic) is not str:
            self.topic = plain(self.topic)
        if type(self.group) is not str:
            self.group = plain(self.group)
        if self.tags is not None or self.sql is not None:
            self.tags, self.sql = plain(self.tags), plain(self.sql)
        if type(self.ack) is not tuple or self.ack:
            self.ack = list(argument_types.several("ack", self.ack))

    @classmethod
    def from_options(
        cls, topic: Topics, group: str, options: Mapping[str, Any]
    ) -> "ReceiveRequest":
        """Return a request with some keyword arguments of `receive`; reject unknown names."""
        if problems := _name_problems("receive", options, OPTION_NAMES):
            raise MessageError(problems)
        return cls(topic, group, **options)

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of `receive`."""
        return {name: getattr(self, name) for name in OPTION_NAMES}

    def acked(self) -> list[Receipt]:
        """Return the receipts to acknowledge. MessageError for another text or value."""
        return argument_types.each_of("ack", self.ack, receipt_of)

    @property
    def filters(self) -> Filters:
        """Return the filter of the group."""
        return Filters(self.tags, self.sql)


OPTION_NAMES = frozenset(one.name for one in fields(ReceiveRequest)[2:] if not one.kw_only)


class ReceiveTerms(NamedTuple):
    """The checked arguments of one `receive`, except topic and group."""

    lease_ms: int
    max_count: int
    wait_s: float
    filters: Filters
    attempts_max: int  # 0: no limit
    backoff: Backoff
    ordered: bool = False
    bytes_max: int = 0  # of the messages together, but for the first one; 0: no limit


def check_loop(options: Mapping[str, object]) -> None:
    """Reject the options that a loop over leased messages does not take, before it leases any."""
    problems = []
    if "max_count" in options:  # the loop would lose the other messages of a batch
        problems.append(
            "max_count: wanted none, because a loop leases one message at a time, got "
            f"{quoted(options['max_count'])}"
        )
    if "ack" in options:
        problems.append("ack: wanted none, because a loop acknowledges its own messages")
    known = OPTION_NAMES - {"ack", "max_count"}
    problems += _name_problems("lease_consumer", options, known)
    if problems:
        raise MessageError(problems)


def _name_problems(call: str, options: Mapping[str, object], known: frozenset[str]) -> list[str]:
    unknown = sorted(options.keys() - OPTION_NAMES)
    if not unknown:
        return []
    return [f"{call}: wanted some of {', '.join(sorted(known))}, got {', '.join(unknown)}"]


class ReceiveChecks:
    """Checks requests, those with the same arguments once."""

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self._terms: dict[Any, ReceiveTerms] = {}

    def terms(self, request: ReceiveRequest) -> ReceiveTerms:
        """Return the checked arguments of a request, except topic and group."""
        given = (
            request.lease, request.max_count, request.wait, request.tags, request.sql,
            request.max_attempts, request.backoff, request.ordered, request.bytes_max,
        )  # fmt: skip
        types = tuple(map(type, given))  # 1 and True are equal
        if not _PLAIN.issuperset(types):  # it has no hash, or may change
            return check_receive(self._config, request)
        key = given, types
        terms = self._terms.get(key)
        if terms is None:
            terms = check_receive(self._config, request)
            if len(self._terms) >= _TERMS_MAX:
                self._terms.clear()
            self._terms[key] = terms
        return terms


def check_receive(config: StoreConfig, request: ReceiveRequest) -> ReceiveTerms:
    """Return the checked arguments of a request, except topic and group."""
    wait = request.wait
    problems = wait_problems(wait) + filter_problems(request.tags, request.sql)
    count = whole_or(request.max_count, 0)
    if not 1 <= count <= COUNT_MAX:
        problems.append(f"max_count: wanted 1 to {COUNT_MAX}, got {quoted(request.max_count)}")
    attempts = 0 if request.max_attempts is None else whole_or(request.max_attempts, -1)
    if request.max_attempts is not None and not 1 <= attempts <= ATTEMPTS_MAX:
        problems.append(
            f"max_attempts: wanted 1 to {ATTEMPTS_MAX} or None, got {quoted(request.max_attempts)}"
        )
    lease_ms, backoff = 0, None
    try:
        lease_ms = check_lease(config, request.lease)
    except MessageError as error:
        problems.extend(error.problems)
    try:
        backoff = backoff_of(request.backoff)
    except MessageError as error:
        problems.extend(error.problems)
    if problems or backoff is None:
        raise MessageError(problems)
    return ReceiveTerms(
        lease_ms,
        count,
        float(wait),
        request.filters,
        attempts,
        backoff,
        argument_types.check_flag("ordered", request.ordered),
        request.bytes_max,
    )


def check_topics(topic: object, group: object) -> tuple[str, ...]:
    """Return the topics of a request, which are one or several; raise MessageError.

    Each topic, and its retry topic, has a valid name.
    """
    one = isinstance(topic, str)
    topic = ordered_topics(topic)
    topics = (topic,) if one else tuple(argument_types.several("topics", topic))
    if not 1 <= len(topics) <= TOPICS_MAX:
        raise MessageError(f"topics: wanted 1 to {TOPICS_MAX}, got {len(topics)}")
    group = check_name("group", group)
    names = [check_name("topic" if one else f"topics[{k}]", each) for k, each in enumerate(topics)]
    for each in names:
        retry_topic(each, group)
    if len(set(names)) < len(names):
        twice = next(each for each in names if names.count(each) > 1)
        raise MessageError(f"topics: wanted each topic once, got {twice!r} twice")
    return tuple(names)


def ordered_topics(topic: Any) -> Any:
    """Return a topic, or several; raise MessageError if they have no order."""
    if isinstance(topic, AbstractSet | Mapping):
        raise MessageError(f"topics: wanted a list, which has an order, got {typed(topic)}")
    return topic


def check_lease(config: StoreConfig, lease: object) -> int:
    """Return the length of a lease in ms; raise MessageError unless it is 1 to `delay_ms_max`."""
    lease_ms = delay_ms("lease", lease)
    if not 1 <= lease_ms <= config.delay_ms_max:
        raise MessageError(
            f"lease: wanted more than 0 and at most {config.delay_ms_max} ms (delay_ms_max), got "
            f"{lease_ms} ms"
        )
    return lease_ms


# --- lease call ---
# A call that settles leases or extends one, as a value.


ReceiptOrMessage = str | LeasedMessage
"""A receipt, or the leased message with that receipt."""


Settled = AckResult | str | list[AckResult] | int
"""The result of a call: of extend a receipt, of renew the end in ms, of ack_many one result for
each receipt, of give_back the number of messages."""


class LeaseCall(NamedTuple):
    """One call. The engine checks its arguments."""

    kind: Literal["ack", "ack_many", "nack", "bury", "extend", "renew", "give_back"]
    target: Any
    """A receipt or a leased message; of ack_many and give_back several."""
    delay: object = None
    """Of nack."""
    lease: object = 30.0
    """Of extend and renew."""
    error: object = None
    """Of nack and bury."""


def receipt_of(target: object) -> Receipt:
    """Return the receipt. MessageError for another text or value."""
    return read_receipt(target.receipt if isinstance(target, LeasedMessage) else target)


def lease_s(lease: object) -> float:
    """Return the length of a lease in seconds; raise MessageError for another value."""
    return delay_ms("lease", lease) / 1000


def check_error(error: object) -> str | None:
    """Return the reason of a failed attempt; None for no text. MessageError for another value."""
    error = plain(error)
    if error is not None and not isinstance(error, str):
        raise MessageError(f"error: wanted text or None, got {typed(error)}")
    return error or None
