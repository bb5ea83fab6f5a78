"""Command `ping`: ask a server whether it answers."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar, cast

import click

from timerstore.cli.exits import CommandError, Exit
from timerstore.cli.opening import connected
from timerstore.cli.output import emit, say
from timerstore.cli.params import SPAN, StorePlace, StoreUrl, json_option, store_argument

if TYPE_CHECKING:
    from timerstore.net.remote_store import RemoteStore

Answer = TypeVar("Answer")


@click.command("ping")
@store_argument
@click.option(
    "--within", type=SPAN, default="5s", show_default=True, help="Longest time for the answer."
)
@json_option
def ping_command(path: StorePlace, within: timedelta, as_json: bool) -> None:
    """Ask the server at URL whether it answers: connect, and make one call.

    Exit code 0 if the store answered, and another one otherwise, for a health check or a script
    that waits for a server.
    """
    if not isinstance(path, StoreUrl):
        raise click.UsageError(
            "URL: wanted unix://, tcp:// or tls://; `ls` reads a store by its path"
        )
    seconds = within.total_seconds()
    took_s, store = _within(seconds, lambda: _ping(path), path)
    if as_json:
        emit({"url": path.url, "path": store, "round_trip_ms": round(took_s * 1000, 3)})
    else:
        say(f"{path.url}: {store} answered in {took_s * 1000:.1f} ms")


def _ping(url: StoreUrl) -> tuple[float, str]:
    """Return the time of a call, seconds, and the path of the store."""
    with connected(url, connect_timeout_s=0) as store:
        began_s = time.perf_counter()
        store.topics()  # quick in any store: a long call would look like no answer
        took_s = time.perf_counter() - began_s
        remote = cast("RemoteStore", store)
        return took_s, remote._connector.channel().welcome.path


def _within(seconds: float, work: Callable[[], Answer], url: StoreUrl) -> Answer:
    """Work on a thread of its own: no option of a socket limits the search for a host's address."""
    results: list[Answer] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=run, name="timerstore-ping", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise CommandError(
            "the server does not answer",
            where=url,
            wanted=f"an answer in {seconds:g} s",
            do="look at the server's log; if it is stopped, continue or restart it",
            code=Exit.LATER,
        )
    return results[0]
