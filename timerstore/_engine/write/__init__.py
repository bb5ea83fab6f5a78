"""Put messages, and change those that are not delivered yet.

put_requests.py    the arguments of one call, as a value; due times drawn from a window
put.py             one message, also on an event loop without waiting
put_many.py        batches, atomic batches, and messages with ids that are known
keyed_put.py       puts with a key: unique until done; replace.py: instead of the pending message
cancel.py          cancel one message or many; reschedule.py: give a message another due time
ingester.py        the rows of a source's version, exactly once; ledger.py: the versions it has
contents.py        compares messages that repeat an id
append.py          appends checked records for every writer
targets.py         topics, queues and levels that puts go to
flow_control.py    admission of puts, with or without a limit per slot
checked_batch.py   columns of a batch; row_batch.py: of rows to ingest
appended_rows.py   where the rows of a batch are in the log
"""
