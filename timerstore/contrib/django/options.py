"""The OPTIONS of a backend, and their errors."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

_DEFAULTS = {
    "url": "",
    "token_file": None,
    "ON_COMMIT": True,
    "MAX_ATTEMPTS": 1,
    "RESULT_DAYS": None,
}
_SCHEMES = ("unix", "tls", "tcp", "shared")
_FORMS = "unix:///PATH, tls://HOST:PORT, tcp://HOST:PORT or shared:///PATH"


class Options(NamedTuple):
    """The OPTIONS of one backend, with their defaults."""

    url: str
    token_file: str | None
    on_commit: bool
    attempts_max: int
    result_days: float | None
    """None: results are kept as long as the store's retention keeps the log."""
    problems: tuple[str, ...]
    """The errors; the backend can only be used if there are none."""


def read_options(given: Any) -> Options:
    """Return the options of a backend. Their problems are returned too, for Django's checks."""
    problems = []
    if not isinstance(given, Mapping):
        problems.append(f"wanted a dictionary, got {given!r}")
        given = {}
    values = {**_DEFAULTS, **given}
    problems += [
        f"{name!r}: wanted one of {', '.join(_DEFAULTS)}"
        for name in values.keys() - _DEFAULTS.keys()
    ]
    url, token_file, on_commit, attempts_max, result_days = (values[name] for name in _DEFAULTS)
    scheme, _, rest = str(url).partition("://")
    if scheme not in _SCHEMES or not rest:
        problems.append(f"url: wanted {_FORMS}, got {url!r}")
    if token_file is not None and not isinstance(token_file, str | os.PathLike):
        problems.append(f"token_file: wanted the path of a file, got {token_file!r}")
    if type(on_commit) is not bool:
        problems.append(f"ON_COMMIT: wanted True or False, got {on_commit!r}")
    if type(attempts_max) is not int or attempts_max < 1:
        problems.append(f"MAX_ATTEMPTS: wanted 1 or more, got {attempts_max!r}")
    if result_days is not None and (type(result_days) not in (int, float) or not result_days > 0):
        problems.append(
            f"RESULT_DAYS: wanted a number of days above 0, or None, got {result_days!r}"
        )
    return Options(str(url), token_file, on_commit, attempts_max, result_days, tuple(problems))
