"""The future of a store: what will come out of it, when, and why something has not yet.

calendar.py   how many messages wait, by time and topic, kept as they come and go
explain.py    where one message is, and what happened to it
times.py      what a caller gives as a time
"""
