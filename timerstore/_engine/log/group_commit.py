"""Group commit: one thread syncs the log for all waiting threads.

The first thread becomes the leader of a round and syncs. Threads that arrive during the round wait
until a sync has covered their records.

Thread safety: any thread.
Locking: the GIL protects the state, which only C changes. A waiter sleeps without the GIL.
Invariants:
    1. At most one thread leads.
    2. No thread waits unless another one leads. The end of a round wakes all threads that it
       served, and the first of the others, which leads the next round.
    3. A thread that leaves with an exception (Ctrl-C) wakes all waiting threads.
See also: native/fastpath/group_commit.c; docs/decisions/0002-group-commit.md.
"""

from timerstore._engine.base.native import NativeGroupCommit
from timerstore._engine.base.owner import Owner


class GroupCommit(Owner, NativeGroupCommit):  # type: ignore[misc]
    """Choose the thread that syncs, and let the others wait."""

    __slots__ = ()
