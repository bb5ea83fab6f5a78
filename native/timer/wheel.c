/* The slots of the wheel, and their chains of units.
 *
 * A slot's chain in three steps, precision 1 s, slot number 5 = due in (5 s, 6 s]:
 *   link A at pos 0:    slot 5: first 0, last 0,   count 1;  unit A prev -1      (link.c)
 *   link B at pos 52:   slot 5: first 0, last 52,  count 2;  unit B prev 0
 *   load slot 5:        B (52), A (0), newest first; the open slot sorts them by due time
 */
#include "timer/wheel.h"

#include "log/view.h"
#include "timer/unit_checksum.h"

int32_t ts_wheel_slot(const ts_wheel *wheel, int64_t slot, int64_t *first_pos, int64_t *last_pos,
                      int32_t *count)
{
    ts_slot value;

    ts_slot_get(ts_slot_at(wheel, slot), &value);
    if (value.time != slot || value.time == 0 || value.last_pos < 0)
        return 0;
    *first_pos = value.first_pos;
    *last_pos = value.last_pos;
    *count = value.count;
    return 1;
}

/* Return the first used slot of one lap from `from`, or the next one below `to`, by looking at every
 * slot. */
static int64_t next_by_slots(const ts_wheel *wheel, int64_t from, int64_t to)
{
    int64_t lap_end = to - from > wheel->slot_count ? from + wheel->slot_count : to;
    int64_t best = -1;
    ts_slot value;

    for (int64_t slot = from; slot < lap_end; slot++) {
        ts_slot_get(ts_slot_at(wheel, slot), &value);
        if (value.time == slot && value.last_pos >= 0 && slot != 0)
            return slot;
    }
    for (int64_t i = 0; lap_end < to && i < wheel->slot_count; i++) {
        ts_slot_get(wheel->slots + i * TS_SLOT_BYTES, &value);
        if (value.time >= lap_end && value.time < to && value.last_pos >= 0 &&
            (best < 0 || value.time < best))
            best = value.time;
    }
    return best;
}

/* Return the same for `from` >= used_from, by looking at the slots in [from, to) whose bit is set, at
 * most a lap. Clear the bits of slots that turn out to be unused. */
static int64_t next_by_bits(const ts_wheel *wheel, int64_t from, int64_t to)
{
    int64_t n = wheel->slot_count, begin = from % n, lap_end = from + n, best = -1;
    int64_t span = to - from < n ? to - from : n;

    for (int64_t step = 0, width; step < span; step += width) {
        int64_t index = (begin + step) % n;
        uint64_t *word = &wheel->used[index / 64], rest = *word >> index % 64;
        ts_slot value;

        width = 64 - index % 64 < n - index ? 64 - index % 64 : n - index;
        if (width > span - step)
            width = span - step;
        if (width < 64)
            rest &= ((uint64_t)1 << width) - 1;
        if (rest == 0)
            continue;
        width = 1 + __builtin_ctzll(rest);
        index += width - 1;
        ts_slot_get(wheel->slots + index * TS_SLOT_BYTES, &value);
        if (value.time <= 0 || value.time < wheel->used_from || value.last_pos < 0)
            *word &= ~((uint64_t)1 << index % 64);
        else if (value.time == from + (index - begin + n) % n && value.time < to)
            return value.time;
        else if (value.time >= lap_end && value.time < to && (best < 0 || value.time < best))
            best = value.time;
    }
    return best;
}

/* Two used slots that are still needed never share an index. So a search of one lap from `from`
 * finds the nearest; only after a stop longer than a lap can a slot be further away. */
int64_t ts_wheel_next(const ts_wheel *wheel, int64_t from, int64_t to)
{
    if (wheel->used == NULL || from < wheel->used_from || from < 0)
        return next_by_slots(wheel, from, to);
    return next_by_bits(wheel, from, to);
}

int32_t ts_wheel_next_many(const ts_wheel *wheel, int64_t from, int64_t to, int64_t *slots,
                           int64_t *units, int32_t capacity)
{
    int64_t first, last;
    int32_t count = 0, held;

    while (count < capacity && (slots[count] = ts_wheel_next(wheel, from, to)) >= 0) {
        from = slots[count] + 1;
        units[count] = ts_wheel_slot(wheel, slots[count], &first, &last, &held) ? held : 0;
        count++;
    }
    return count;
}

/* Return the first slot in [from, to), at most a lap, that counts at least count_min units, or -1.
 */
int64_t ts_wheel_burst(const ts_wheel *wheel, int64_t from, int64_t to, int32_t count_min,
                       int32_t *count)
{
    int64_t first, last;

    for (int64_t slot = from; slot < to; slot++) {
        if (ts_wheel_slot(wheel, slot, &first, &last, count) && *count >= count_min)
            return slot;
    }
    return -1;
}

int64_t ts_wheel_copy_dirty(ts_wheel *wheel, int64_t *pages, uint8_t *out, int64_t capacity)
{
    int64_t page_count = (wheel->slot_count * TS_SLOT_BYTES + 4095) / 4096, copied = 0;

    for (int64_t page = 0; page < page_count && copied < capacity; page++) {
        int64_t at = page * 4096, size = wheel->slot_count * TS_SLOT_BYTES - at;

        if (!wheel->dirty_pages[page])
            continue;
        memcpy(out + copied * 4096, wheel->slots + at, (size_t)(size < 4096 ? size : 4096));
        pages[copied++] = page;
        wheel->dirty_pages[page] = 0;
    }
    return copied;
}

/* Read a unit of a chain. Return a status. */
static int32_t unit_get(ts_view *view, int64_t pos, ts_timer_unit *unit)
{
    int64_t available = 0;
    const uint8_t *at = ts_view_at(view, pos, &available);

    if (at == NULL)
        return view->need >= 0 ? TS_NEED_SEGMENT : ts_view_fault(view, pos, TS_FAULT_CHAIN);
    if (available < TS_TIMER_UNIT_BYTES || ts_checked_unit_get(at, pos, unit) != 0 ||
        unit->prev_pos >= pos)
        return ts_view_fault(view, pos, TS_FAULT_CHAIN);
    return TS_OK;
}

/* Read one unit of a slot's chain. *pos moves to the previous unit. */
static int32_t load_unit(ts_view *timer_log, const ts_wheel *wheel, int64_t slot, int64_t *pos,
                         ts_chained *out)
{
    ts_timer_unit unit;
    int32_t status = unit_get(timer_log, *pos, &unit);

    if (status != TS_OK)
        return status;
    if (unit.write_ms != slot * wheel->precision_ms - unit.delay_ms)
        return ts_view_fault(timer_log, *pos, TS_FAULT_CHAIN);
    out->log_offset = unit.log_offset;
    out->slot = slot;
    out->write_ms = unit.write_ms;
    out->size = unit.size;
    out->magic = unit.magic;
    out->topic_hash = unit.topic_hash;
    out->unused = 0;
    *pos = ts_chain_pos(timer_log, unit.prev_pos);
    return TS_OK;
}

int32_t ts_wheel_load(ts_view *timer_log, const ts_wheel *wheel, int64_t slot, int64_t *pos,
                      int32_t capacity, ts_chained *out)
{
    int64_t first = -1, last = -1;
    int32_t count = 0, n = 0;

    if (*pos < 0) { /* start at the chain's head; else continue where an earlier call stopped */
        if (!ts_wheel_slot(wheel, slot, &first, &last, &count))
            return 0;
        *pos = ts_chain_pos(timer_log, last);
    }
    while (*pos >= 0 && n < capacity) {
        int32_t status = load_unit(timer_log, wheel, slot, pos, &out[n]);

        if (status != TS_OK)
            return n > 0 ? n : status;
        n++;
    }
    return n;
}

int32_t ts_wheel_count(ts_view *timer_log, const ts_wheel *wheel, int64_t *from, int64_t *pos,
                       int64_t to, int64_t *units)
{
    int64_t slot, first, last;
    int32_t count;

    while ((slot = ts_wheel_next(wheel, *from, to)) >= 0) {
        if (*from != slot || *pos < 0) {
            *from = slot;
            *pos = ts_wheel_slot(wheel, slot, &first, &last, &count)
                       ? ts_chain_pos(timer_log, last) : -1;
        }
        for (; *pos >= 0; ++*units) {
            ts_chained unit;
            int32_t status = load_unit(timer_log, wheel, slot, pos, &unit);

            if (status != TS_OK)
                return status;
        }
        *from = slot + 1;
    }
    return TS_OK;
}

int32_t ts_wheel_load_many(ts_view *timer_log, const ts_wheel *wheel, const int64_t *slots,
                           int64_t *positions, int32_t slot_count, int32_t capacity,
                           ts_chained *out)
{
    int64_t first, last;
    int32_t n = 0, moved, count;

    for (int32_t i = 0; i < slot_count; i++) {
        if (positions[i] == -2)
            positions[i] = ts_wheel_slot(wheel, slots[i], &first, &last, &count)
                               ? ts_chain_pos(timer_log, last) : -1;
    }
    do {
        moved = 0;
        for (int32_t i = 0; i < slot_count && n < capacity; i++) {
            int32_t status;

            if (positions[i] < 0)
                continue;
            status = load_unit(timer_log, wheel, slots[i], &positions[i], &out[n]);
            if (status != TS_OK)
                return n > 0 ? n : status;
            if (positions[i] >= 0)
                ts_view_prefetch(timer_log, positions[i], TS_TIMER_UNIT_BYTES);
            n++;
            moved = 1;
        }
    } while (moved && n < capacity);
    return n;
}

int64_t ts_wheel_empty(ts_wheel *wheel, int64_t begin, int64_t end, const int64_t *kept,
                       int64_t kept_count)
{
    int64_t changed = 0;

    for (int64_t i = 0; i < wheel->slot_count; i++) {
        uint8_t *at = wheel->slots + i * TS_SLOT_BYTES;
        int64_t time = ts_get_i64(at + TS_SLOT_AT_TIME), low = 0, high = kept_count;

        if (time < begin || time >= end)
            continue;
        while (low < high) {
            int64_t middle = low + (high - low) / 2;

            if (kept[middle] < time)
                low = middle + 1;
            else
                high = middle;
        }
        if (low < kept_count && kept[low] == time)
            continue;
        memset(at, 0, TS_SLOT_BYTES);
        ts_slot_mark(wheel, at);
        changed++;
    }
    return changed;
}

/* Cut each slot's chain down to the units below timer_log_end. Return how many slots changed, or a
 * status. */
int64_t ts_wheel_cut(ts_view *timer_log, ts_wheel *wheel, int64_t timer_log_end)
{
    int64_t changed = 0;

    for (int64_t i = 0; i < wheel->slot_count; i++) {
        ts_slot value;

        ts_slot_get(wheel->slots + i * TS_SLOT_BYTES, &value);
        if (value.time == 0 || value.last_pos < timer_log_end)
            continue;
        while (value.last_pos >= timer_log_end) {
            ts_timer_unit unit;
            int32_t status = unit_get(timer_log, value.last_pos, &unit);

            if (status == TS_NEED_SEGMENT) /* the next call continues here */
                ts_slot_put(wheel->slots + i * TS_SLOT_BYTES, &value);
            if (status != TS_OK)
                return status;
            value.last_pos = ts_chain_pos(timer_log, unit.prev_pos);
            value.count -= value.count > 0 && !(unit.magic & TS_TIMER_MAGIC_DELETE);
        }
        if (value.last_pos < 0)
            memset(&value, 0, sizeof value);
        ts_slot_put(wheel->slots + i * TS_SLOT_BYTES, &value);
        wheel->dirty_pages[i * TS_SLOT_BYTES / 4096] = 1;
        changed++;
    }
    return changed;
}
