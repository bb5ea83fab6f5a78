"""Recurring messages: put again and again, at a fixed interval or by a cron expression.

    put_every("jobs", b"...", cron="30 2 * * *", timezone="Europe/Berlin", name="nightly")

definition.py       validation of one definition, its description, and the times at which it runs
planner.py          the service: keeps the next run of each definition pending; their file
                    config/timerstoreRecurring.json
recurring_calls.py  put_every, recurring and cancel_every

Each run is a message of its own, whose id has the name of the definition and the number of the run.
So the log itself says how far each definition is. A crash between putting a run and writing the
file neither repeats a run nor loses one.
"""

from timerstore._engine.recurring.definition import (
    Recurring,
    RecurringRequest,
    define,
    describe,
    draw_name,
)
from timerstore._engine.recurring.planner import Definitions, Planner

__all__ = [
    "Definitions",
    "Planner",
    "Recurring",
    "RecurringRequest",
    "define",
    "describe",
    "draw_name",
]
