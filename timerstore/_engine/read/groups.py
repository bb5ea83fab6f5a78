"""Groups: who of a group has which queue, and where in it he is.

    topic orders, queues 0 1 2 3          a joins      a: 0 1 2 3
                                          b joins      a: 0 1      b: 2 3
                                          a closes                 b: 0 1 2 3

Threads:  any. Of a Group everything is under its `lock`, but that who commits goes out of
          `committing` without; of Groups under `_lock`. Locks and bells are of C: a signal handler
          that raises amid a step of Python's, as a Condition's, would leave them locked.
Locks:    Groups._lock, then a Group's, then the hold table's; none is held over a pull or a sync.
Holds:    (1) a queue is in the hands of one consumer of its group; (2) who joins or leaves moves as
          few queues as is fair; (3) a queue that moves goes on from what was committed, and not
          before commits of it that are on their way are settled; (4) of a topic a group leases, or
          has consumers: which of the two is decided in one hold of Groups._lock.
Source:   docs/decisions/0005-long-poll.md and docs/decisions/0009-leases-replace-and-recurring.md.
"""

import re
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import Owner
from timerstore._engine.base.service import WakeEvent
from timerstore._engine.read.wait_queue import FOR_EVER_NS, Queue, WaitQueue
from timerstore.errors import MessageError, quoted
from timerstore.messages import Message, PullResult

_NAME = re.compile(r"[A-Za-z0-9%_|-]{1,255}")


def check_name(what: str, name: object) -> str:
    """Give a topic or group name that the ancestor allows; MessageError else."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    got = quoted(name)
    if len(got) > 60:
        got = f"{got[:60]}... of {len(name) if isinstance(name, str) else '?'} characters"
    raise MessageError(f"{what}: wanted 1 to 255 of A-Za-z0-9%_|-, got {got}")


def divide(queues: Iterable[int], held: Sequence[Collection[int]]) -> list[list[int]]:
    """Give each queue to one of the consumers, none two more than another.

    `held`: what each has now; it keeps of that as much as is fair.
    """
    left = set(queues)
    shares = []
    for one in held:
        shares.append(sorted(left.intersection(one)))
        left.difference_update(one)
    for queue_id in sorted(left) if shares else ():
        min(shares, key=len).append(queue_id)
    while shares and len(most := max(shares, key=len)) - len(least := min(shares, key=len)) > 1:
        least.append(most.pop())
    return [sorted(one) for one in shares]


class Filters(NamedTuple):
    """What a group reads of its topic; as `pull` takes it."""

    tags: str | None
    sql: str | None

    def __str__(self) -> str:
        return f"tags {self.tags!r}, sql {self.sql!r}"


class Held:
    """A queue in the hands of a consumer; a new one each time that it comes to somebody."""

    __slots__ = ("ahead", "asked", "fetch_at", "is_known", "jumps", "low", "position", "queue_id")

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id
        self.position = -1  # behind what was handed out; -1: not known yet
        self.is_known = False  # the group has committed there, or read
        self.low = 0  # a commit below it is behind the times
        self.asked = 0  # the furthest commit that was asked for since the last jump
        self.jumps = 0
        self.fetch_at = 0  # behind what was fetched
        self.ahead: deque[Message] = deque()  # fetched, not handed out

    def know(self, *, is_known: bool) -> None:
        """Note whether the group has committed there."""
        self.is_known = is_known

    def settle(self, offset: int) -> None:
        """Note that a commit is durable: one below it is out of date."""
        self.low = max(self.low, offset)

    def jump(self, offset: int) -> None:
        """Go on from an offset."""
        self.ahead.clear()
        self.position = self.low = self.fetch_at = offset
        self.asked = 0
        self.jumps += 1

    def ask(self, offset: int, *, others_are_on_their_way: bool) -> int:
        """What to commit for who is done to here: no less than a commit that is on its way."""
        self.asked = max(self.asked, offset) if others_are_on_their_way else offset
        return self.asked

    def arrived(self, result: PullResult) -> None:
        """Take in what was pulled from `fetch_at` on; it never goes back."""
        self.ahead.extend(result.messages)
        self.fetch_at = max(self.fetch_at, result.next_offset)
        if not self.ahead:
            self.position = self.fetch_at

    def skip(self, offset: int, looked: int) -> None:
        """What lies between the two is not for this group; where that is still the next."""
        if self.fetch_at == offset < looked:
            self.fetch_at = looked
            if not self.ahead:
                self.position = looked

    def take(self, count: int) -> list[Message]:
        """Hand out what is there."""
        found = [self.ahead.popleft() for _ in range(min(count, len(self.ahead)))]
        if found:
            self.is_known = True
            # Behind the last one lies what a filter left out, which is done with too.
            self.position = found[-1].queue_offset + 1 if self.ahead else self.fetch_at
        return found


class Member(Owner):
    """One consumer, as its group sees it."""

    def __init__(self, queues: tuple[int, ...] | None, line: WaitQueue) -> None:
        self.queues = queues  # those that it asked for; None: a fair share
        self.line = line  # its polls that wait
        self.held: dict[int, Held] = {}
        self.had: dict[int, int] = {}  # of queues that moved: how far it was in each
        self.is_in = False
        self.owner: weakref.ref[object] | None = None

    def own_by(self, owner: weakref.ref[object]) -> None:
        """Note the consumer that this stands for."""
        self.owner = owner

    @property
    def is_gone(self) -> bool:
        """Whether its consumer was dropped without being closed."""
        return self.owner is not None and self.owner() is None

    def hold(self, queues: Collection[int]) -> None:
        """Have these queues from now on."""
        before = self.held
        self.held = {q: before.get(q) or Held(q) for q in queues}
        for q in before.keys() - self.held.keys():
            self.had[q] = max(self.had.get(q, 0), before[q].position)
        if self.held.keys() != before.keys():
            self.line.ring()

    def wanted(self) -> dict[Queue, int] | None:
        """From where on it waits in each queue; None where there is something to look at."""
        if any(one.position < 0 or one.ahead for one in self.held.values()):
            return None
        return {one: one.fetch_at for one in self.held.values()}


class Group(Owner):
    """The consumers of one topic and group in this process."""

    def __init__(self, topic: str, name: str, count_queues: Callable[[str], int]) -> None:
        self.topic = topic
        self.name = name
        self._count_queues = count_queues
        self.lock = Lock()
        self.members: list[Member] = []
        self.filters = Filters(None, None)
        self.queue_count = 0
        self.committing: dict[object, Collection[int]] = {}  # commits on their way: queues of each
        self._waiting: list[WakeEvent] = []  # for one of them to be settled
        self.gone: deque[Member] = deque()  # their consumers were dropped without being closed

    @property
    def is_read(self) -> bool:
        """Whether somebody reads; needs no lock."""
        return any(not one.is_gone for one in list(self.members))

    # --- who is in; under `lock` ---

    def join(self, member: Member, filters: Filters) -> None:
        """Take a consumer in, and divide the queues anew."""
        self.refresh()
        if self.members and filters != self.filters:
            raise MessageError(
                f"group {self.name!r} reads {self.topic!r} with {self.filters}, and a queue may "
                f"come to any of its consumers; got {filters}"
            )
        taken = {q for one in self.members for q in one.queues or ()}
        wrong = sorted(taken.intersection(member.queues or ()))
        if wrong:
            raise MessageError(
                f"queues: another consumer of group {self.name!r} asked for {wrong} of "
                f"{self.topic!r} before, got {list(member.queues or ())}"
            )
        self.filters = filters
        self.members.append(member)
        member.is_in = True
        self.divide()

    def leave(self, member: Member) -> None:
        """Let a consumer go; the others get its queues."""
        if member.is_in:
            member.is_in = False
            member.held = {}
            self.members.remove(member)
            self.divide()
            member.line.wake_all()

    def refresh(self) -> None:
        """Notice new queues, and consumers that are no more."""
        while self.gone:
            self.leave(self.gone.popleft())
        if self._count_queues(self.topic) != self.queue_count:
            self.divide()

    def divide(self) -> None:
        """Give each queue to one member."""
        self.queue_count = self._count_queues(self.topic)
        taken = {q for one in self.members for q in one.queues or ()}
        sharing = [one for one in self.members if one.queues is None]
        shares = divide(
            (q for q in range(self.queue_count) if q not in taken), [one.held for one in sharing]
        )
        for member in self.members:
            if member.queues is not None:
                member.hold([q for q in member.queues if q < self.queue_count])
        for member, share in zip(sharing, shares, strict=True):
            member.hold(share)

    # --- commits; under `lock` ---

    def is_committing(self, queue_id: int) -> bool:
        """Whether a commit of this queue is on its way."""
        return any(queue_id in queues for queues in list(self.committing.values()))

    def when_settled(self) -> WakeEvent:
        """What rings when a commit has arrived, or failed."""
        bell = WakeEvent()
        self._waiting.append(bell)
        return bell

    def commit_settled(self) -> None:
        """One has, and is out of `committing`."""
        waiting, self._waiting = self._waiting, []
        for bell in waiting:
            bell.set()

    # --- waiting ---

    def arrived(self) -> None:
        """The topic has grown: by queues, it may be, or a message came for who is no more. Other
        messages ring in the hold table whom they are for.
        """
        if self.gone or self._count_queues(self.topic) != self.queue_count:
            with self.lock:
                self.refresh()

    def wake_all(self, until_ns: int) -> None:
        """Let everybody look who waits no longer than that."""
        with self.lock:
            for member in self.members:
                member.line.wake_all(until_ns)


class Groups(Owner):
    """The groups of one store."""

    def __init__(
        self,
        count_queues: Callable[[str], int],
        topic_of: Callable[[int], str],
    ) -> None:
        self._count_queues = count_queues
        self._topic_of = topic_of
        self._lock = Lock()
        self._by_topic: dict[str, tuple[Group, ...]] = {}  # tuples: read without the lock
        # Topic and name, to the topic whose messages it leases there; once in, for good.
        self._leasing: dict[tuple[str, str], str] = {}
        self.is_closed = False

    def lease(self, topic: str, name: str, retry_topic: str) -> None:
        """A group leases a topic from now on, and where its messages come again; MessageError where
        it has consumers in one of the two, or leases it for another topic.
        """
        with self._lock:
            known = self.known()
            for one in (topic, retry_topic):
                leased = self._leasing.get((one, name), topic)
                if leased != topic:
                    raise MessageError(
                        f"group: {name!r} leases {one!r} in this process by a receive of {leased!r}"
                    )
                if (one, name) in known:
                    raise MessageError(
                        f"group: a consumer of group {name!r} reads {one!r} in this process; "
                        "what one of them hands out, the other one does not see"
                    )
            self._leasing |= {(topic, name): topic, (retry_topic, name): topic}

    def join(
        self, topic: str, name: str, member: Member, filters: Filters, *, leases: bool = False
    ) -> Group:
        """Take a consumer into its group, which is made where it is the first; `leases`: what it
        reads is leased. MessageError for others where the group leases the topic.
        """
        with self._lock:
            if not leases and (topic, name) in self._leasing:
                raise MessageError(f"group: {name!r} leases {topic!r} in this process (receive)")
            here = self._by_topic.get(topic, ())
            group = next((one for one in here if one.name == name), None)
            if group is None:
                group = Group(topic, name, self._count_queues)
                with group.lock:
                    group.join(member, filters)
                self._by_topic[topic] = (*here, group)
            else:
                with group.lock:
                    group.join(member, filters)
            return group

    def leave(self, group: Group, member: Member) -> None:
        """Let a consumer go; a group without any is forgotten, when its commits are settled."""
        with self._lock, group.lock:
            group.leave(member)
            self._forget_unread(group)

    def commit_settled(self, group: Group) -> None:
        """A commit has arrived, or failed."""
        with self._lock, group.lock:
            group.commit_settled()
            self._forget_unread(group)

    def _forget_unread(self, group: Group) -> None:
        if not group.is_read and not group.committing:
            here = self._by_topic.get(group.topic, ())
            if left := tuple(one for one in here if one is not group):
                self._by_topic[group.topic] = left
            else:
                self._by_topic.pop(group.topic, None)

    def known(self) -> list[tuple[str, str]]:
        """Give topic and name of every group that has a consumer here."""
        here = [one for groups in list(self._by_topic.values()) for one in groups]
        return [(one.topic, one.name) for one in here if one.is_read]

    def arrived(self, touched: set[int]) -> None:
        """Queues have grown: dispatch's listener, called with indexes of routes."""
        if self._by_topic:
            for topic in {self._topic_of(index) for index in touched}:
                for group in self._by_topic.get(topic, ()):
                    group.arrived()

    def wake_all(self, until_ns: int = FOR_EVER_NS) -> None:
        """Let everybody look, or everybody whose time is over by then: the store was closed or has
        failed, or its clock was turned.
        """
        for groups in list(self._by_topic.values()):
            for group in groups:
                group.wake_all(until_ns)

    def close(self) -> None:
        """Answer everybody who waits."""
        self.is_closed = True
        self.wake_all()
