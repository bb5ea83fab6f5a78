/* The order of the open slot, and the removal from its heap. */
#ifndef TS_OPEN_SLOT_H
#define TS_OPEN_SLOT_H

#include "timerstore.h"

/* Return whether a precedes b. Of equal times the message that was put first precedes. */
static inline int32_t ts_due_before(const ts_due *a, const ts_due *b)
{
    return a->wake_ms != b->wake_ms ? a->wake_ms < b->wake_ms : a->id < b->id;
}

/* Remove the first entry. Its memory stays valid until the next push. */
ts_due *ts_heap_drop(ts_heap *heap);

#endif
