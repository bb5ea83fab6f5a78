"""Backoff: how long a message that was given back waits before it comes again.

Threads:  any; a value.
Fails:    MessageError on times that are none.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from timerstore._engine.base import due_times
from timerstore.errors import MessageError, quoted

STEPS_MAX = 100
"""Delays that a list may have."""

_LONGEST_MS = 40 * 366 * 86_400_000
_JITTER_BITS = 1 << 16

Seconds = float | timedelta


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays by attempt. Make it with `fixed`, `exponential` or `steps`.

        Backoff.exponential(1, factor=2, longest=600, jitter=0.2)    1 s, 2 s, 4 s, ... 600 s
        Backoff.steps([1, 10, 60])                                   1 s, 10 s, 60 s, 60 s, ...

    Jitter is drawn from the message's id and the attempt: the same message, the same delay.
    """

    steps_ms: tuple[int, ...]
    factor: float = 1.0  # beyond the last step each is so many times the one before
    longest_ms: int = _LONGEST_MS
    jitter: float = 0.0  # a delay is drawn from [delay * (1 - jitter), delay]

    def __post_init__(self) -> None:
        given: object = self.steps_ms
        times = [*given, self.longest_ms] if isinstance(given, tuple) else []
        if len(times) < 2 or not all(_is_within(one, 0, _LONGEST_MS) for one in times):
            raise MessageError(
                f"backoff: wanted delays of 0 to {_LONGEST_MS} ms, got steps_ms="
                f"{quoted(self.steps_ms)}, longest_ms={quoted(self.longest_ms)}; make it with "
                "Backoff.fixed, Backoff.exponential or Backoff.steps"
            )

    @classmethod
    def fixed(cls, delay: Seconds) -> "Backoff":
        """Always the same delay, seconds; 0: at once."""
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
        """Each delay `factor` times (1 to 100) the one before, from `first` to `longest` seconds;
        `jitter` (0 to 1): how much shorter it may be drawn.
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
        """These delays, seconds; the last one for all attempts that follow."""
        if isinstance(delays, str | bytes) or not isinstance(delays, Sequence):
            raise MessageError(f"backoff: wanted a list of seconds, got {quoted(delays)}")
        if not 1 <= len(delays) <= STEPS_MAX:
            raise MessageError(f"backoff: wanted 1 to {STEPS_MAX} delays, got {len(delays)}")
        return cls(tuple(delay_ms("backoff", one) for one in delays))

    def delay_ms(self, attempt: int, message_id: str) -> int:
        """Give the delay after an attempt, 1 and on."""
        beyond = attempt - len(self.steps_ms)
        if beyond <= 0:
            delay = float(self.steps_ms[attempt - 1])
        else:
            try:
                delay = self.steps_ms[-1] * self.factor**beyond
            except OverflowError:  # beyond what a float holds is beyond the longest, too
                delay = float(self.longest_ms) if self.steps_ms[-1] else 0.0
        longest = min(delay, self.longest_ms)
        if not self.jitter:
            return int(longest)
        drawn = zlib.crc32(f"{message_id} {attempt}".encode()) % _JITTER_BITS / _JITTER_BITS
        return int(longest * (1 - self.jitter * drawn))


def _is_within(value: object, low: int, high: int) -> bool:
    return isinstance(value, int | float) and low <= value <= high


def delay_ms(name: str, delay: object) -> int:
    """Give seconds or a timedelta in ms, rounded up; MessageError as of `put`."""
    if delay is None:
        raise MessageError(f"{name}: wanted seconds or a timedelta, got None")
    try:
        found = due_times.resolve_due_ms(0, delay, None, None, _LONGEST_MS)  # type: ignore[arg-type]
    except MessageError as error:
        texts = [one.removeprefix("delay: ") for one in error.problems]
        raise MessageError([f"{name}: {one}" for one in texts]) from error
    return found or 0


def backoff_of(given: object) -> Backoff:
    """Give the policy that a caller means: one, a delay, a list of delays, or None."""
    if given is None:
        return DEFAULT
    if isinstance(given, Backoff):
        return given
    if isinstance(given, Sequence):
        return Backoff.steps(given)
    return Backoff.fixed(given)  # type: ignore[arg-type]  # it refuses what is none


DEFAULT = Backoff.exponential()
