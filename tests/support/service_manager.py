"""A small service manager: it starts a command, hears its states (sd_notify), and restarts it."""

import socket
import subprocess

from tests.support.command_line import environment

PATIENCE_S = 60


class Manager:
    """A service manager: it starts the command, hears its states, and starts it again."""

    def __init__(self, command: list[str], notify: str) -> None:
        """`notify`: the path of its socket; with @ first a name without a file."""
        self._command = command
        self._notify = notify
        address = f"\0{notify[1:]}" if notify.startswith("@") else notify
        self._states = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._states.bind(address)
        self._states.settimeout(PATIENCE_S)
        self.start()

    def start(self) -> None:
        env = {**environment(), "NOTIFY_SOCKET": self._notify}
        self.child = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        )

    def state(self) -> str:
        return self._states.recv(4096).decode()

    def first_line(self) -> str:
        assert self.child.stdout is not None
        return self.child.stdout.readline().strip()

    def ended(self, number: int | None = None) -> tuple[int, str]:
        if number is not None:
            self.child.send_signal(number)
        _, errors = self.child.communicate(timeout=PATIENCE_S)
        return self.child.returncode, errors

    def close(self) -> None:
        self.child.kill()
        self.child.communicate()
        self._states.close()
