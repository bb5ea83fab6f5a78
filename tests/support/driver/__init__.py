"""A store on a manual clock, driven together with its model; it can be killed and opened again.

After every call the model agrees with the store. A kill leaves what SIGKILL leaves: a copy of the
directory as the file system shows it at that time, with the mapped staging file. A new store opens
that copy.

Raises: AssertionError if store and model differ; errors of the store pass through.
"""

from tests.support.driver.driver import Driver, PowerDriver
from tests.support.driver.setup import (
    BULK,
    DAY_MS,
    HOW,
    START_MS,
    TAGS,
    WAIT_S,
    WINDOW_MS,
    YEAR_MS,
    abandon,
    key_of,
    named,
    tiny,
)

__all__ = [
    "BULK",
    "DAY_MS",
    "HOW",
    "START_MS",
    "TAGS",
    "WAIT_S",
    "WINDOW_MS",
    "YEAR_MS",
    "Driver",
    "PowerDriver",
    "abandon",
    "key_of",
    "named",
    "tiny",
]
