/* Linking: give each request a slot and a unit, and append the unit to the slot's chain. */
#include "base/sorted.h"
#include "log/parse.h"
#include "timer/unit_checksum.h"
#include "timer/wheel.h"

enum { PROBES = 4096, NEAR_PART = 8 };

/* Return whether the slot's contents of this time are no longer needed: the slot has been read,
 * none of its messages is still being delivered, and none was when the last completed checkpoint
 * began. */
static int32_t is_reusable(const ts_link *link, int64_t time)
{
    return time < link->reuse_below ||
           (time < link->read_below && !ts_is_among(link->kept, link->kept_count, time));
}

/* Return whether a slot may take a unit: it is in use for this time, or its contents are no longer
 * needed. */
static int32_t is_free(const ts_wheel *wheel, const ts_link *link, int64_t slot, ts_slot *value)
{
    ts_slot_get(ts_slot_at(wheel, slot), value);
    if (value->time == slot && value->last_pos >= 0)
        return 1;
    if (value->time != slot && value->time != 0 && value->last_pos >= 0 &&
        !is_reusable(link, value->time))
        return 0;
    value->time = slot;
    value->first_pos = value->last_pos = -1;
    value->count = 0;
    value->magic = 0;
    return 1;
}

typedef struct {
    int64_t slot;   /* -1: the unit is not linked */
    int32_t magic;
    int32_t late;   /* the slot has been read, so the message goes to the open slot, too */
    int32_t far;    /* it waits on the far wheel; together with late: in its overflow slot */
    ts_slot value;
} placing;

/* A late message (its slot has already been read) waits in memory. Its timer unit exists only so
 * that recovery finds it before it is due. Link the unit into the newest slot that has been read
 * and is not later than the message or the current time (the clock may have been set back). If that
 * slot is in use, link it into the nearest earlier free slot. */
static int32_t place_late(const ts_wheel *wheel, const ts_link *link, int64_t slot,
                          placing *place)
{
    place->late = 1;
    slot = slot < link->read_slot - 1 ? slot : link->read_slot - 1;
    slot = slot < link->write_slot ? slot : link->write_slot;
    slot = slot < 1 ? 1 : slot; /* slot 0 marks unused slots, so nothing is ever linked there */
    for (int64_t k = 0; k < PROBES && k < wheel->slot_count && k < slot; k++) {
        place->slot = slot - k;
        if (is_free(wheel, link, place->slot, &place->value))
            return TS_OK;
    }
    return TS_BLOCKED;
}

/* The message is due far ahead, but the clock was set back below the read slot. Link it into the
 * next free slot that has not been read. It rolls from there. */
static int32_t place_after_set_back(const ts_wheel *wheel, const ts_link *link, int64_t slot,
                                    placing *place)
{
    for (int64_t k = 0; k < PROBES && link->read_slot + k <= slot; k++) {
        place->slot = link->read_slot + k;
        if (place->slot == slot)
            place->magic &= ~TS_TIMER_MAGIC_ROLL;
        if (is_free(wheel, link, place->slot, &place->value))
            return TS_OK;
    }
    return TS_BLOCKED;
}

/* Return whether a slot belongs to a far slot that has not begun to move to the wheel. A far slot
 * begins when its first slot enters the roll window. So a message that was moved never goes back,
 * except from the last far slot. */
static int32_t is_far(const ts_link *link, int64_t slot)
{
    return link->far_width > 0 &&
           slot - slot % link->far_width >= link->write_slot + link->roll_slots;
}

static int64_t roll_slot(ts_link *link, int64_t ahead)
{
    int64_t window = link->roll_slots;

    if (link->spread_slots > 0)
        return link->write_slot + window - link->spread_at++ % link->spread_slots;
    return link->write_slot + (ahead - window < window / 3 ? window / 2 : window);
}

/* The message is due soon, but every slot up to its own holds another lap, as after a clock that
 * was set back. Keep it in memory, like a late message, so that later requests need not wait for
 * it. Its unit blocks the reuse of a slot that was read. So this is only for messages that will be
 * delivered well before that slot's next lap. */
static int32_t place_early(const ts_wheel *wheel, const ts_link *link, int64_t slot,
                           placing *place)
{
    int64_t near = wheel->slot_count / NEAR_PART;

    if (slot - link->write_slot > (near < PROBES ? near : PROBES))
        return TS_BLOCKED;
    place->slot = -1;
    if (place->magic & TS_TIMER_MAGIC_DELETE)
        return TS_OK; /* the state table has the cancelled state */
    place->magic &= ~TS_TIMER_MAGIC_ROLL;
    return place_late(wheel, link, slot, place);
}

/* Link the message into the slot of its time, into a slot near the end of the roll window, or into
 * an earlier free slot from which it rolls again; or put it on the far wheel. */
static int32_t place_ahead(const ts_wheel *wheel, ts_link *link, int64_t slot, placing *place)
{
    int64_t ahead = slot - link->write_slot, wanted = slot;

    if (is_far(link, slot) && !(place->magic & TS_TIMER_MAGIC_DELETE)) {
        place->far = 1;
        return TS_OK;
    }
    if (ahead >= link->roll_slots + link->near_slots) {
        place->magic |= TS_TIMER_MAGIC_ROLL;
        slot = roll_slot(link, ahead);
    }
    if (slot < link->read_slot)
        return place_after_set_back(wheel, link, wanted, place);
    for (int64_t k = 0; k < PROBES && slot - k >= link->read_slot; k++) {
        if (k == 1)
            place->magic |= TS_TIMER_MAGIC_ROLL;
        place->slot = slot - k;
        if (is_free(wheel, link, place->slot, &place->value))
            return TS_OK;
    }
    return place_early(wheel, link, wanted, place);
}

/* The message is overdue, and its own slot holds another lap. A later slot whose time has come
 * serves as well, because the message goes to the open slot at once. The order is kept: no slot
 * from its own on has been read. */
static int32_t place_overdue(const ts_wheel *wheel, const ts_link *link, int64_t slot,
                             placing *place)
{
    place->late = 1;
    place->magic &= ~TS_TIMER_MAGIC_ROLL;
    for (int64_t k = 1; k < PROBES && slot + k <= link->write_slot; k++) {
        place->slot = slot + k;
        if (is_free(wheel, link, place->slot, &place->value))
            return TS_OK;
    }
    return TS_BLOCKED;
}

/* No slot takes the message, as on a wheel that is full after the clock was set back. Keep it in
 * memory until it is due, and in a unit of the far wheel for recovery. A delete needs no unit: the
 * state table has it. */
static int32_t place_overflow(placing *place)
{
    place->slot = -1;
    place->magic &= ~TS_TIMER_MAGIC_ROLL;
    place->late = place->far = !(place->magic & TS_TIMER_MAGIC_DELETE);
    return TS_OK;
}

static int32_t place_request(const ts_wheel *wheel, ts_link *link, const ts_states *states,
                             const ts_request *request, placing *place)
{
    int64_t slot = ts_slot_of(request->due_ms, wheel->precision_ms);
    int32_t status, is_delete = (request->flags & TS_FLAG_DELETE) != 0;

    place->magic = TS_TIMER_MAGIC_DEFAULT | (is_delete ? TS_TIMER_MAGIC_DELETE : 0);
    if (request->flags & TS_FLAG_AGAIN)
        place->magic |= TS_TIMER_MAGIC_AGAIN;
    place->slot = -1;
    place->late = place->far = 0;
    if ((request->flags & TS_FLAG_UNUSABLE) || (is_delete && slot < link->read_slot))
        return TS_OK;
    if (!is_delete && ts_state_get(states, request->id) != TS_PENDING)
        return TS_OK;
    if (slot < link->read_slot) {
        status = place_late(wheel, link, slot, place);
    } else {
        status = place_ahead(wheel, link, slot, place);
        if (status == TS_BLOCKED && (request->flags & TS_FLAG_AGAIN))
            status = place_overdue(wheel, link, slot, place);
    }
    return status == TS_BLOCKED && link->overflows ? place_overflow(place) : status;
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
    out->topic_hash = request->topic_hash;
    out->unused = 0;
    out->flags = place->magic & TS_TIMER_MAGIC_ROLL ? TS_FLAG_ROLL : 0;
    out->wake_ms = out->flags ? place->slot * wheel->precision_ms : request->due_ms;
}

static void far_entry(const ts_wheel *wheel, const ts_link *link, const ts_request *request,
                      const placing *place, ts_far_unit *out)
{
    out->id = request->id;
    out->log_offset = request->log_offset;
    out->due_ms = request->due_ms;
    if (place->late)
        out->slot = link->overflow_slot;
    else
        out->slot = ts_slot_of(request->due_ms, wheel->precision_ms) / link->far_width;
    if (out->slot > link->far_last)
        out->slot = link->far_last;
    out->size = request->size;
    out->topic_hash = request->topic_hash;
}

static void write_unit(ts_wheel *wheel, const ts_link *link, const ts_request *request,
                       placing *place, uint8_t *out)
{
    /* A unit that is not linked names a slot that has been read, so that no reader loads it. */
    int64_t slot = place->slot < 0 ? link->write_slot - 1 : place->slot;
    int64_t ahead = slot - link->write_slot;
    /* Write time + delay is the slot's time. If the delay does not fit, the write time is changed:
     * for a late unit in an earlier slot, or after the clock was set back by weeks. */
    int32_t fits = place->slot < 0 || (ahead >= 0 && ahead <= INT32_MAX / wheel->precision_ms);
    /* A late unit in a slot before its own (the clock was set back). A broker must roll it, not
     * deliver it with that slot. This engine uses the due time. */
    int32_t is_before = place->late && place->slot >= 0 &&
                        place->slot < ts_slot_of(request->due_ms, wheel->precision_ms);
    ts_timer_unit unit = {
        .prev_pos = place->slot < 0 ? -1 : place->value.last_pos,
        .magic = place->magic | (is_before ? TS_TIMER_MAGIC_ROLL : 0),
        .write_ms = (fits ? link->write_slot : slot) * wheel->precision_ms,
        .delay_ms = fits ? (int32_t)(ahead * wheel->precision_ms) : 0,
        .log_offset = request->log_offset,
        .size = request->size,
        .topic_hash = request->topic_hash,
    };

    ts_checked_unit_put(out, link->pos, &unit);
    if (place->slot < 0)
        return;
    if (place->value.first_pos < 0)
        place->value.first_pos = link->pos;
    place->value.last_pos = link->pos;
    if (place->magic & TS_TIMER_MAGIC_DELETE)
        place->value.count -= place->value.count > 0;
    else
        place->value.count += place->value.count < INT32_MAX;
    ts_slot_write(wheel, place->slot, &place->value);
}

int32_t ts_timer_link(ts_wheel *wheel, ts_link *link, const ts_states *states,
                      const ts_request *requests, int32_t count, uint8_t *units,
                      int64_t units_bytes, ts_due *late)
{
    int32_t i, status = TS_OK;

    link->bytes = 0;
    link->late_count = link->far_count = 0;
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
        if (place.far)
            far_entry(wheel, link, &requests[i], &place, &link->far[link->far_count++]);
        if (place.late) {
            late_entry(wheel, link, &requests[i], &place, &late[link->late_count++]);
            /* The slot is needed until the message is in the log, so no later request of this batch
             * may take it. */
            if (place.slot >= 0 && place.slot < link->reuse_below)
                link->reuse_below = place.slot;
            if (place.slot >= 0 && place.slot < link->read_below)
                link->read_below = place.slot;
        }
        if ((requests[i].flags & (TS_FLAG_AGAIN | TS_FLAG_UNUSABLE)) == TS_FLAG_AGAIN &&
            place.slot < 0)
            continue;
        write_unit(wheel, link, &requests[i], &place, units + link->bytes);
        if (place.slot >= link->read_slot && place.slot < link->first_slot)
            link->first_slot = place.slot;
        link->bytes += TS_TIMER_UNIT_BYTES;
        link->pos += TS_TIMER_UNIT_BYTES;
    }
    return i > 0 || link->bytes > 0 ? i : status;
}
