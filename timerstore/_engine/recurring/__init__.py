"""Recurring: messages that are put again and again, by a step of time or by cron.

    put_every("jobs", b"...", cron="30 2 * * *", timezone="Europe/Berlin", name="nightly")

    definitions   config/timerstoreRecurring.json: what, when, and how far
    rule          when the next run is
    planner       the service: of each one run waits on the wheel; when its time has come, the next

Each run is a message of its own, named by definition and number: so the log says how far each is,
and a crash between a run and the file puts none twice and leaves none out.
"""

from timerstore._engine.recurring.definition import Recurring, define, draw_name, shown
from timerstore._engine.recurring.definitions import Definitions
from timerstore._engine.recurring.planner import Planner

__all__ = ["Definitions", "Planner", "Recurring", "define", "draw_name", "shown"]
