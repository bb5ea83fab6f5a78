"""Compute the delay of a message that was given back, by attempt.

Thread safety: any thread; a Backoff is immutable.
Raises: MessageError on values that are not delays.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from timerstore._engine.base import due_times
from timerstore.errors import MessageError, quoted

STEPS_MAX = 100
"""The largest number of delays in a list."""

_LONGEST_MS = 40 * 366 * 86_400_000
_JITTER_BITS = 1 << 16

Seconds = float | timedelta


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays by attempt. Make it with `fixed`, `exponential` or `steps`.

        Backoff.exponential(1, factor=2, longest=600, jitter=0.2)    1 s, 2 s, 4 s, ... 600 s
        Backoff.steps([1, 10, 60])                                   1 s, 10 s, 60 s, 60 s, ...

    Jitter is computed from the message's id and the attempt, so the delay of an attempt is always
    the same.
    """

    steps_ms: tuple[int, ...]
    factor: float = 1.0  # after the last step each delay is this many times the previous one
    longest_ms: int = _LONGEST_MS
    jitter: float = 0.0  # a delay becomes a value in [delay * (1 - jitter), delay]

    def __post_init__(self) -> None:
        value: object = self.steps_ms
        times = [*value, self.longest_ms] if isinstance(value, tuple) else []
        if len(times) < 2 or not all(_is_within(one, 0, _LONGEST_MS) for one in times):
            raise MessageError(
                f"backoff: wanted delays of 0 to {_LONGEST_MS} ms, got steps_ms="
                f"{quoted(self.steps_ms)}, longest_ms={quoted(self.longest_ms)}; make it with "
                "Backoff.fixed, Backoff.exponential or Backoff.steps"
            )

    @classmethod
    def fixed(cls, delay: Seconds) -> "Backoff":
        """Return a policy with the same delay after each attempt, in seconds; 0: no delay."""
        return cls((delay_ms("backoff", delay),))

    @classmethod
    def exponential(
        cls,
        first: Seconds = 1.0,
        *,
        factor: float = 2.0,
        longest: Seconds = 600.0,
        jitter: float = 0.2,
    ) -> "Backoff":
        """Return a policy whose delays grow from `first` to `longest` seconds.

        factor: each delay is this many times the previous one, 1 to 100.
        jitter: the largest part by which a delay is shortened, 0 to 1.
        """
        problems = []
        bounds: list[tuple[str, object, int, int]]
        bounds = [("factor", factor, 1, 100), ("jitter", jitter, 0, 1)]
        for name, value, low, high in bounds:
            if isinstance(value, bool | str) or not _is_within(value, low, high):
                problems.append(f"backoff: wanted {name} from {low} to {high}, got {quoted(value)}")
        if problems:
            raise MessageError(problems)
        first_ms, longest_ms = delay_ms("backoff", first), delay_ms("backoff", longest)
        return cls((first_ms,), float(factor), max(first_ms, longest_ms), float(jitter))

    @classmethod
    def steps(cls, delays: Sequence[Seconds]) -> "Backoff":
        """Return a policy with these delays in seconds; the last one applies to later attempts."""
        if isinstance(delays, str | bytes) or not isinstance(delays, Sequence):
            raise MessageError(f"backoff: wanted a list of seconds, got {quoted(delays)}")
        if not 1 <= len(delays) <= STEPS_MAX:
            raise MessageError(f"backoff: wanted 1 to {STEPS_MAX} delays, got {len(delays)}")
        return cls(tuple(delay_ms("backoff", one) for one in delays))

    def delay_ms(self, attempt: int, message_id: str) -> int:
        """Return the delay after an attempt in ms; attempts are counted from 1."""
        steps_after_last = attempt - len(self.steps_ms)
        if steps_after_last <= 0:
            delay = float(self.steps_ms[attempt - 1])
        else:
            try:
                delay = self.steps_ms[-1] * self.factor**steps_after_last
            except OverflowError:  # too large for a float, so larger than the longest delay
                delay = float(self.longest_ms) if self.steps_ms[-1] else 0.0
        longest = min(delay, self.longest_ms)
        if not self.jitter:
            return int(longest)
        fraction = zlib.crc32(f"{message_id} {attempt}".encode()) % _JITTER_BITS / _JITTER_BITS
        return int(longest * (1 - self.jitter * fraction))


def _is_within(value: object, low: int, high: int) -> bool:
    return isinstance(value, int | float) and low <= value <= high


def delay_ms(name: str, delay: object) -> int:
    """Return seconds or a timedelta in ms, rounded up; raise MessageError as `put` does."""
    if delay is None:
        raise MessageError(f"{name}: wanted seconds or a timedelta, got None")
    return due_times.span_ms(name, delay, _LONGEST_MS)


def backoff_of(value: object) -> Backoff:
    """Return the policy for a Backoff, a delay, a list of delays, or None (the default)."""
    if value is None:
        return DEFAULT
    if isinstance(value, Backoff):
        return value
    if isinstance(value, Sequence):
        return Backoff.steps(value)
    return Backoff.fixed(value)  # type: ignore[arg-type]  # it rejects other values


DEFAULT = Backoff.exponential()
