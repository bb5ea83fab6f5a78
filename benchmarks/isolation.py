"""Run a benchmark in a directory and a process of its own."""

from __future__ import annotations

import contextlib
import multiprocessing
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

from benchmarks.results import Result
from benchmarks.workload import WorkError, need


def place(directory: Path | None) -> Path:
    """Return an existing directory on the file system that `workspace` would use."""
    there = Path(tempfile.gettempdir()) if directory is None else directory.resolve()
    while not there.exists():
        there = there.parent
    return there


@contextlib.contextmanager
def heeding_sigterm() -> Iterator[None]:
    """Make SIGTERM end the block like Ctrl-C, with exit status 143, so that cleanup runs.

    If the program has its own handler for SIGTERM, it stays in use.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminated(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second signal would interrupt the cleanup
    raise SystemExit(128 + number)


@contextlib.contextmanager
def workspace(directory: Path | None, *, keep: bool = False) -> Iterator[Path]:
    """Yield a directory for a run: the given one, which must be empty or new, or a temporary one.

    It is removed at the end and after SIGTERM, unless keep is set.
    """
    with heeding_sigterm(), _workspace(directory, keep=keep) as root:
        yield root


@contextlib.contextmanager
def _workspace(directory: Path | None, *, keep: bool) -> Iterator[Path]:
    if directory is None:
        root = Path(tempfile.mkdtemp(prefix="timerstore-bench-"))
    else:
        root = directory.resolve()  # absolute for servers; a link itself would not be removed
        root.mkdir(parents=True, exist_ok=True)
        need(not any(root.iterdir()), f"{root} is not empty: use a new directory")
    try:
        yield root
    finally:
        if not keep:
            shutil.rmtree(root, ignore_errors=True)


_PATIENCE_S = 10.0  # for a child to end and to stop its servers


def isolated(job: Callable[[], Result], *, fork: bool = True, folder: Path | None = None) -> Result:
    """Run the job in a forked child, so that no run inherits the heap of another.

    Without `fork` the job runs in this process. `folder` is the directory of the job. The parent
    must not have an open store. The child ends if the parent ends.

    Raises: the error of the job, or WorkError if the child ends without a result.
    """
    if not fork:
        return job()
    with heeding_sigterm():
        return _in_child(job, folder)


def _in_child(job: Callable[[], Result], folder: Path | None) -> Result:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(sender, job))
    try:
        child.start()
        sender.close()
        answer = receiver.recv()
    except EOFError:
        answer = None
    except BaseException:
        if child.pid is not None:  # it was started
            child.terminate()
            child.join(_PATIENCE_S)
            child.kill()
            child.join()
        raise
    child.join()
    if isinstance(answer, Result):
        return answer
    if isinstance(answer, BaseException):
        raise answer
    raise WorkError(_why_ended(child.exitcode or 0, folder))


def _why_ended(status: int, folder: Path | None) -> str:
    """Describe how a child without a result ended. A negative status is a signal."""
    if status >= 0:
        return f"a child ended with status {status} and without a result"
    what = f"a child was ended by {signal.Signals(-status).name}"
    if -status == signal.SIGKILL:
        return f"{what} (the kernel does this when memory is short)"
    if -status != signal.SIGBUS:
        return what
    what = f"{what} (a mapped file could not be written, as on a full disk)"
    free = "" if folder is None else f": {shutil.disk_usage(folder).free} bytes are free there"
    return f"{what}{free}"


def _answer(sender: Connection, job: Callable[[], Result]) -> None:
    try:
        sender.send(job())
    except Exception as error:  # the parent raises it
        sender.send(WorkError(f"{type(error).__name__}: {error}"))
        raise
    finally:
        sender.close()
