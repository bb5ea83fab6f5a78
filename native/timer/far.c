/* Units of the far wheel: linking them, and reading them along a chain or in sequence.
 *
 * Linking three requests of slots 4, 9, 4 into an empty far wheel, the next number being 7:
 *   heads before: 4: -1, 9: -1       units 7 (4, previous -1), 8 (9, previous -1), 9 (4, previous 7)
 *   heads after:  4: 9,  9: 8
 */
#include "base/checksum.h"
#include "format/far_unit.h"
#include "log/view.h"
#include "timer/states.h"

static uint32_t crc_of(const uint8_t *at, int64_t number)
{
    uint8_t head[8];

    ts_put_i64(head, number);
    return ts_crc32(ts_crc32(0, head, sizeof head), at, TS_FAR_AT_CRC);
}

static void unit_put(uint8_t *at, const ts_far_unit *unit)
{
    ts_put_i64(at + TS_FAR_AT_PREVIOUS, unit->previous);
    ts_put_i64(at + TS_FAR_AT_ID, unit->id);
    ts_put_i64(at + TS_FAR_AT_LOG_OFFSET, unit->log_offset);
    ts_put_i64(at + TS_FAR_AT_DUE_MS, unit->due_ms);
    ts_put_i64(at + TS_FAR_AT_SLOT, unit->slot);
    ts_put_i32(at + TS_FAR_AT_SIZE, unit->size);
    ts_put_i32(at + TS_FAR_AT_TOPIC_HASH, unit->topic_hash);
    ts_put_u32(at + TS_FAR_AT_CRC, crc_of(at, unit->number));
}

void ts_far_link(ts_far_unit *units, const int32_t *places, int32_t count, int64_t number,
                 int64_t *heads, uint8_t *out)
{
    for (int32_t i = 0; i < count; i++) {
        units[i].number = number + i;
        units[i].previous = heads[places[i]];
        heads[places[i]] = units[i].number;
        unit_put(out + (int64_t)i * TS_FAR_UNIT_BYTES, &units[i]);
    }
}

static int64_t offset_of(const ts_view *view, int64_t number)
{
    int64_t per = view->segment_bytes / TS_FAR_UNIT_BYTES;

    return number / per * view->segment_bytes + number % per * TS_FAR_UNIT_BYTES;
}

static int32_t unit_get(ts_view *view, int64_t number, ts_far_unit *out)
{
    int64_t offset, available = 0;
    const uint8_t *at;

    if (number > view->end / TS_FAR_UNIT_BYTES) /* its offset might overflow */
        return ts_view_fault(view, view->end, TS_FAULT_CHAIN);
    offset = offset_of(view, number);
    at = ts_view_at(view, offset, &available);
    if (at == NULL)
        return view->need >= 0 ? TS_NEED_SEGMENT : ts_view_fault(view, offset, TS_FAULT_CHAIN);
    out->number = number;
    out->previous = ts_get_i64(at + TS_FAR_AT_PREVIOUS);
    out->id = ts_get_i64(at + TS_FAR_AT_ID);
    out->log_offset = ts_get_i64(at + TS_FAR_AT_LOG_OFFSET);
    out->due_ms = ts_get_i64(at + TS_FAR_AT_DUE_MS);
    out->slot = ts_get_i64(at + TS_FAR_AT_SLOT);
    out->size = ts_get_i32(at + TS_FAR_AT_SIZE);
    out->topic_hash = ts_get_i32(at + TS_FAR_AT_TOPIC_HASH);
    if (available < TS_FAR_UNIT_BYTES || ts_get_u32(at + TS_FAR_AT_CRC) != crc_of(at, number) ||
        out->size <= 0 || out->previous < -1 || out->previous >= number)
        return ts_view_fault(view, offset, TS_FAULT_CHAIN);
    return TS_OK;
}

int32_t ts_far_walk(ts_view *view, int64_t slot, int64_t *number, int32_t capacity,
                    ts_far_unit *out)
{
    int32_t n = 0;

    while (*number >= 0 && n < capacity) {
        int32_t status = unit_get(view, *number, &out[n]);

        if (status == TS_OK && out[n].slot != slot)
            status = ts_view_fault(view, offset_of(view, *number), TS_FAULT_CHAIN);
        if (status != TS_OK)
            return n > 0 ? n : status;
        *number = out[n++].previous;
    }
    return n;
}

int32_t ts_far_scan(ts_view *view, int64_t number, int32_t count, ts_far_unit *out)
{
    for (int32_t i = 0; i < count; i++) {
        int32_t status = unit_get(view, number + i, &out[i]);

        if (status != TS_OK)
            return i > 0 ? i : status;
    }
    return count;
}

int32_t ts_far_pending(const ts_states *states, int64_t log_begin, ts_far_unit *units,
                       int32_t count)
{
    int32_t kept = 0;

    for (int32_t i = 0; i < count; i++) {
        if (units[i].log_offset >= log_begin && ts_state_get(states, units[i].id) == TS_PENDING)
            units[kept++] = units[i];
    }
    return kept;
}
