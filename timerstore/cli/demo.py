"""Command `demo`: ten reminders, one cancelled, a process killed with -9, and a check of the rest.

    this process                        a process of its own (the hidden option --killed)
    shows what the other one reports    puts ten reminders, cancels one, reads them as they arrive
    kills it after three reminders
    opens the store, reads the rest, and counts how often each was delivered

Thread safety: runs on the main thread.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from timerstore import store as single
from timerstore.cli.exits import CommandError, Exit
from timerstore.cli.output import columns, emit, paragraph, say
from timerstore.cli.params import FOLDER, Seconds, json_option
from timerstore.cli.stopping import Stop, stopping
from timerstore.cli.text import span_text
from timerstore.cli.trials import trial_folder
from timerstore.cli.wheel_ring import draw
from timerstore.store import TimerStore
from timerstore.types.clock import SystemClock
from timerstore.types.config import StoreConfig
from timerstore.types.messages import Message
from timerstore.types.reports import CancelResult

_TOPIC, _GROUP = "reminders", "demo"
_COUNT, _CANCELLED, _BEFORE_KILL = 10, 7, 3
_PLACES = 20
_SPAN_STEPS = 12  # the reminders are due after 2 to 11 steps
_GRACE_S = 10.0
_RING_WIDTH, _RING_HEIGHT = 33, 13
_NEXT = ("init my.store", "put my.store jobs hi --in 5s", "follow my.store jobs -n 1")


Show = Callable[[str | Text], None]


@click.command("demo")
@click.option(
    "--seconds",
    type=Seconds(0.6, 600),
    default=6.0,
    show_default=True,
    help="Time over which the reminders are due.",
)
@click.option("--directory", type=FOLDER, help="Keep the store in this new directory.")
@click.option("--killed", type=FOLDER, hidden=True)
@json_option
def demo_command(
    seconds: float, directory: Path | None, killed: Path | None, as_json: bool
) -> None:
    """Show timerstore at work: ten reminders, a cancel, a kill -9, and a check of each reminder.

    The store is temporary. The command ends with PASS or FAIL, and with commands to try next.
    """
    step_ms = round(seconds * 1000 / _SPAN_STEPS)
    if killed is not None:
        _run_until_killed(killed, step_ms)
        return
    with stopping() as stop, trial_folder(directory) as path:
        found = _run(path, step_ms, stop, _nothing if as_json else paragraph)
        stop.check()
    if as_json:
        emit(found)
    else:
        _conclude(found, directory)
    if not found["passed"]:
        raise click.exceptions.Exit(Exit.NOT_SO)


def _nothing(_text: str | Text) -> None:
    """Show nothing, as with --json."""


def _conclude(found: dict[str, Any], directory: Path | None) -> None:
    names = ("lost", "doubled", "early", "cancelled_came")
    counts = ", ".join(f"{name.replace('_', ' but ')} {found[name]}" for name in names)
    paragraph(f"\n6. Check: {counts}; the store is {'clean' if found['verified'] else 'damaged'}")
    if found["passed"]:
        paragraph(f"PASS: each of {found['delivered']} reminders came once, none early")
    else:
        paragraph("FAIL: report it as a bug, with this output")
    words = _NEXT
    if directory is not None:
        words = f"ls {directory}", f"get {directory} {_TOPIC}", f"doctor {directory}"
    paragraph("\nTry next:")
    for one in words:
        say(f"timerstore {one}")


def _wheel(pending_ms: list[int], now_ms: int, step_ms: int) -> Text:
    """Draw the slots of the next turn, and the reminders in them."""
    counts = [0] * _PLACES
    for due_ms in pending_ms:
        counts[due_ms // step_ms % _PLACES] += 1
    middle = [f"{len(pending_ms)} pending", f"{_PLACES} slots of {step_ms} ms"]
    now = now_ms // step_ms % _PLACES
    return draw(counts, now, middle, width=min(_RING_WIDTH, columns()), height=_RING_HEIGHT)


# --- the process that shows -----------------------------------------------------------------------


def _run(path: Path, step_ms: int, stop: Stop, show: Show) -> dict[str, Any]:
    """Run the other process, kill it, deliver the rest, and return the fields of the result."""
    put, pid = _live(path, step_ms, stop, show)
    show(f"\n4. kill -9 {pid}. For {_span(2 * step_ms)} nothing delivers.\n")
    stop.wait(2 * step_ms / 1000)
    begin = time.perf_counter()
    with single.open(path, _config(step_ms)) as store:
        opened_ms = (time.perf_counter() - begin) * 1000
        show(f"5. Open the store again: {opened_ms:.0f} ms")
        _receive_rest(store, put["due_ms"], stop, show)
        return {"reopened_ms": round(opened_ms, 1), **_audit(store, put)}


def _live(path: Path, step_ms: int, stop: Stop, show: Show) -> tuple[dict[str, Any], int]:
    """Run the other process until it has read some reminders. Return its report and its id."""
    # -P: not the package in the present directory, which in a checkout is not built.
    words = "-P", "-m", "timerstore.cli", "demo", "--killed", str(path)
    more = ["--json"] if show is _nothing else []
    with subprocess.Popen(  # noqa: S603 - this program itself
        [sys.executable, *words, "--seconds", str(step_ms * _SPAN_STEPS / 1000), *more],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,  # Ctrl-C is for this process, which kills the other one
    ) as child:
        try:
            reports = _reports(child, stop)
            put = next(reports, None)
            if put is None:
                stop.check()
                raise _ended(child)
            first, last = _span(2 * step_ms), _span((_COUNT + 1) * step_ms)
            show(
                f"1. Put {_COUNT} reminders, due in {first} to {last}. They are on disk when the "
                "call returns."
            )
            show(f"2. Cancel reminder {_CANCELLED}: {put['cancelled']}\n")
            show(_wheel(put["pending_ms"], put["now_ms"], step_ms))
            show(f"\n3. Process {child.pid} delivers them:")
            count = 0
            for count, came in enumerate(reports, 1):
                show(_arrival(came["body"], came["late_ms"]))
                if count == _BEFORE_KILL:
                    child.kill()  # what it wrote before is still read
            stop.check()
            if count < _BEFORE_KILL:
                raise _ended(child)
            return put, child.pid
        finally:
            child.kill()


def _reports(child: subprocess.Popen[bytes], stop: Stop) -> Iterator[dict[str, Any]]:
    """Yield the JSON lines of the other process, until it ends or a signal arrives."""
    assert child.stdout is not None
    rest = b""
    while not stop.is_asked:
        if select.select([child.stdout], [], [], 0.05)[0]:
            data = os.read(child.stdout.fileno(), 1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            yield from map(json.loads, lines)


def _ended(child: subprocess.Popen[bytes]) -> Exception:
    """Return the error for a process that ended too early. It has written its own error."""
    code = child.wait()
    if code > 0:
        return click.exceptions.Exit(code)
    return CommandError("the process with the store ended too early", got=f"exit code {code}")


def _receive_rest(store: TimerStore, due_ms: list[int], stop: Stop, show: Show) -> None:
    """Read the reminders that the killed process has not read, until some time after the last."""
    end_ms = due_ms[-1] + round(_GRACE_S * 1000)
    with store.consumer(_TOPIC, _GROUP) as consumer:
        while not stop.is_asked and SystemClock().now_ms < end_ms:
            is_last = not any(True for _ in store.pending(topic=_TOPIC))
            messages = consumer.poll(wait=0.05)
            for message in messages:
                show(_arrival(message.body.decode(), message.delivered_ms - message.due_ms))
            if is_last and not messages:
                return


def _audit(store: TimerStore, put: dict[str, Any]) -> dict[str, Any]:
    """Count how often each reminder is in the topic, and verify the store."""
    messages = store.pull(_TOPIC, 0, 0, max_count=10 * _COUNT).messages
    times = Counter(one.body.decode() for one in messages)
    due_ms = {_name(n): one for n, one in enumerate(put["due_ms"], 1)}
    cancelled = {_name(_CANCELLED)} if put["cancelled"] == CancelResult.CANCELLED else set()
    faults = {
        "lost": len(due_ms.keys() - cancelled - times.keys()),
        "doubled": sum(times.values()) - len(times),
        "early": sum(one.delivered_ms < due_ms[one.body.decode()] for one in messages),
        "cancelled_came": len(cancelled & times.keys()),
    }
    is_clean = store.verify().clean
    return {
        "scheduled": _COUNT,
        "cancelled": len(cancelled),
        "delivered": len(messages),
        **faults,
        "verified": is_clean,
        "passed": is_clean and not any(faults.values()),
    }


def _name(number: int) -> str:
    return f"reminder {number}"


def _arrival(name: str, late_ms: int) -> str:
    return f"   {name:<11}  {span_text(late_ms)} late"


def _span(ms: int) -> str:
    return f"{ms / 1000:g} s"


def _config(step_ms: int) -> StoreConfig:
    """Return settings for a small store whose slots are as long as a step."""
    return StoreConfig(
        precision_ms=step_ms,
        wheel_slot_count=2048,
        commit_log_segment_bytes=1 << 20,
        timer_log_segment_bytes=1 << 16,
        reserve_bytes=0,
        index_enabled=False,
    )


# --- the process that is killed -------------------------------------------------------------------


def _run_until_killed(path: Path, step_ms: int) -> None:
    """Put the reminders, cancel one, and report each that arrives, as JSON lines."""
    with single.open(path, _config(step_ms)) as store:
        begin_ms = SystemClock().now_ms
        due_ms = [begin_ms + (k + 2) * step_ms for k in range(_COUNT)]
        bodies = [_name(k + 1).encode() for k in range(_COUNT)]
        receipts = store.put_many(_TOPIC, bodies, deliver_ms=due_ms)
        cancelled = store.cancel(receipts[_CANCELLED - 1])
        emit(
            {
                "due_ms": due_ms,
                "cancelled": cancelled,
                "pending_ms": [one.due_ms for one in store.pending(topic=_TOPIC)],
                "now_ms": SystemClock().now_ms,
            }
        )
        # It ends by itself if the process that should kill it was killed.
        with store.consumer(_TOPIC, _GROUP, wait=_GRACE_S) as consumer:
            for message in consumer:
                consumer.commit()
                emit(_report(message))


def _report(message: Message) -> dict[str, Any]:
    return {"body": message.body.decode(), "late_ms": message.delivered_ms - message.due_ms}
