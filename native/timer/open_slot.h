/* The order of the open slot, and its heap's way out. */
#ifndef TS_OPEN_SLOT_H
#define TS_OPEN_SLOT_H

#include "timerstore.h"

/* Of one time the first put comes first. */
static inline int32_t ts_due_before(const ts_due *a, const ts_due *b)
{
    return a->wake_ms != b->wake_ms ? a->wake_ms < b->wake_ms : a->id < b->id;
}

/* Takes the first entry off; it stays where it is until the next push. */
ts_due *ts_heap_drop(ts_heap *heap);

#endif
