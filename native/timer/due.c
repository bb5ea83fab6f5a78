/* Records of the timer topic, as the wheel's services need them: requests to link, and entries to
 * deliver.
 *
 * A request is read from a queue unit on the way to the wheel, a due entry from a chain's unit on
 * the way from it.
 */
#include "format/properties.h"
#include "format/queue_unit.h"
#include "format/timer_unit.h"
#include "log/parse.h"
#include "log/view.h"
#include "timer/request.h"
#include "timer/states.h"

enum { PREFETCH = 10 };

static int32_t request_of(ts_view *view, int64_t log_offset, int32_t size, int64_t queue_offset,
                          const ts_states *states, uint32_t store_id, int64_t precision_ms,
                          ts_tail *tail, ts_request *out)
{
    ts_record record;
    int32_t status = ts_view_record(view, log_offset, &record);

    if (status != TS_OK)
        return status;
    if (record.size != size || record.queue_offset != queue_offset)
        return ts_view_fault(view, log_offset, TS_FAULT_TOPIC);
    ts_request_of(&record, states, store_id, precision_ms, tail, out);
    return TS_OK;
}

int32_t ts_timer_requests(ts_view *view, const uint8_t *units, int32_t count,
                          int64_t queue_offset, const ts_states *states, uint32_t store_id,
                          int64_t precision_ms, ts_request *out)
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
        status = request_of(view, log_offset, size, queue_offset + i, states, store_id,
                            precision_ms, &tail, &out[i]);
        if (status != TS_OK)
            break;
    }
    return i > 0 ? i : status;
}

static int32_t request_again(ts_view *view, const ts_due *due, const ts_states *states,
                             uint32_t store_id, int64_t precision_ms, ts_tail *tail,
                             ts_request *out)
{
    ts_record record;
    int32_t status = ts_view_record(view, due->log_offset, &record);

    if (status != TS_OK)
        return status;
    status = request_of(view, due->log_offset, due->size, record.queue_offset, states, store_id,
                        precision_ms, tail, out);
    if (status != TS_OK)
        return status;
    if (out->flags != 0 || out->id != due->id || out->due_ms != due->due_ms)
        return ts_view_fault(view, due->log_offset, TS_FAULT_PROPERTIES);
    return TS_OK;
}

int32_t ts_due_requests(ts_view *view, const ts_due *due, int32_t count, const ts_states *states,
                        uint32_t store_id, int64_t precision_ms, ts_request *out)
{
    int32_t i, status = TS_OK;
    ts_tail tail = {.real_size = 0};

    for (i = 0; i < count; i++) {
        if (i + PREFETCH < count)
            ts_view_prefetch(view, due[i + PREFETCH].log_offset, due[i + PREFETCH].size);
        status = request_again(view, &due[i], states, store_id, precision_ms, &tail, &out[i]);
        if (status != TS_OK)
            break;
    }
    return i > 0 ? i : status;
}

enum { LOOK_BYTES = 256 }; /* a tail and its CRC; a longer tail is not used */

/* Read time and id from a record's last bytes only, if they are as this store writes them. The head
 * is read, and all CRCs are checked, when the message is delivered. */
static int32_t tail_of(ts_view *view, uint32_t store_id, const ts_tail *tail,
                       const ts_chained *chained, ts_marks *marks)
{
    int64_t available = 0;
    const uint8_t *at = ts_view_at(view, chained->log_offset, &available), *end;
    int32_t size = chained->size < LOOK_BYTES ? chained->size : LOOK_BYTES, group;

    if (at == NULL || chained->size > available || size < TS_PROPERTY_CRC_BYTES)
        return 0;
    end = at + chained->size;
    if (memcmp(end - TS_PROPERTY_CRC_BYTES, "__CRC32#\001", 9) != 0)
        return 0;
    end -= TS_PROPERTY_CRC_BYTES;
    size -= TS_PROPERTY_CRC_BYTES;
    group = ts_group_tail(end - size, size);
    memset(marks, 0, sizeof *marks);
    return ts_tail_time(tail, end - group, size - group, marks) &&
           marks->store_id == store_id && ts_marks_usable(marks);
}

static int32_t marks_of(ts_view *view, const ts_chained *chained, ts_tail *tail, ts_marks *marks,
                        const ts_states *states, uint32_t store_id)
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
    marks->timer_id = ts_marks_id(marks, states, store_id, record.queue_offset);
    return TS_OK;
}

static int32_t due_of(ts_view *view, const ts_states *states, uint32_t store_id,
                      int64_t precision_ms, int64_t read_slot, const ts_chained *chained,
                      ts_tail *tail, ts_due *out)
{
    ts_marks marks;
    int64_t own_slot;

    if (!tail_of(view, store_id, tail, chained, &marks)) {
        int32_t status = marks_of(view, chained, tail, &marks, states, store_id);
        if (status != TS_OK)
            return status;
    }
    out->id = marks.timer_id;
    out->due_ms = ts_marks_due(&marks, precision_ms);
    out->log_offset = chained->log_offset;
    out->slot = chained->slot;
    out->write_ms = chained->write_ms;
    out->size = chained->size;
    out->topic_hash = chained->topic_hash;
    out->unused = 0;
    own_slot = ts_slot_of(out->due_ms, precision_ms);
    /* In its own slot the entry waits until it is due; in an earlier slot it rolls. */
    out->flags = own_slot > chained->slot && own_slot >= read_slot ? TS_FLAG_ROLL : 0;
    out->wake_ms = out->flags ? chained->slot * precision_ms : out->due_ms;
    return TS_OK;
}

/* Remove the entries that wait no more. Return how many are left. This is a separate pass, so that
 * the state table can be prefetched. */
static int32_t keep_waiting(const ts_states *states, ts_due *entries, int32_t count)
{
    int32_t kept = 0;

    for (int32_t i = 0; i < count; i++) {
        if (i + 2 * PREFETCH < count)
            ts_state_prefetch(states, entries[i + 2 * PREFETCH].id);
        if (ts_state_get(states, entries[i].id) != TS_PENDING)
            continue;
        if (kept < i)
            entries[kept] = entries[i];
        kept++;
    }
    return kept;
}

TS_PREFETCHES touch_ends(const ts_view *view, const ts_chained *chained, int32_t from,
                         int32_t count)
{
    for (int32_t i = from; i < from + TS_TOUCHED && i < count; i++)
        ts_view_touch_end(view, chained[i].log_offset, chained[i].size);
}

/* Return how many entries of `chained` were read. The due entries are written without gaps;
 * view->need is their number. */
int32_t ts_due_load(ts_view *view, const ts_states *states, uint32_t store_id,
                    int64_t precision_ms, int64_t read_slot, const ts_chained *chained,
                    int32_t count, ts_due *out)
{
    int32_t i, n = 0, status = TS_OK;
    ts_tail tail = {.real_size = 0};

    touch_ends(view, chained, 0, count);
    for (i = 0; i < count; i++) {
        if (i % TS_TOUCHED == 0)
            touch_ends(view, chained, i + TS_TOUCHED, count);
        if (i + PREFETCH < count)
            ts_view_prefetch_end(view, chained[i + PREFETCH].log_offset,
                                 chained[i + PREFETCH].size);
        if (chained[i].magic & TS_TIMER_MAGIC_DELETE)
            continue; /* the state table has the cancelled state */
        if (chained[i].log_offset < view->begin)
            continue; /* if it waited, it was moved, and has another unit */
        status = due_of(view, states, store_id, precision_ms, read_slot, &chained[i], &tail,
                        &out[n]);
        if (status != TS_OK)
            break;
        n++;
    }
    if (i == 0 && count > 0)
        return status;
    view->need = keep_waiting(states, out, n);
    return i;
}
