"""Tell a service manager, such as systemd, about the state of this process (sd_notify)."""

import os
import socket

from timerstore.cli.output import note

_SEND_S = 5.0


def notify(state: str) -> None:
    """Send a state, such as READY=1, to the socket that NOTIFY_SOCKET names, if it is set.

    An error is printed and ends nothing: the manager notices that the state is missing.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # a name without a file
        address = f"\0{address[1:]}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as one:
            one.settimeout(_SEND_S)
            one.sendto(state.encode(), address)
    except OSError as error:
        note(f"NOTIFY_SOCKET: cannot send {state} ({error})")
