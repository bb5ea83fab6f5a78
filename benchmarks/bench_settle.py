"""Measure how leases are settled: ack_many of a list, and single awaited calls of many tasks.

`n` messages are leased. `callers` tasks then settle them one by one, each its share, so that all
have a call at the same time; ack_many gets as many receipts in each call. `calls` in one line are
comparable: the same number of syncs, about.

Raises: WorkError if a message is not settled.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import timerstore.aio
from benchmarks import harness
from benchmarks.harness import Result, need, spread
from benchmarks.rounds import Variant, interleaved
from timerstore import AckResult, LeasedMessage, StoreConfig
from timerstore.aio import AsyncTimerStore

FULL: dict[str, Any] = {"n": 1280, "callers": 32, "rounds": 5, "seconds_max": 60.0}
SMOKE: dict[str, Any] = {"n": 8, "callers": 4, "rounds": 1, "seconds_max": 60.0}
KINDS = ("ack_many", "ack", "nack", "extend")


async def _lease(store: AsyncTimerStore, n: int) -> list[LeasedMessage]:
    await store.put_many("settle", [b"x" * 128] * n)
    leased: list[LeasedMessage] = []
    while len(leased) < n:
        leased += await store.receive(
            "settle", "group", max_count=min(1000, n - len(leased)), lease=3600, wait=10
        )
    return leased


async def _settle_one(store: AsyncTimerStore, kind: str, one: LeasedMessage) -> None:
    if kind == "ack":
        need(await store.ack(one) is AckResult.ACKED, "not acked")
    elif kind == "nack":
        need(await store.nack(one, delay=3600) is AckResult.NACKED, "not nacked")
    else:
        need(bool(await store.extend(one, lease=7200)), "not extended")


async def _settle(
    store: AsyncTimerStore, kind: str, leased: list[LeasedMessage], callers: int
) -> None:
    if kind == "ack_many":
        for begin in range(0, len(leased), callers):
            found = await store.ack_many(leased[begin : begin + callers])
            need(set(found) == {AckResult.ACKED}, f"{found}")
        return

    async def call(caller: int) -> None:
        for one in leased[caller::callers]:
            await _settle_one(store, kind, one)

    await asyncio.gather(*map(call, range(callers)))


def once(config: StoreConfig, parameters: dict[str, Any], root: Path) -> Result:
    """Lease messages and settle them in one way."""
    n, kind = parameters["n"], parameters["call"]

    async def settle() -> float:
        async with timerstore.aio.open(root, config) as store:
            leased = await _lease(store, n)
            began = time.perf_counter()
            await _settle(store, kind, leased, parameters["callers"])
            return time.perf_counter() - began

    took_s = asyncio.run(settle())
    return Result(
        "settle", parameters, n, n / took_s, "us a message", spread([took_s / n * 1e6]), "sync",
        harness.digest(f"{n}"),
    )  # fmt: skip


def run(parameters: dict[str, Any], smoke: bool, directory: Path | None) -> Iterator[Result]:
    """All ways in turn, `rounds` times over."""
    make = harness.small_config if smoke else StoreConfig
    shared = {"n": parameters["n"], "callers": parameters["callers"]}
    variants: list[Variant] = [
        partial(once, make(flush="sync"), {**shared, "call": kind}) for kind in KINDS
    ]
    return interleaved(variants, parameters, smoke=smoke, directory=directory)


def main(argv: list[str] | None = None) -> int:
    """Print one line a run."""
    return harness.main_of(__doc__, FULL, SMOKE, run, argv)


if __name__ == "__main__":
    sys.exit(main())
