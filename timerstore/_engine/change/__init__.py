"""Change a message that has not been delivered yet: cancel it, cancel many, reschedule it."""
