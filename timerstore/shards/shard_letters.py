"""List and requeue the dead letters of all shards. A dead letter stays in the shard of its message.

Thread safety: any thread.
Invariants:
    1. All receipts are checked before any message is requeued.
Raises: as TimerStore; errors name the shard.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import methodcaller
from typing import Any

from timerstore._engine.base import argument_types
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.lease import read_letter
from timerstore._engine.leases import DeadLetter
from timerstore._engine.leases.dead_letters import check_names
from timerstore.shards.receipt import ShardDeadLetter, letter_in, split_letter
from timerstore.store import TimerStore

Call = Callable[[TimerStore], Any]


class ShardLetters(NotCopyable):
    """The dead letters of one directory of shards."""

    def __init__(
        self,
        stores: Sequence[TimerStore],
        call: Callable[[int, Call], Any],
        call_some: Callable[[Mapping[int, Call]], list[Any]],
    ) -> None:
        self._stores = stores
        self._call = call
        self._call_some = call_some

    def letters(self, group: str, topic: str | None) -> Iterator[ShardDeadLetter]:
        """Implement ShardedStore.dead_letters."""
        check_names(group, topic)
        begin = methodcaller("dead_letters", group, topic=topic)
        parts = [self._call(shard, begin) for shard in range(len(self._stores))]
        return self._steps(parts)

    def _steps(self, parts: Sequence[Iterator[DeadLetter]]) -> Iterator[ShardDeadLetter]:
        for shard, part in enumerate(parts):
            step = _step_of(part)
            while (one := self._call(shard, step)) is not None:
                yield letter_in(shard, one)

    def requeue(
        self,
        group: str,
        letters: Iterable[str | DeadLetter] | str | DeadLetter | None,
        topic: str | None,
    ) -> int:
        """Implement ShardedStore.requeue."""
        check_names(group, topic)
        by_shard: dict[int, list[str] | None] = dict.fromkeys(range(len(self._stores)))
        if letters is not None:
            given = [letters] if isinstance(letters, str | DeadLetter) else letters
            places = argument_types.each_of("letters", given, self._place_of)
            by_shard = {
                shard: [receipt for at, receipt in places if at == shard]
                for shard in {at for at, _ in places}
            }
        calls = {
            shard: methodcaller("requeue", group, some, topic=topic)
            for shard, some in by_shard.items()
        }
        return sum(self._call_some(calls)) if calls else 0

    def _place_of(self, given: object) -> tuple[int, str]:
        """Return the shard and the receipt in that shard, checked."""
        text = given.receipt if isinstance(given, DeadLetter) else given
        shard, receipt = split_letter(text, len(self._stores))
        read_letter(receipt)
        return shard, receipt


def _step_of(letters: Iterator[DeadLetter]) -> Callable[[TimerStore], DeadLetter | None]:
    """Return a call that returns the next dead letter, or None at the end."""
    return lambda _store: next(letters, None)
