"""A heap of tuples and a deque: what a program without a store would do, and the naive floor."""

from __future__ import annotations

import heapq
from collections import deque
from functools import partial
from pathlib import Path

from benchmarks.peers import contract
from benchmarks.peers.contract import Peer


class InHeap:
    """Nothing outlives the process."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._heap: list[tuple[int, int, bytes]] = []
        self._ready: deque[bytes] = deque()

    def schedule(self, due: list[int], first: int, bodies: list[bytes]) -> None:
        push, heap = heapq.heappush, self._heap
        for row, (due_ms, body) in enumerate(zip(due, bodies, strict=True), first):
            push(heap, (due_ms, row, body))

    def move(self, now_ms: int, limit: int) -> int:
        heap, pop, ready = self._heap, heapq.heappop, self._ready.append
        moved = 0
        while heap and moved < limit and heap[0][0] <= now_ms:
            ready(pop(heap)[2])
            moved += 1
        return moved

    def take(self, limit: int) -> list[bytes]:
        take = self._ready.popleft
        return [take() for _ in range(min(limit, len(self._ready)))]

    def sync(self) -> None:
        pass

    def ram_bytes(self) -> int:
        return contract.own_ram_bytes(self._root)

    def close(self) -> None:
        self._heap.clear()


NEVER = float("inf")
PEERS = (
    Peer(
        key="heapq",
        name="heapq",
        variant="heap and deque",
        durability="none: all is lost with the process",
        tuned="nothing to tune; bodies are the caller's own objects and are not counted as its RAM",
        work=partial(contract.drive, InHeap, NEVER),
        missing=contract.nothing_missing,
        paced=partial(contract.drive_paced, InHeap, NEVER),
    ),
)
