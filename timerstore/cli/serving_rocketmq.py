"""Options of `serve` for clients of RocketMQ."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import click

from timerstore import rocketmq
from timerstore.store import ConnectedStore, TimerStore

_FILE = click.Path(dir_okay=False, path_type=Path)


class RocketmqOptions(NamedTuple):
    """The options, as they were given."""

    grpc: str | None
    keys_file: Path | None
    groups_file: Path | None
    advertise: str | None
    no_auto_create: bool

    def check(self) -> None:
        """Raise UsageError for an option without a server."""
        if self.grpc is None and any(self):
            raise click.UsageError(
                "--keys-file, --groups-file, --advertise, --no-auto-create: wanted --grpc with them"
            )

    def start(
        self, store: TimerStore | ConnectedStore, tls: tuple[Path, Path] | None, *, insecure: bool
    ) -> list[Any]:
        """Start the server, if one is wanted. Return it, or none."""
        if self.grpc is None:
            return []
        server = rocketmq.serve(
            store,
            address=self.grpc,
            tls=tls,
            keys_file=self.keys_file,
            groups_file=self.groups_file,
            advertise=self.advertise,
            insecure=insecure,
            auto_create=not self.no_auto_create,
        )
        return [server]


_OPTIONS = (
    click.option(
        "--grpc", metavar="HOST:PORT",
        help="Serve clients of RocketMQ 5; port 0: a free one. An address that is not loopback "
        "needs --tls-cert, --tls-key and --keys-file.",
    ),
    click.option(
        "--keys-file", type=_FILE,
        help="File with an access key and its secret on each line, with which clients of --grpc "
        "sign.",
    ),
    click.option(
        "--groups-file", type=_FILE,
        help="TOML file with the policies of consumer groups of --grpc.",
    ),
    click.option(
        "--advertise", metavar="HOST:PORT",
        help="Where clients of --grpc are sent to; by default the address that they dialled.",
    ),
    click.option(
        "--no-auto-create", is_flag=True, help="Clients of --grpc cannot make topics."
    ),
)  # fmt: skip


def rocketmq_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command these options, as its argument `clients`."""

    @wraps(command)
    def call(**given: Any) -> None:
        found = {name: given.pop(name) for name in RocketmqOptions._fields}
        command(clients=RocketmqOptions(**found), **given)

    for one in reversed(_OPTIONS):
        call = one(call)
    return call
