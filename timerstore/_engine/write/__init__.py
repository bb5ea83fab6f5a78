"""Put messages: one, a batch, or a group of all or none.

put_requests.py    the arguments of one call, as a value
put.py             one message
single_put.py      one message with an id or properties; on an event loop without waiting
put_many.py        batches, atomic batches, and messages with ids that are known
contents.py        compares messages that repeat an id
append.py          appends checked records for every writer
targets.py         topics, queues and levels that puts go to
flow_control.py    admission of puts, with or without a limit per slot
spread.py          due times drawn from a window
checked_batch.py, places.py, string_columns.py
                   columns of a batch
"""
