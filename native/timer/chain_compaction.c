/* Chain compaction: cut chains down to the units of pending messages, for a broker that opens the
 * store.
 *
 * A slot whose unit B (pos 52) is dead, before and after; read_slot is 7, the slot's time 9:
 *   slot 9: first 0, last 104, count 3;   A prev -1   B prev 0, slot 9    C prev 52
 *   slot 9: first 0, last 104, count 2;   A prev -1   B prev -1, slot 6   C prev 0
 * When a broker loads a store, it links all units of its last two timer-log files again, into the
 * slots that they name. So a dead unit must name a slot that is not read again.
 */
#include "base/sorted.h"
#include "log/view.h"
#include "timer/unit_checksum.h"
#include "timer/wheel.h"

enum { CHAIN_ENDS = 1 };

static int32_t unit_at(ts_view *view, int64_t pos, ts_timer_unit *unit)
{
    int64_t available = 0;
    const uint8_t *at = ts_view_at(view, pos, &available);

    if (at == NULL)
        return view->need >= 0 ? TS_NEED_SEGMENT : ts_view_fault(view, pos, TS_FAULT_CHAIN);
    if (available < TS_TIMER_UNIT_BYTES || ts_checked_unit_get(at, pos, unit) != 0)
        return ts_view_fault(view, pos, TS_FAULT_CHAIN);
    return TS_OK;
}

static void begin(const ts_view *timer_log, const ts_slot *value, ts_chain_walk *walk)
{
    if (!walk->has_begun) {
        walk->has_begun = 1;
        walk->pos = ts_chain_pos(timer_log, value->last_pos);
        walk->first_pos = value->first_pos;
    }
}

/* Read the unit at pos. Return CHAIN_ENDS if pos is -1. */
static int32_t next_unit(ts_view *timer_log, int64_t pos, ts_timer_unit *unit)
{
    int32_t status = pos < 0 ? CHAIN_ENDS : unit_at(timer_log, pos, unit);

    if (status == TS_OK && unit->prev_pos >= pos)
        return ts_view_fault(timer_log, pos, TS_FAULT_CHAIN);
    return status;
}

static void patch(ts_patch *out, int64_t pos, int32_t is_dead, const ts_timer_unit *unit)
{
    out->pos = pos;
    out->is_dead = is_dead;
    ts_checked_unit_put(out->unit, pos, unit);
}

static void mark_dead(ts_patch *out, int64_t pos, int64_t slot_ms, ts_timer_unit *unit)
{
    unit->prev_pos = TS_TIMER_PREV_NONE;
    unit->write_ms = slot_ms;
    unit->delay_ms = 0;
    patch(out, pos, 1, unit);
}

int64_t ts_wheel_compact_chain(ts_view *timer_log, ts_wheel *wheel, int64_t slot, int64_t read_slot,
                               const int64_t *living, uint8_t *is_kept, int64_t living_count,
                               ts_patch *patches, int64_t capacity, ts_chain_walk *walk)
{
    uint8_t *at = ts_slot_at(wheel, slot);
    ts_timer_unit unit, newer = {0};
    ts_slot value;
    int32_t status;

    ts_slot_get(at, &value);
    if (value.time != slot || value.last_pos < 0)
        return 0;
    begin(timer_log, &value, walk);
    if (walk->kept > 0)
        (void)ts_timer_unit_get(walk->first, &newer); /* as an earlier call left it */
    while ((status = next_unit(timer_log, walk->pos, &unit)) == TS_OK) {
        int64_t pos = walk->pos, place = ts_place_among(living, living_count, unit.log_offset);

        if (walk->patches + 2 > capacity)
            return TS_INVALID;
        walk->pos = ts_chain_pos(timer_log, unit.prev_pos);
        if ((unit.magic & TS_TIMER_MAGIC_DELETE) || place < 0 || is_kept[place]) {
            mark_dead(&patches[walk->patches++], pos, (read_slot - 1) * wheel->precision_ms, &unit);
            continue;
        }
        is_kept[place] = 1;
        if (walk->kept++ == 0)
            walk->last_pos = pos;
        else if (newer.prev_pos != pos) {
            newer.prev_pos = pos;
            patch(&patches[walk->patches++], walk->first_pos, 0, &newer);
        }
        walk->first_pos = pos;
        newer = unit;
    }
    if (status < 0) {
        ts_timer_unit_put(walk->first, &newer);
        return status;
    }
    if (walk->kept > 0 && newer.prev_pos >= 0) {
        newer.prev_pos = TS_TIMER_PREV_NONE;
        patch(&patches[walk->patches++], walk->first_pos, 0, &newer);
    }
    value.time = walk->kept > 0 ? slot : 0;
    value.first_pos = walk->kept > 0 ? walk->first_pos : 0;
    value.last_pos = walk->kept > 0 ? walk->last_pos : 0;
    value.count = walk->kept;
    ts_slot_put(at, &value);
    ts_slot_mark(wheel, at);
    return walk->patches;
}

int32_t ts_wheel_recount(ts_view *timer_log, ts_wheel *wheel, int64_t slot, ts_chain_walk *walk)
{
    uint8_t *at = ts_slot_at(wheel, slot);
    ts_timer_unit unit;
    ts_slot value;
    int32_t status;

    ts_slot_get(at, &value);
    if (value.time != slot || value.last_pos < 0)
        return TS_OK;
    begin(timer_log, &value, walk);
    while ((status = next_unit(timer_log, walk->pos, &unit)) == TS_OK) {
        walk->kept += !(unit.magic & TS_TIMER_MAGIC_DELETE);
        walk->first_pos = walk->pos;
        walk->pos = ts_chain_pos(timer_log, unit.prev_pos);
    }
    if (status < 0)
        return status;
    value.first_pos = walk->first_pos;
    value.count = walk->kept;
    ts_slot_put(at, &value);
    ts_slot_mark(wheel, at);
    return TS_OK;
}

int64_t ts_wheel_chain_positions(ts_view *timer_log, ts_wheel *wheel, int64_t slot, int64_t from,
                                 int64_t *positions, int64_t capacity, ts_chain_walk *walk)
{
    ts_timer_unit unit;
    ts_slot value;
    int64_t n = 0;

    ts_slot_get(ts_slot_at(wheel, slot), &value);
    if (value.time != slot || value.last_pos < 0)
        return 0;
    begin(timer_log, &value, walk);
    while (n < capacity && walk->pos >= from) {
        int32_t status = next_unit(timer_log, walk->pos, &unit);

        if (status == TS_NEED_SEGMENT && n > 0)
            break;
        if (status < 0)
            return status;
        positions[n++] = walk->pos;
        walk->pos = ts_chain_pos(timer_log, unit.prev_pos);
    }
    return n;
}

/* Return whether a chain holds the unit, judging by its own bytes. After all chains were linked
 * again, only such units have a previous position. */
static int32_t seems_chained(const ts_wheel *wheel, const ts_timer_unit *unit, int64_t pos,
                             int64_t slot)
{
    ts_slot value;

    ts_slot_get(wheel->slots + slot % wheel->slot_count * TS_SLOT_BYTES, &value);
    return unit->prev_pos >= 0 || (value.time == slot && value.first_pos == pos);
}

int64_t ts_timer_log_unchained(ts_view *timer_log, const ts_wheel *wheel, int64_t from,
                               int64_t *next,
                               int64_t read_slot, const int64_t *held, int64_t held_count,
                               ts_patch *patches, int64_t capacity)
{
    int64_t pos = from, n = 0;

    for (; pos < timer_log->end && n < capacity; pos += TS_TIMER_UNIT_BYTES) {
        int64_t left = timer_log->segment_bytes - pos % timer_log->segment_bytes, slot;
        ts_timer_unit unit;
        int32_t status;

        if (left < TS_TIMER_UNIT_BYTES + TS_TIMER_BLANK_BYTES) {
            pos += left - TS_TIMER_UNIT_BYTES;
            continue;
        }
        status = unit_at(timer_log, pos, &unit);
        if (status == TS_NEED_SEGMENT && pos > from)
            break;
        if (status != TS_OK)
            return status;
        if (__builtin_add_overflow(unit.write_ms, unit.delay_ms, &slot))
            return ts_view_fault(timer_log, pos, TS_FAULT_CHAIN);
        slot /= wheel->precision_ms;
        if (slot < read_slot) /* not read again */
            continue;
        if (held != NULL ? ts_is_among(held, held_count, pos)
                         : seems_chained(wheel, &unit, pos, slot))
            continue;
        mark_dead(&patches[n++], pos, (read_slot - 1) * wheel->precision_ms, &unit);
    }
    *next = pos;
    return n;
}
