"""The timer: keep pending messages in slots on disk until they are due.

                          far wheel <-+ +- comes near
                    past the window   | v
    wheel_timer's queue -> enqueue_get -> enqueue_put -+-> timer log and wheel -> dequeue_get
              ^                                        |                            | slot due
              | rolled, through the commit log         | late                       v
              +--------------- dequeue_put <-- open slot <--------- dequeue_get_message
                                    | due to the millisecond
                                    v
                     commit log -> the queue of the real topic
    flush: syncs the commit log and completes checkpoints of all of this

timer_arrays.py            the arrays that the services pass to one another
pipeline.py                builds the six services, starts and stops them
wheel.py                   the ring of slots, and checksums of its file
far_wheel.py               coarse slots past the window; far_log.py has their units
timer_log.py               the linked units; chain_compaction.py
delay_queue.py             keys with due times in memory, usable without a store
checkpoint.py              the state that recovery starts from
linker.py                  places a message on the wheel, on the far wheel or in the open slot
open_slot.py               loaded messages by due time; fair_queue.py gives topics their turns
timer_recovery.py          restore all of this after a crash
pending.py, slot_counts.py, handle_lookup.py   answers for API calls
level_delivery.py          messages with a fixed delay; level_pending.py: those that are pending
log_retention.py           remove the oldest segments of the commit log
timer_retention.py         what that must keep, and its copies at the log's end
broker_export.py           the files that a broker reads after we closed

Locking: the checkpoint's lock, then the wheel's, then the open slot's. The commit log's append lock
    is never taken while the wheel's or the open slot's lock is held.
Invariants:
    1. An id is delivered at most once, and never before it is due.
    2. Each pending id is on the wheel, on the far wheel, in the open slot, between two of these, or
       in a record of wheel_timer whose queue offset is at or above the timer log's `linked_offset`.
    3. If a slot was read and one of its messages is not in the commit log yet, a checkpoint says
       that the slot is still to be read.
    4. The six services do not import one another; they share handoffs.
"""
