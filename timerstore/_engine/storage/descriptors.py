"""Descriptors: no file of a store is standard input, output or error.

The system gives the lowest number that is free. In a process that has closed these three, as
daemons do, files would get their numbers, and what anybody prints, or a library says on standard
error, would land in a store. Whatever opens a store's files makes sure first that they are taken.

Threads:  any.
Source:   docs/decisions/0013-locks-and-re-entry.md.
"""

import os

_STANDARD = 3  # that many, from 0 on


def keep_standard() -> None:
    """Have what is closed of standard input, output and error be /dev/null from now on; OSError."""
    for fd in range(_STANDARD):
        try:
            os.fstat(fd)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null == fd:
                os.set_inheritable(fd, True)  # as these are
            else:  # another thread has taken it meanwhile
                os.close(null)
