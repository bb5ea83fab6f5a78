"""What a store will deliver, when, and why a message has not been delivered yet.

calendar.py          how many messages are pending, by due time and topic
explain.py           where one message is, and what happened to it
message_name.py      the topic and id of the message that a caller asks about
message_records.py   its records in the log, and its history
timer_location.py    the place of a pending timer on the wheels
due_buckets.py       the time ranges of a histogram
resource_usage.py    disk and memory that a store uses
"""
