"""Check."""

from timerstore.message import Report


def check_store(opened: object) -> Report:
    return Report()
