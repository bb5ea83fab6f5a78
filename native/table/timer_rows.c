/* Timer units and wheel slots as rows of tables. */
#include "format/wheel_slot.h"
#include "table/window.h"
#include "timer/unit_checksum.h"

int32_t ts_units_scan(ts_window *window, int64_t from, int64_t *next, int32_t capacity,
                      ts_unit_row *rows)
{
    int32_t count = 0;

    window->fault = TS_FAULT_NONE;
    window->need = 0;
    *next = from;
    while (count < capacity) {
        int64_t available = 0;
        int32_t remaining = 0;
        const uint8_t *at = ts_window_bytes(window, *next, &available);
        ts_timer_unit unit;

        if (at == NULL)
            return *next != from ? count : TS_NEED_SPACE;
        if (ts_timer_blank_is(at, available, &remaining) &&
            remaining == ts_window_segment_left(window, *next)) {
            *next += remaining;
            return count;
        }
        if (available < TS_TIMER_UNIT_BYTES && available < ts_window_segment_left(window, *next) &&
            *next + available < window->end) {
            window->need = TS_TIMER_UNIT_BYTES;
            return *next != from ? count : TS_NEED_SPACE;
        }
        if (available < TS_TIMER_UNIT_BYTES || ts_checked_unit_get(at, *next, &unit) != 0) {
            int32_t status = ts_window_fault(window, *next, TS_FAULT_MAGIC);

            return *next != from ? count : status;
        }
        rows[count].timer_pos = *next;
        rows[count].prev_pos = unit.prev_pos;
        rows[count].slot_ms = (int64_t)((uint64_t)unit.write_ms + (uint64_t)(int64_t)unit.delay_ms);
        rows[count].write_ms = unit.write_ms;
        rows[count].log_offset = unit.log_offset;
        rows[count].size = unit.size;
        rows[count].magic = unit.magic;
        rows[count].topic_hash = unit.topic_hash;
        rows[count].reserved = 0;
        *next += TS_TIMER_UNIT_BYTES;
        count++;
    }
    return count;
}

int32_t ts_slots_scan(const uint8_t *slots, int64_t first, int64_t count, int64_t slot_count,
                      ts_slot_row *rows)
{
    int32_t found = 0;

    for (int64_t i = 0; i < count; i++) {
        ts_slot slot;

        ts_slot_get(slots + i * TS_SLOT_BYTES, &slot);
        if (slot.time <= 0 || slot.time % slot_count != first + i)
            continue; /* never used, or not valid on a wheel of this many slots */
        rows[found].time = slot.time;
        rows[found].first_pos = slot.first_pos;
        rows[found].last_pos = slot.last_pos;
        rows[found].slot = (int32_t)(first + i);
        rows[found].count = slot.count;
        found++;
    }
    return found;
}
