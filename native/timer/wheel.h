/* Access to the slots of the wheel. The next checkpoint writes the pages that changed. */
#ifndef TS_WHEEL_H
#define TS_WHEEL_H

#include "format/wheel_slot.h"
#include "timerstore.h"

static inline uint8_t *ts_slot_at(const ts_wheel *wheel, int64_t slot)
{
    return wheel->slots + slot % wheel->slot_count * TS_SLOT_BYTES;
}

/* Note that a slot was changed, and may be used. */
static inline void ts_slot_mark(ts_wheel *wheel, const uint8_t *at)
{
    int64_t index = (at - wheel->slots) / TS_SLOT_BYTES;

    wheel->dirty_pages[(at - wheel->slots) / 4096] = 1;
    if (wheel->used != NULL)
        wheel->used[index / 64] |= (uint64_t)1 << index % 64;
}

static inline void ts_slot_write(ts_wheel *wheel, int64_t slot, const ts_slot *value)
{
    uint8_t *at = ts_slot_at(wheel, slot);

    ts_slot_put(at, value);
    ts_slot_mark(wheel, at);
}

/* Return where a chain continues, or -1 if it ends or leads to a unit that retention removed. The
 * latter happens in a slot that was read and takes a late unit: none of its older units waits. */
static inline int64_t ts_chain_pos(const ts_view *timer_log, int64_t pos)
{
    return pos < timer_log->begin ? -1 : pos;
}

#endif
