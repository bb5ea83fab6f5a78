"""Measure an official client for Java with our server, and with Apache's proxy and broker.

The client, rocketmq/Load.java, sends `n` delayed messages asynchronously, 64 in flight, all due
`lead_ms` later. Then four threads receive and acknowledge them. After that it sends `rate`
messages a second for `seconds`, each due 1 to 3 s later, and receives them at the same time. The
spread is how late these came. The timer of Apache's broker has slots of 100 ms, its shortest.

Raises: WorkError if the client fails, as it does if a message is missing or comes twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import harness
from benchmarks.harness import Result, need, spread
from benchmarks.rounds import interleaved
from tests.clients.apache_proxy import ApacheProxy
from tests.clients.fetch import APACHE, class_path, is_fetched
from tests.clients.served_store import ServedStore
from timerstore import StoreConfig

CLIENT = "java-5.2.0"
LOAD = Path(__file__).parent / "rocketmq/Load.java"
FULL: dict[str, Any] = {"n": 6000, "body": 128, "lead_ms": 6000, "rate": 2000, "seconds": 5.0,
                        "rounds": 2, "seconds_max": 400.0}  # fmt: skip
SMOKE: dict[str, Any] = {"n": 50, "body": 16, "lead_ms": 500, "rate": 100, "seconds": 0.5,
                         "rounds": 1, "seconds_max": 120.0}  # fmt: skip


class Phase(NamedTuple):
    """What a phase took: wall time, processor time of the client, and of the server."""

    seconds: float
    client_s: float
    server_s: float

    @property
    def client_percent(self) -> float:
        """The client's share of the processor time."""
        return 100 * self.client_s / (self.client_s + self.server_s)


def ours(flush: str, root: Path) -> ServedStore:
    """A store of its own, and its server."""
    return ServedStore(root, StoreConfig(flush=flush))


def apaches(flush: str, root: Path) -> ApacheProxy:
    """Apache's broker of its own, and its proxy."""
    kind = {"async": "ASYNC_FLUSH", "sync": "SYNC_FLUSH"}[flush]
    return ApacheProxy(root, flushDiskType=kind, timerPrecisionMs=100)


SERVERS = {"timerstore": ours, "Apache's proxy": apaches}


def _cpu_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def load(address: str, server: int, parameters: dict[str, Any], root: Path) -> dict[str, Any]:
    """Run the client; return its phases, and under "late" how late messages came, in ms."""
    given = [parameters[name] for name in ("n", "body", "lead_ms", "rate", "seconds")]
    words = ["java", f"-Duser.home={root}", "-cp", class_path(CLIENT), LOAD, address, *given]
    found: dict[str, Any] = {}
    log = root / "load.log"
    with log.open("wb") as errors, subprocess.Popen(
        [str(one) for one in words], stdout=subprocess.PIPE, stderr=errors, text=True
    ) as process:  # fmt: skip
        assert process.stdout is not None
        before = 0.0
        for line in process.stdout:
            verb, *rest = line.split()
            if verb == "begin":
                before = _cpu_s(server)
            elif verb == "end":
                *name, seconds, client_s = rest
                found[" ".join(name)] = Phase(
                    float(seconds), float(client_s), _cpu_s(server) - before
                )
            elif verb == "late":
                found["late"] = [int(one) for one in rest]
    need("late" in found, f"the client failed: {log.read_text('utf-8', 'replace')[-2000:]}")
    return found


def once(name: str, flush: str, parameters: dict[str, Any], root: Path) -> Result:
    """One server with one kind of flush."""
    server = SERVERS[name](flush, root)
    server.start()
    try:
        found = load(server.address, server.pid, parameters, root)
    finally:
        server.kill()
    n = parameters["n"]
    phases = {phase: found[phase] for phase in ("send", "receive", "paced")}
    return Result(
        "rocketmq",
        {"server": name, "flush": flush, **parameters},
        n,
        n / phases["send"].seconds,
        "ms late",
        spread(found["late"]),
        flush,
        harness.digest(str(parameters)),
        {
            "receive_rate": n / phases["receive"].seconds,
            "early": sum(ms < 0 for ms in found["late"]),
            **{f"{phase}_client_percent": took.client_percent for phase, took in phases.items()},
        },
    )


def run(parameters: dict[str, Any], smoke: bool, directory: Path | None) -> Iterator[Result]:
    """Each server with each kind of flush, in turns."""
    for name in (CLIENT, APACHE):
        need(is_fetched(name), f"no {name} is here: python -m tests.clients.fetch {name}")
    work = {
        name: value for name, value in parameters.items() if name not in {"rounds", "seconds_max"}
    }
    variants = [partial(once, name, flush, work) for flush in ("sync", "async") for name in SERVERS]
    yield from interleaved(variants, parameters, smoke=smoke, directory=directory)


def main(argv: list[str] | None = None) -> int:
    """Print the lines."""
    return harness.main_of(__doc__, FULL, SMOKE, run, argv)


if __name__ == "__main__":
    sys.exit(main())
