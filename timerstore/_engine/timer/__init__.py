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
wheel.py                   the ring of slots; wheel_check_file.py has its checksums
far_wheel.py               coarse slots past the window; far_chains.py, far_log.py, far_tidying.py
timer_log.py               the linked units; expired_segments.py, chain_compaction.py
timer_states.py            pending, delivered or cancelled, for each timer id
checkpoint.py              the state that recovery starts from; checkpoint_counts.py
linker.py                  places a message on the wheel, on the far wheel or in the open slot;
                           link_requests.py makes its requests
open_slot.py               loaded messages by due time; due_queue.py, fair_queue.py release them
timer_recovery.py          restore all of this after a crash
pending.py, backlog.py, slot_counts.py, handle_lookup.py   answers for API calls
timer_retention.py         what retention must keep; relocation.py copies it to the log's end
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
