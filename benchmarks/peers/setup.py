"""Install the missing dependencies of the peers: `python -m benchmarks.peers.setup`.

Python packages come from pip, servers from apt (as root, or with sudo). `make bench-peers` calls
this first, and then builds RocketMQ. A failed installation gives a warning here and in the
benchmarks, not an error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from benchmarks.peers import PEERS, contract

MODULES = {"lmdb": "lmdb", "redis": "redis", "hiredis": "hiredis", "rocksdict": "rocksdict",
           "greenstalk": "greenstalk", "celery": "celery"}  # fmt: skip
"""Python modules and their packages."""

SERVERS = {"redis-server": "redis-server", "beanstalkd": "beanstalkd",
           "rabbitmq-server": "rabbitmq-server"}  # fmt: skip
"""Programs and their packages in Debian and Ubuntu."""


def tell(text: str) -> None:
    """On standard error."""
    print(text, file=sys.stderr, flush=True)


def install(what: str, *commands: Sequence[str]) -> None:
    """Run them in turn, as long as they succeed."""
    tell(f"installing {what}")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in commands:
        done = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
        if done.returncode:
            tell(f"!!! {what} could not be installed: {(done.stderr or done.stdout)[-300:]}")
            return


def by_pip(package: str) -> None:
    """Into the environment that runs this."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    install(package, (*pip, "install", package))


def by_apt(packages: Sequence[str]) -> None:
    """As root or with sudo; no service is started (RUNLEVEL=1 is respected by invoke-rc.d)."""
    apt, sudo = shutil.which("apt-get"), shutil.which("sudo")
    root = os.geteuid() == 0
    if apt is None or (not root and sudo is None):
        tell(f"!!! cannot install {', '.join(packages)}: no apt-get, or neither root nor sudo")
        return
    before = () if root else (str(sudo),)
    wanted = (*before, apt, "install", "-qq", "-y", "--no-install-recommends", *packages)
    install(", ".join(packages), (*before, apt, "update", "-qq"), wanted)


def main() -> int:
    """Install, then say what will not be measured."""
    for module, package in MODULES.items():
        if contract.module_missing(module) is not None:
            by_pip(package)
    servers = [package for name, package in SERVERS.items() if shutil.which(name) is None]
    if servers:
        by_apt(servers)
    for peer in PEERS:
        reason = peer.missing()
        if reason is not None and "rocketmq" not in peer.key:
            tell(f"!!! NOT MEASURED: {peer.name} ({peer.variant}): {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
