"""What a store will deliver, when, and why a message has not been delivered yet.

calendar.py         how many messages are pending, by due time and topic
explain.py          where one message is, its records in the log, and what happened to it
resource_usage.py   disk and memory that a store uses
"""
