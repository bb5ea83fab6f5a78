"""What `receive`, or a loop of them, is asked, checked.

Fails:    MessageError, with everything that is wrong.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from timerstore._engine.leases.backoff import Backoff, backoff_of, delay_ms
from timerstore._engine.read.filter import filter_problems
from timerstore._engine.read.groups import Filters
from timerstore._engine.read.validation import wait_problems, whole_or
from timerstore.config import StoreConfig
from timerstore.errors import MessageError, quoted

DEFAULTS: dict[str, Any] = {
    "lease": 30.0,
    "max_count": 1,
    "wait": 0.0,
    "tags": None,
    "sql": None,
    "max_attempts": 16,
    "backoff": None,
}
"""What `receive` takes where nothing is given."""
COUNT_MAX = 10_000
ATTEMPTS_MAX = 1_000_000


class Request(NamedTuple):
    """One `receive`."""

    lease_ms: int
    max_count: int
    wait_s: float
    filters: Filters
    attempts_max: int  # 0: no end
    backoff: Backoff


def check_loop(asked: Mapping[str, object]) -> None:
    """Refuse what a loop over leased messages does not take, before it leases any."""
    problems = []
    if "max_count" in asked:  # the others of a batch would be leased, and be nobody's
        problems.append(
            f"max_count: wanted none, a loop leases one at a time, got {quoted(asked['max_count'])}"
        )
    known = sorted(DEFAULTS.keys() - {"max_count"})
    if unknown := sorted(asked.keys() - DEFAULTS.keys()):
        problems.append(
            f"lease_consumer: wanted some of {', '.join(known)}, got {', '.join(unknown)}"
        )
    if problems:
        raise MessageError(problems)


def check_request(
    config: StoreConfig,
    lease: object,
    max_count: object,
    wait: object,
    filters: Filters,
    max_attempts: object,
    backoff: object,
) -> Request:
    """Give the request."""
    problems = wait_problems(wait) + filter_problems(*filters)
    count = whole_or(max_count, 0)
    if not 1 <= count <= COUNT_MAX:
        problems.append(f"max_count: wanted 1 to {COUNT_MAX}, got {quoted(max_count)}")
    attempts = 0 if max_attempts is None else whole_or(max_attempts, -1)
    if max_attempts is not None and not 1 <= attempts <= ATTEMPTS_MAX:
        problems.append(
            f"max_attempts: wanted 1 to {ATTEMPTS_MAX} or None, got {quoted(max_attempts)}"
        )
    lease_ms, policy = 0, None
    try:
        lease_ms = check_lease(config, lease)
    except MessageError as error:
        problems.extend(error.problems)
    try:
        policy = backoff_of(backoff)
    except MessageError as error:
        problems.extend(error.problems)
    if problems or policy is None:
        raise MessageError(problems)
    assert isinstance(wait, int | float)
    return Request(lease_ms, count, float(wait), filters, attempts, policy)


def check_lease(config: StoreConfig, lease: object) -> int:
    """Give a lease's length, ms; MessageError unless it is above 0 and in the store's bounds."""
    lease_ms = delay_ms("lease", lease)
    if not 1 <= lease_ms <= config.delay_ms_max:
        raise MessageError(
            f"lease: wanted more than 0 and at most {config.delay_ms_max} ms (delay_ms_max), got "
            f"{lease_ms} ms"
        )
    return lease_ms
