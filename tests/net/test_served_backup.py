"""A served store under load is backed up by the command line while its owner is killed and
restarted: each backup that succeeded restores, verifies clean, and has all that was put before.
"""

import signal
import subprocess
import threading
from pathlib import Path

import pytest

import timerstore
from tests.support.command_line import COMMAND, environment
from timerstore.errors import TimerStoreError

_DEADLINE_S = 100
_SMALL = ["commit_log_segment_bytes=1_048_576", "timer_log_segment_bytes=65_536"]


class Owner:
    """A process that serves the store."""

    def __init__(self, store: Path, socket: Path) -> None:
        self._command = [*COMMAND, "serve", str(store), "--socket", str(socket)]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline().startswith("unix://")

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate(timeout=60)

    def restart(self) -> None:
        self.kill()
        self.start()


class Load(threading.Thread):
    """Puts messages that stay pending, and others that a group leases and acknowledges."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._ending = threading.Event()
        self.stored: list[str] = []
        """The ids of pending messages whose put has returned."""
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with timerstore.connect(self._url, retry_for=_DEADLINE_S) as store:
                while not self._ending.is_set():
                    batch = store.put_many("later", [b"x" * 500] * 20, delay=86_400)
                    self.stored += [one.message_id for one in batch]
                    store.put("now", b"work")
                    for one in store.receive("now", "workers", max_count=10):
                        store.ack(one)
        except BaseException as error:
            self.error = error
            raise

    def end(self) -> None:
        self._ending.set()
        self.join(_DEADLINE_S)
        assert not self.is_alive()
        assert self.error is None


@pytest.mark.parametrize(
    ("backup_count", "kills"),
    [(3, {1}), pytest.param(10, {2, 6}, marks=pytest.mark.more)],
)
def test_backups_of_a_served_store_are_whole_when_its_owner_is_killed(
    tmp_path: Path, backup_count: int, kills: set[int]
) -> None:
    path, socket, url = tmp_path / "store", tmp_path / "s", f"unix://{tmp_path}/s"
    settings = [word for one in _SMALL for word in ("-c", one)]
    subprocess.run(
        [*COMMAND, "init", str(path), *settings], check=True, env=environment(), capture_output=True
    )
    owner, load = Owner(path, socket), Load(url)
    owner.start()
    succeeded = 0
    try:
        load.start()
        for number in range(backup_count):
            if number in kills:
                threading.Timer(0.3 + 0.2 * number, owner.restart).start()
            before = list(load.stored)
            # One folder for two backups: the second one brings the first up to date.
            target = tmp_path / f"backup-{number // 2}"
            done = subprocess.run(
                [*COMMAND, "backup", url, str(target)],
                capture_output=True,
                env=environment(),
                timeout=_DEADLINE_S,
                text=True,
                check=False,
            )
            for one in threading.enumerate():
                if isinstance(one, threading.Timer):
                    one.join(_DEADLINE_S)
            if done.returncode != 0:
                assert number in kills, done.stderr
                continue
            succeeded += 1
            _check(target, tmp_path / f"restored-{number}", before)
        load.end()
        with timerstore.connect(url) as store:
            assert store.verify().clean
    finally:
        owner.kill()
    assert succeeded >= backup_count - len(kills)


def _check(backup: Path, restored: Path, before: list[str]) -> None:
    assert timerstore.check_backup(backup).clean
    timerstore.restore(backup, restored)
    assert timerstore.verify_directory(restored).clean
    with timerstore.open(restored, threads=False) as store:
        found = {one.message_id for one in store.pending(topic="later")}
        assert set(before) <= found, "a message that was put before the backup is not in it"


def test_backup_of_a_killed_owner_reports_the_error(tmp_path: Path) -> None:
    """Nothing listens: the error has exit code 4, and no folder is made."""
    done = subprocess.run(
        [*COMMAND, "backup", f"unix://{tmp_path}/s", str(tmp_path / "backup")],
        capture_output=True,
        env=environment(),
        timeout=_DEADLINE_S,
        check=False,
    )
    assert done.returncode == 4
    assert not (tmp_path / "backup").exists()
    with pytest.raises(TimerStoreError):
        timerstore.connect(f"unix://{tmp_path}/s", retry_for=0)
