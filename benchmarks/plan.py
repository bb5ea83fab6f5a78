"""The parts of `make bench`, with their sizes and approximate times.

A part is a benchmark (benchmarks/bench_<bench>.py) with options. Its seconds are estimates for
a quiet machine with two cores. The parts of the report take about seventeen minutes; those with
`extra` are not in the report. Slow peers are measured with fewer messages, and compared with
timerstore at the same number.
"""

from __future__ import annotations

from typing import NamedTuple

FAST = "timerstore,timerstore-buffer,rocketmq,lmdb,rocksdb,redis"
SLOW = "timerstore,lmdb-sync,sqlite,sqlite-index,beanstalkd,heapq"


class Part(NamedTuple):
    """One run of one benchmark."""

    name: str
    bench: str
    seconds: int
    options: tuple[str, ...] = ()
    extra: bool = False


PARTS = (
    Part("put", "put", 40, ("--n", "200000", "--rounds", "5")),
    Part("end_to_end", "end_to_end", 40, ("--rounds", "4", "--stops", "60")),
    Part("end_to_end_1k", "end_to_end", 25, ("--body", "1024", "--n", "300000", "--stops", "60")),
    Part("scaling", "scaling", 110, ("--seconds-max", "90")),
    Part("recovery", "recovery", 30),
    Part("cancel", "cancel", 15),
    Part("own_reads", "own_reads", 3, ("--n", "300")),
    Part("settle", "settle", 15, extra=True),
    Part("single", "single", 240, ("--pending", "0,1000,100000,1000000"), extra=True),
    Part("single_year", "single", 60, ("--pending", "1000000", "--spread", "year",
                                       "--kinds", "step,empty_step", "--rounds", "3"), extra=True),
    Part("net", "net", 160, ("--rounds", "2", "--n", "4000")),
    Part("rocketmq", "rocketmq", 320, extra=True),
    Part("celery", "celery", 430, extra=True),
    Part("lateness", "lateness", 62, ("--seconds", "4")),
    Part("trickle", "trickle", 25, extra=True),
    Part("peers_1m", "peers", 250, ("--n", "1000000", "--peers", FAST, "--seconds-max", "300")),
    Part("peers_slow", "peers", 85, ("--n", "100000", "--peers", SLOW, "--seconds-max", "120")),
    Part("peers_1k", "peers", 90, ("--n", "100000", "--body", "1024", "--peers", FAST,
                                    "--seconds-max", "120")),
    Part("hot_slot", "hot_slot", 90, ("--rounds", "1")),
    Part("levels", "levels", 15, ("--n", "200000"), extra=True),
    Part("far", "far", 20, extra=True),
    Part("wait", "wait", 15, extra=True),
    Part("idle", "idle", 30, extra=True),
    Part("delay_queue", "delay_queue", 130, extra=True),
    Part("peers_10m", "peers", 600, ("--n", "10000000", "--peers", "timerstore,lmdb,rocksdb,redis",
                                     "--rounds", "3", "--seconds-max", "900"), extra=True),
)  # fmt: skip


def chosen(only: list[str] | None, *, everything: bool) -> list[Part]:
    """Return the named parts, those of the report, or all."""
    if only:
        return [part for part in PARTS if part.name in only]
    return [part for part in PARTS if everything or not part.extra]
