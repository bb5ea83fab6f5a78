/* Timer messages on and off the wheel: requests, units and slots, chains, due entries.
 *
 * A slot's chain in three steps, precision 1 s, slot number 5 = due in (5 s, 6 s]:
 *   link A at pos 0:    slot 5: first 0, last 0,   count 1;  unit A prev -1
 *   link B at pos 52:   slot 5: first 0, last 52,  count 2;  unit B prev 0
 *   load slot 5:        B (52), A (0), newest first; the open slot puts them in order of due time
 */
#include "../format/properties.h"
#include "../format/queue_unit.h"
#include "../format/timer_unit.h"
#include "../format/wheel_slot.h"
#include "parse.h"
#include "states.h"
#include "view.h"

enum { PROBES = 4096, PREFETCH = 10 };

/* ---- from queue units to requests ---- */

static int32_t request_of(ts_view *view, int64_t log_offset, int32_t size, int64_t queue_offset,
                          uint32_t store_id, int64_t precision_ms, ts_tail *tail, ts_request *out)
{
    ts_record record;
    ts_marks marks;
    int32_t status = ts_view_record(view, log_offset, &record);

    if (status != TS_OK)
        return status;
    if (record.size != size || record.queue_offset != queue_offset)
        return ts_view_fault(view, log_offset, TS_FAULT_TOPIC);
    ts_marks_get_timer(record.properties, record.properties_size, tail, &marks);
    out->id = marks.timer_id >= 0 && marks.store_id == store_id ? marks.timer_id : queue_offset;
    out->log_offset = log_offset;
    out->due_ms = ts_marks_due(&marks, precision_ms);
    out->out_ms = marks.out_ms;
    out->queue_offset = queue_offset;
    out->size = size;
    out->topic_hash = marks.real_topic.at == NULL
                          ? 0 : ts_java_hash(marks.real_topic.at, marks.real_topic.size);
    out->roll_times = marks.roll_times;
    out->flags = 0;
    if (marks.delete_key.at != NULL)
        out->flags |= TS_FLAG_DELETE;
    if (!ts_marks_usable(&marks))
        out->flags |= TS_FLAG_UNUSABLE;
    return TS_OK;
}

int32_t ts_timer_requests(ts_view *view, const uint8_t *units, int32_t count,
                          int64_t queue_offset, uint32_t store_id, int64_t precision_ms,
                          ts_request *out)
{
    int64_t log_offset, tags;
    int32_t i, size, status = TS_OK;
    ts_tail tail = {.real_size = 0};

    for (i = 0; i < count; i++) {
        if (i + PREFETCH < count) {
            ts_queue_unit_get(units + (int64_t)(i + PREFETCH) * 20, &log_offset, &size, &tags);
            ts_view_prefetch(view, log_offset, size);
        }
        ts_queue_unit_get(units + (int64_t)i * 20, &log_offset, &size, &tags);
        status = request_of(view, log_offset, size, queue_offset + i, store_id, precision_ms,
                            &tail, &out[i]);
        if (status != TS_OK)
            break;
    }
    return i > 0 ? i : status;
}

/* ---- the wheel ---- */

static uint8_t *slot_at(const ts_wheel *wheel, int64_t slot)
{
    return wheel->slots + slot % wheel->slot_count * TS_SLOT_BYTES;
}

static void slot_write(ts_wheel *wheel, int64_t slot, const ts_slot *value)
{
    uint8_t *at = slot_at(wheel, slot);

    ts_slot_put(at, value);
    wheel->dirty_pages[(at - wheel->slots) / 4096] = 1;
}

int32_t ts_wheel_slot(const ts_wheel *wheel, int64_t slot, int64_t *first_pos, int64_t *last_pos,
                      int32_t *count)
{
    ts_slot value;

    ts_slot_get(slot_at(wheel, slot), &value);
    if (value.time != slot || value.time == 0 || value.last_pos < 0)
        return 0;
    *first_pos = value.first_pos;
    *last_pos = value.last_pos;
    *count = value.count;
    return 1;
}

void ts_wheel_clear(ts_wheel *wheel, int64_t slot)
{
    ts_slot empty = {0, 0, 0, 0, 0};

    slot_write(wheel, slot, &empty);
}

/* The first used slot in [from, to), or -1. No two used slots that still count share an index, so
 * one lap from `from` finds the nearest; only after a stop longer than a lap can one lie beyond. */
int64_t ts_wheel_next(const ts_wheel *wheel, int64_t from, int64_t to)
{
    int64_t lap_end = to - from > wheel->slot_count ? from + wheel->slot_count : to;
    int64_t best = -1;
    ts_slot value;

    for (int64_t slot = from; slot < lap_end; slot++) {
        ts_slot_get(slot_at(wheel, slot), &value);
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

/* ---- linking ---- */

/* Whether a slot may take a unit: it is this very slot, or what it holds is of no use any more. */
static int32_t is_open(const ts_wheel *wheel, int64_t slot, int64_t reuse_below, ts_slot *value)
{
    ts_slot_get(slot_at(wheel, slot), value);
    if (value->time == slot && value->last_pos >= 0)
        return 1;
    if (value->time != slot && value->time != 0 && value->time >= reuse_below &&
        value->last_pos >= 0)
        return 0;
    value->time = slot;
    value->first_pos = value->last_pos = -1;
    value->count = 0;
    value->magic = 0;
    return 1;
}

typedef struct {
    int64_t slot;   /* -1: the unit is linked nowhere */
    int32_t magic;
    int32_t late;   /* the slot has been read: the message goes to the open slot as well */
    ts_slot value;
} placing;

/* Late messages wait in memory; their unit is for a recovery, which must read it before they are
 * due. So it goes to the newest slot that has been read and lies neither beyond the message nor
 * beyond the present (the clock may have been set back), else to an earlier one that is free. */
static int32_t place_late(const ts_wheel *wheel, const ts_link *link, int64_t slot,
                          placing *place)
{
    place->late = 1;
    slot = slot < link->frontier - 1 ? slot : link->frontier - 1;
    slot = slot < link->write_slot ? slot : link->write_slot;
    slot = slot < 1 ? 1 : slot; /* slot 0 is what unused slots say: nothing is ever linked there */
    for (int64_t k = 0; k < PROBES && k < wheel->slot_count && k < slot; k++) {
        place->slot = slot - k;
        if (is_open(wheel, place->slot, link->reuse_below, &place->value))
            return TS_OK;
    }
    return TS_BLOCKED;
}

/* Far ahead while the clock was set back below what has been read: the next free slot that has not
 * been read, from where it rolls on. */
static int32_t place_beyond(const ts_wheel *wheel, const ts_link *link, int64_t slot,
                            placing *place)
{
    for (int64_t k = 0; k < PROBES && link->frontier + k <= slot; k++) {
        place->slot = link->frontier + k;
        if (place->slot == slot)
            place->magic &= ~TS_TIMER_MAGIC_ROLL;
        if (is_open(wheel, place->slot, link->reuse_below, &place->value))
            return TS_OK;
    }
    return TS_BLOCKED;
}

/* The slot of its time, an edge of the roll window, or an earlier free one that rolls again. */
static int32_t place_ahead(const ts_wheel *wheel, const ts_link *link, int64_t slot,
                           placing *place)
{
    int64_t ahead = slot - link->write_slot, window = link->roll_slots, wanted = slot;

    if (ahead >= window) {
        place->magic |= TS_TIMER_MAGIC_ROLL;
        slot = link->write_slot + (ahead - window < window / 3 ? window / 2 : window);
    }
    if (slot < link->frontier)
        return place_beyond(wheel, link, wanted, place);
    for (int64_t k = 0; k < PROBES && slot - k >= link->frontier; k++) {
        if (k == 1)
            place->magic |= TS_TIMER_MAGIC_ROLL;
        place->slot = slot - k;
        if (is_open(wheel, place->slot, link->reuse_below, &place->value))
            return TS_OK;
    }
    return TS_BLOCKED;
}

static int32_t place_request(const ts_wheel *wheel, const ts_link *link, const ts_states *states,
                             const ts_request *request, placing *place)
{
    int64_t slot = ts_slot_of(request->due_ms, wheel->precision_ms);
    int32_t is_delete = (request->flags & TS_FLAG_DELETE) != 0;

    place->magic = TS_TIMER_MAGIC_DEFAULT | (is_delete ? TS_TIMER_MAGIC_DELETE : 0);
    place->slot = -1;
    place->late = 0;
    if ((request->flags & TS_FLAG_UNUSABLE) || (is_delete && slot < link->frontier))
        return TS_OK;
    if (!is_delete && ts_state_get(states, request->id) != TS_WAITING)
        return TS_OK;
    if (slot >= link->frontier)
        return place_ahead(wheel, link, slot, place);
    return place_late(wheel, link, slot, place);
}

static void late_entry(const ts_wheel *wheel, const ts_link *link, const ts_request *request,
                       const placing *place, ts_due *out)
{
    out->id = request->id;
    out->due_ms = request->due_ms;
    out->log_offset = request->log_offset;
    out->slot = place->slot;
    out->write_ms = link->write_slot * wheel->precision_ms;
    out->size = request->size;
    out->flags = place->magic & TS_TIMER_MAGIC_ROLL ? TS_FLAG_ROLL : 0;
    out->wake_ms = out->flags ? place->slot * wheel->precision_ms : request->due_ms;
}

static void write_unit(ts_wheel *wheel, const ts_link *link, const ts_request *request,
                       placing *place, uint8_t *out)
{
    /* A unit that is linked nowhere says a slot that has been read, so that nobody reads it. */
    int64_t slot = place->slot < 0 ? link->write_slot - 1 : place->slot;
    int64_t ahead = slot - link->write_slot;
    /* Write time + delay is the slot's time; where the delay does not fit, the write time gives way:
     * a late unit in an earlier slot, or a clock that was set back by weeks. */
    int32_t fits = place->slot < 0 || (ahead >= 0 && ahead <= INT32_MAX / wheel->precision_ms);
    /* A late unit in a slot before its own (the clock was set back): a broker must not deliver it
     * with that slot but roll it. We go by the due time. */
    int32_t is_before = place->late && place->slot < ts_slot_of(request->due_ms, wheel->precision_ms);
    ts_timer_unit unit = {
        .prev_pos = place->slot < 0 ? -1 : place->value.last_pos,
        .magic = place->magic | (is_before ? TS_TIMER_MAGIC_ROLL : 0),
        .write_ms = (fits ? link->write_slot : slot) * wheel->precision_ms,
        .delay_ms = fits ? (int32_t)(ahead * wheel->precision_ms) : 0,
        .log_offset = request->log_offset,
        .size = request->size,
        .topic_hash = request->topic_hash,
        .reserved = 0,
    };

    ts_timer_unit_put(out, &unit);
    if (place->slot < 0)
        return;
    if (place->value.first_pos < 0)
        place->value.first_pos = link->pos;
    place->value.last_pos = link->pos;
    if (place->magic & TS_TIMER_MAGIC_DELETE)
        place->value.count -= place->value.count > 0;
    else
        place->value.count += place->value.count < INT32_MAX;
    slot_write(wheel, place->slot, &place->value);
}

int32_t ts_timer_link(ts_wheel *wheel, ts_link *link, const ts_states *states,
                      const ts_request *requests, int32_t count, uint8_t *units,
                      int64_t units_bytes, ts_due *late)
{
    int32_t i, status = TS_OK;

    link->bytes = 0;
    link->late_count = 0;
    link->cut = 0;
    link->first_slot = INT64_MAX;
    for (i = 0; i < count; i++) {
        int64_t left = link->segment_bytes - link->pos % link->segment_bytes;
        placing place;

        if (link->bytes + TS_TIMER_UNIT_BYTES > units_bytes)
            break;
        if (left < TS_TIMER_UNIT_BYTES + TS_TIMER_BLANK_BYTES) {
            ts_timer_blank_put(units + link->bytes, (int32_t)left);
            link->bytes += TS_TIMER_BLANK_BYTES;
            link->pos += left;
            link->cut = 1;
            break;
        }
        status = place_request(wheel, link, states, &requests[i], &place);
        if (status != TS_OK)
            break;
        write_unit(wheel, link, &requests[i], &place, units + link->bytes);
        if (place.slot >= link->frontier && place.slot < link->first_slot)
            link->first_slot = place.slot;
        if (place.late) {
            late_entry(wheel, link, &requests[i], &place, &late[link->late_count++]);
            /* Its slot is needed until it is in the log: nothing behind it in this batch takes it. */
            if (place.slot < link->reuse_below)
                link->reuse_below = place.slot;
        }
        link->bytes += TS_TIMER_UNIT_BYTES;
        link->pos += TS_TIMER_UNIT_BYTES;
    }
    return i > 0 || link->bytes > 0 ? i : status;
}

/* ---- reading a slot ---- */

/* A unit of the given slot, or why it is none. */
static int32_t unit_get(ts_view *view, int64_t pos, ts_timer_unit *unit)
{
    int64_t available = 0;
    const uint8_t *at = ts_view_at(view, pos, &available);

    if (at == NULL)
        return view->need >= 0 ? TS_NEED_SEGMENT : ts_view_fault(view, pos, TS_FAULT_CHAIN);
    if (available < TS_TIMER_UNIT_BYTES || ts_timer_unit_get(at, unit) != 0 ||
        unit->prev_pos >= pos)
        return ts_view_fault(view, pos, TS_FAULT_CHAIN);
    return TS_OK;
}

/* One unit of a slot's chain; *pos moves to the one before it. */
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
    *pos = unit.prev_pos < 0 ? -1 : unit.prev_pos;
    return TS_OK;
}

int32_t ts_wheel_load(ts_view *timer_log, const ts_wheel *wheel, int64_t slot, int64_t *pos,
                      int32_t capacity, ts_chained *out)
{
    int64_t first = -1, last = -1;
    int32_t count = 0, n = 0;

    if (*pos < 0) { /* from the chain's head; else where an earlier call stopped */
        if (!ts_wheel_slot(wheel, slot, &first, &last, &count))
            return 0;
        *pos = last;
    }
    while (*pos >= 0 && n < capacity) {
        int32_t status = load_unit(timer_log, wheel, slot, pos, &out[n]);

        if (status != TS_OK)
            return n > 0 ? n : status;
        n++;
    }
    return n;
}

int32_t ts_wheel_load_many(ts_view *timer_log, const ts_wheel *wheel, const int64_t *slots,
                           int64_t *positions, int32_t slot_count, int32_t capacity,
                           ts_chained *out)
{
    int64_t first, last;
    int32_t n = 0, moved, count;

    for (int32_t i = 0; i < slot_count; i++) {
        if (positions[i] == -2)
            positions[i] = ts_wheel_slot(wheel, slots[i], &first, &last, &count) ? last : -1;
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

/* Takes every slot back to what lay below timer_log_end. How many slots changed, or a status. */
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

            if (status != TS_OK)
                return status;
            value.last_pos = unit.prev_pos;
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

/* ---- from chains to due entries ---- */

enum { LOOK_BYTES = 256 }; /* a tail and its CRC; what is learned from a longer one is not used */

/* When and which, from a record's last bytes alone, where they are as this store puts them: the head
 * is looked at when the message is handed over, with all its CRCs. */
static int32_t tail_of(ts_view *view, uint32_t store_id, const ts_tail *tail,
                       const ts_chained *chained, ts_marks *marks)
{
    int64_t available = 0;
    const uint8_t *at = ts_view_at(view, chained->log_offset, &available), *end;
    int32_t size = chained->size < LOOK_BYTES ? chained->size : LOOK_BYTES;

    if (at == NULL || chained->size > available || size < TS_PROPERTY_CRC_BYTES)
        return 0;
    end = at + chained->size;
    if (memcmp(end - TS_PROPERTY_CRC_BYTES, "__CRC32#\001", 9) != 0)
        return 0;
    memset(marks, 0, sizeof *marks);
    return ts_tail_get(tail, end - TS_PROPERTY_CRC_BYTES, size - TS_PROPERTY_CRC_BYTES, marks) &&
           marks->store_id == store_id && ts_marks_usable(marks);
}

static int32_t marks_of(ts_view *view, const ts_chained *chained, ts_tail *tail, ts_marks *marks,
                        uint32_t store_id)
{
    ts_record record;
    int32_t status = ts_view_record(view, chained->log_offset, &record);

    if (status != TS_OK)
        return status;
    if (record.size != chained->size)
        return ts_view_fault(view, chained->log_offset, TS_FAULT_TOPIC);
    ts_marks_get_timer(record.properties, record.properties_size, tail, marks);
    if (!ts_marks_usable(marks))
        return ts_view_fault(view, chained->log_offset, TS_FAULT_PROPERTIES);
    if (marks->timer_id < 0 || marks->store_id != store_id)
        marks->timer_id = record.queue_offset;
    return TS_OK;
}

static int32_t due_of(ts_view *view, uint32_t store_id, int64_t precision_ms,
                      int64_t frontier, const ts_chained *chained, ts_tail *tail, ts_due *out)
{
    ts_marks marks;

    if (!tail_of(view, store_id, tail, chained, &marks)) {
        int32_t status = marks_of(view, chained, tail, &marks, store_id);
        if (status != TS_OK)
            return status;
    }
    out->id = marks.timer_id;
    out->due_ms = ts_marks_due(&marks, precision_ms);
    out->log_offset = chained->log_offset;
    out->slot = chained->slot;
    out->write_ms = chained->write_ms;
    out->size = chained->size;
    out->flags = ts_slot_of(out->due_ms, precision_ms) >= frontier ? TS_FLAG_ROLL : 0;
    out->wake_ms = out->flags ? chained->slot * precision_ms : out->due_ms;
    return TS_OK;
}

/* Drops what does not wait any more; how many are left. Apart from the reading, so that the table
 * can be asked ahead. */
static int32_t keep_waiting(const ts_states *states, ts_due *entries, int32_t count)
{
    int32_t kept = 0;

    for (int32_t i = 0; i < count; i++) {
        if (i + 2 * PREFETCH < count)
            ts_state_prefetch(states, entries[i + 2 * PREFETCH].id);
        if (ts_state_get(states, entries[i].id) != TS_WAITING)
            continue;
        if (kept < i)
            entries[kept] = entries[i];
        kept++;
    }
    return kept;
}

/* How many entries of `chained` were looked at; the due ones are written without gaps and their
 * number goes to view->need. */
int32_t ts_due_load(ts_view *view, const ts_states *states, uint32_t store_id,
                    int64_t precision_ms, int64_t frontier, const ts_chained *chained,
                    int32_t count, ts_due *out)
{
    int32_t i, n = 0, status = TS_OK;
    ts_tail tail = {.real_size = 0};

    for (i = 0; i < count; i++) {
        if (i + PREFETCH < count)
            ts_view_prefetch_end(view, chained[i + PREFETCH].log_offset,
                                 chained[i + PREFETCH].size);
        if (chained[i].magic & TS_TIMER_MAGIC_DELETE)
            continue; /* the state table knows */
        status = due_of(view, store_id, precision_ms, frontier, &chained[i], &tail, &out[n]);
        if (status != TS_OK)
            break;
        n++;
    }
    if (i == 0 && count > 0)
        return status;
    view->need = keep_waiting(states, out, n);
    return i;
}
