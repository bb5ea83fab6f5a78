"""The timer: messages that wait, in slots on disk, until their time has come.

                          far wheel ◄─┐ ┌─ comes near
                    beyond the window │ ▼
    wheel_timer's queue ─► enqueue_get ─► enqueue_put ─┬─► timer log and wheel ─► dequeue_get
              ▲                                        │                            │ slot due
              │ rolled, through the commit log         │ late                       ▼
              └─────────────── dequeue_put ◄── open slot ◄────────── dequeue_get_message
                                    │ due to the millisecond
                                    ▼
                     commit log ─► the real topic's queue
    flush: syncs the log, and completes checkpoints of all of this

request.py                                       what travels between the services
wheel.py far.py timer_log.py states.py           what is on disk
checkpoint.py                                    as of when
linker.py                                        who gets which place
recover.py                                       the same after a crash
open_slot.py due_queue.py lanes.py               what was read and waits for its time
pipeline.py                                      makes the six, starts and stops them
cancel.py pending.py backlog.py slot_counts.py    what the front door asks of the timer
handover.py                                      what a broker reads once we have closed

Locks:    checkpoint's, then the wheel's, then the open slot's; the commit log's append lock is
          never taken while the wheel's or the open slot's is held.
Holds:    (1) an id is handed at most once, and never before it is due; (2) every id that waits is
          on the wheel, on the far wheel, in the open slot, on its way between two of these, or in a
          record of wheel_timer whose queue offset is at or above the timer log's `linked_offset`;
          (3) where a slot was read and something of it is not in the commit log yet, a checkpoint
          says that the slot is still to be read; (4) the six never import one another: they meet
          in handoffs.
"""
