"""Keep the files of a store away from standard input, output and error.

The operating system assigns the lowest free descriptor. If a process has closed descriptors 0 to 2,
as daemons do, a file of a store would get one of them. Then printed text, or a library's error
output, would be written into the store. Code that opens a store calls `reserve_standard` first.

Thread safety: any thread.
See also: docs/decisions/0013-locks-and-re-entry.md.
"""

import os

from timerstore._engine.storage.os_errors import check_of_system

_STANDARD_COUNT = 3


def reserve_standard() -> None:
    """Open /dev/null for each of standard input, output and error that is closed.

    Raises:
        OSError: the operating system rejected the call.
    """
    for fd in range(_STANDARD_COUNT):
        try:
            os.fstat(fd)
        except OSError as error:
            check_of_system(error)
            null = os.open(os.devnull, os.O_RDWR)
            if null == fd:
                os.set_inheritable(fd, True)  # as standard descriptors are
            else:  # another thread has taken the number since
                os.close(null)
