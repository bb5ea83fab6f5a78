"""Validation of the arguments of `put_every`, and the description that `recurring` returns.

Raises: MessageError for invalid arguments; ConfigError for cron without cronsim. Nothing is stored
then.
"""

import re
import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from timerstore._engine.base import due_times, message_bodies, message_fields
from timerstore._engine.format.recurring_json import Definition
from timerstore._engine.recurring.recurring_request import RecurringRequest
from timerstore._engine.recurring.rule import CronRule, expand_macro, rule_of
from timerstore.config import StoreConfig
from timerstore.errors import MessageError, quoted

EVERY_MS_MIN = 1000
MISSED = ("skip", "one", "all")
CRON_BYTES_MAX = 256
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class Recurring:
    """A message that is put again and again."""

    name: str
    topic: str
    every_ms: int | None
    cron: str | None
    timezone: str
    missed: str
    made_ms: int
    run_count: int
    """Number of runs that were put, including the pending one."""
    next_ms: int | None
    """Due time of the next run, epoch ms; None: no run is planned now."""


def describe(definition: Definition, now_ms: int) -> Recurring:
    """Return the description of a definition for callers."""
    is_planned = definition.run_count and definition.planned_ms > now_ms
    return Recurring(
        definition.name,
        definition.topic,
        definition.every_ms or None,
        definition.cron or None,
        definition.timezone,
        definition.missed,
        definition.made_ms,
        definition.run_count,
        definition.planned_ms if is_planned else None,
    )


def draw_name() -> str:
    """Return a random name for a definition without one."""
    return secrets.token_hex(6)


def define(config: StoreConfig, now_ms: int, request: RecurringRequest) -> Definition:
    """Validate a request; return its definition, of which no run was put yet."""
    topic, every, start = request.topic, request.every, request.start
    raw_topic = message_fields.check_topic(topic)
    if not config.timer_enabled:
        raise due_times.timers_off()
    text = message_fields.encode_properties(
        request.tags, request.keys, request.properties, request.queue_id
    )
    raw = bytes(message_bodies.check_body(request.body, config.message_bytes_max))
    message_fields.check_sizes(
        len(raw),
        len(text) + 256,  # the run's id and number, and the definition's name
        raw_topic,
        properties_bytes_max=config.properties_bytes_max,
        record_bytes_max=config.record_bytes_max,
    )
    queue_id = -1 if request.queue_id is None else message_fields.check_queue_id(request.queue_id)
    problems = _problems(request)
    if problems:
        raise MessageError(problems)
    every_ms = _every_ms(every, config) if every is not None else 0
    start_ms = -1
    if start is not None:
        start_ms = _start_ms(due_times.moment_ms("start", start), every_ms)
        begin_ms = max(start_ms, now_ms)  # a run before the definition existed is not a missed one
    else:
        begin_ms = now_ms + every_ms if every_ms else now_ms + 1
    cron = expand_macro(request.cron) if request.cron is not None else ""
    made = Definition(
        request.name or draw_name(), secrets.token_hex(4), topic, queue_id, raw, text, every_ms,
        cron, request.timezone, start_ms, request.missed, now_ms, 0, begin_ms - 1,
    )  # fmt: skip
    if rule_of(made).after(begin_ms - 1) is None:
        raise MessageError(f"cron: {cron!r} never comes in 50 years")
    return made


def _start_ms(start_ms: int, every_ms: int) -> int:
    """Return a start that the file can hold, which uses -1 for "no start".

    A start before 1970 is replaced by the first step at or after 1970: the later runs are the same.
    """
    if start_ms >= 0:
        return start_ms
    return start_ms % every_ms if every_ms else 0


def _untyped(request: RecurringRequest) -> tuple[Any, ...]:
    """Return the fields to validate, without their types: a caller may have passed any object."""
    return request.every, request.cron, request.timezone, request.missed, request.name


def _problems(request: RecurringRequest) -> list[str]:
    every, cron, timezone, missed, name = _untyped(request)
    problems = []
    if (every is None) == (cron is None):
        got = "both" if every is not None else "none"
        problems.append(f"every, cron: wanted one of them, got {got}")
    if not isinstance(missed, str) or missed not in MISSED:
        problems.append(f"missed: wanted one of {', '.join(MISSED)}, got {quoted(missed)}")
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        problems.append(f"name: wanted 1 to 64 of A-Za-z0-9._-, got {quoted(name)}")
    if not isinstance(timezone, str):
        problems.append(f"timezone: wanted an IANA name, got {quoted(timezone)}")
    elif cron is None and timezone != "UTC":
        problems.append("timezone: goes with cron; a fixed interval has no time zone")
    elif cron is not None and (not isinstance(cron, str) or len(cron) > CRON_BYTES_MAX):
        problems.append(f"cron: wanted text of at most {CRON_BYTES_MAX} bytes, got {quoted(cron)}")
    elif cron is not None:
        try:
            CronRule(expand_macro(cron), timezone)
        except MessageError as error:
            problems.extend(error.problems)
    return problems


def _every_ms(every: timedelta | float, config: StoreConfig) -> int:
    try:
        found = due_times.resolve_due_ms(0, every, None, None, config.delay_ms_max) or 0
    except MessageError as error:
        texts = [
            one.removeprefix("delay: ").replace(" ms from now,", " ms,") for one in error.problems
        ]
        if any(one.startswith("wanted 0 or more") for one in texts):
            found = 0
        else:
            raise MessageError([f"every: {one}" for one in texts]) from error
    if found < EVERY_MS_MIN:
        raise MessageError(
            f"every: wanted at least {EVERY_MS_MIN} ms, 1 second, got {quoted(every)}"
        )
    return found
