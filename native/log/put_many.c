/* Puts of many messages, given as columns: as many as there is space for, or as one group, of which
 * the log holds all or none (format/group.h).
 *
 *   head (optional)  left = all rows            describes the group: timerstore/ingest
 *   row              left = all later rows
 *   ...
 *   row              left = 0
 *
 * The filled mark passes a group in one step, and space is checked for the whole group. So neither
 * a kill of the process nor the end of a segment divides it.
 */
#include "base/hash.h"
#include "log/column_batch.h"
#include "log/critical_section.h"
#include "log/message_ids.h"
#include "log/record_template.h"

static ts_put put_of(const ts_column_batch *rows, int32_t row)
{
    ts_slice body = ts_body_of(rows, row);

    return (ts_put){
        .body = body.at,
        .body_size = body.size,
        .properties = rows->properties,
        .properties_size = rows->properties_size,
        .extra = ts_slice_of(rows->extra, rows->extra_offsets, row),
        .tags = ts_slice_of(rows->tags, rows->tag_offsets, row),
        .keys = ts_slice_of(rows->keys, rows->key_offsets, row),
        .id = ts_slice_of(rows->ids, rows->id_offsets, row),
        .due_ms = rows->due_ms == NULL ? 0 : rows->due_ms[row],
        .unique = rows->first_unique + row,
        .group_left = -1,
    };
}

/* Return whether rows differ only in body and time. */
static int32_t are_plain(const ts_column_batch *rows)
{
    return rows->extra == NULL && rows->tags == NULL && rows->keys == NULL && rows->ids == NULL &&
           rows->first_unique >= 0;
}

enum {
    TEMPLATE_ROWS_MIN = 4, /* fewer rows are appended without templates */
    CRC_DELAY_BYTES = 4096 /* about ten records */
};

/* Make the templates for due and for pending messages, as far as possible. */
static void make_templates(ts_record_template templates[2], const ts_log *log, ts_route *route,
                           const ts_column_batch *rows, int32_t from, int32_t to, int64_t now_ms)
{
    templates[0].text_size = templates[1].text_size = 0;
    if (to - from < TEMPLATE_ROWS_MIN || !are_plain(rows))
        return;
    for (int32_t is_timer = 0; is_timer < 2; is_timer++) {
        ts_put first = put_of(rows, from);

        ts_template_make(&templates[is_timer], log, route, &first, is_timer, now_ms);
    }
}

/* Append row i with its template. Return 1 if it has none. */
static int32_t append_with_template(ts_log *log, ts_route *route,
                                    const ts_record_template templates[2],
                                    const ts_column_batch *rows, int32_t i, int64_t now_ms)
{
    int64_t due_ms = rows->due_ms == NULL ? 0 : rows->due_ms[i];
    ts_slice body = ts_body_of(rows, i);
    ts_put put = {.body = body.at, .body_size = body.size, .unique = rows->first_unique + i,
                  .due_ms = due_ms};

    return ts_template_append(&templates[due_ms > now_ms], log, route, &put);
}

/* How many rows have their CRCs. */
typedef struct {
    int32_t bodies;
    int32_t records;
} crcs_set;

static int32_t is_far_behind(const int64_t *log_offsets, int32_t row, int32_t end, int64_t log_end,
                             int64_t bytes)
{
    return row < end && log_end - (row + 1 < end ? log_offsets[row + 1] : log_end) >= bytes;
}

/* Set the CRCs of the rows before `end` that end at least `behind` bytes before the log's end. They
 * are not set at once, because a read of recent stores waits until all of them have left the
 * processor's store buffer. The CRC of the record covers that of the body, so the latter is set
 * well before it. */
static void set_row_crcs(const ts_log *log, const int64_t *log_offsets, crcs_set *done, int32_t end,
                         int64_t log_end, int64_t behind)
{
    for (; is_far_behind(log_offsets, done->bodies, end, log_end, behind / 2); done->bodies++) {
        uint8_t *record = log->staging + (log_offsets[done->bodies] - log->base);

        ts_body_crc_set(record, TS_RECORD_AT_BODY, ts_get_i32(record + TS_RECORD_AT_BODY_SIZE));
    }
    for (; is_far_behind(log_offsets, done->records, end, log_end, behind); done->records++) {
        uint8_t *record = log->staging + (log_offsets[done->records] - log->base);

        if (log->property_crc)
            ts_property_crc_set(record, ts_get_i32(record + TS_RECORD_AT_SIZE));
    }
}

/* Return when the first row is due; 0: now. */
static int64_t soonest_of(const ts_column_batch *rows, int32_t from, int32_t to)
{
    int64_t soonest_ms = rows->due_ms == NULL ? 0 : INT64_MAX;

    for (int32_t i = from; i < to && soonest_ms > 0; i++)
        if (rows->due_ms[i] < soonest_ms)
            soonest_ms = rows->due_ms[i];
    return soonest_ms;
}

int32_t ts_put_many(ts_log *log, ts_route *route, const ts_column_batch *rows, int32_t from,
                    int32_t to, int64_t now_ms, int64_t *log_offsets, int64_t *queue_offsets)
{
    int32_t i, status = TS_OK;
    crcs_set done = {from, from};
    ts_record_template templates[2];

    make_templates(templates, log, route, rows, from, to, now_ms);
    for (i = from; i < to && i < rows->count; i++) {
        int64_t log_offset = log_offsets[i] = log->base + log->filled;

        set_row_crcs(log, log_offsets, &done, i, log_offset, CRC_DELAY_BYTES);
        status = append_with_template(log, route, templates, rows, i, now_ms);
        if (status > 0) {
            ts_put put = put_of(rows, i);

            set_row_crcs(log, log_offsets, &done, i, log_offset, 0);
            done = (crcs_set){i + 1, i + 1}; /* ts_put_append sets its CRCs itself */
            status = ts_put_append(log, route, &put, now_ms);
        }
        if (status != TS_OK)
            break;
        queue_offsets[i] = log->out[0];
    }
    set_row_crcs(log, log_offsets, &done, i, log->base + log->filled, 0);
    ts_log_publish_due(log, soonest_of(rows, from, i), now_ms);
    return i > from ? i - from : status;
}

int32_t ts_put_many_locking(ts_log *log, ts_route *route, const ts_column_batch *rows, int32_t from,
                            int32_t to, int32_t hold, int64_t now_ms, int64_t *log_offsets,
                            int64_t *queue_offsets, int32_t *status, int64_t *need)
{
    int32_t at = from, got;

    *status = TS_OK;
    while (at < to) {
        *status = ts_log_lock(log);
        if (*status != TS_OK)
            break;
        got = ts_put_many(log, route, rows, at, to - at < hold ? to : at + hold, now_ms,
                          log_offsets, queue_offsets);
        *need = log->need;
        ts_log_unlock(log);
        if (got <= 0) {
            *status = got;
            break;
        }
        at += got;
    }
    return at - from;
}

int32_t ts_put_once(ts_log *log, ts_ids *ids, uint64_t topic_hash, ts_route *route,
                    const ts_column_batch *rows, int32_t from, int32_t to, const int64_t *below,
                    int64_t once_ms, int64_t now_ms, int64_t *log_offsets, int64_t *queue_offsets)
{
    int32_t i, status = TS_OK;

    for (i = from; i < to && i < rows->count; i++) {
        ts_put put = put_of(rows, i);
        uint64_t hash = 0;

        if (put.id.size > 0) {
            int64_t store_ms;

            hash = ts_id_hash(topic_hash, put.id.at, put.id.size);
            log_offsets[i] = ts_id_find(ids, hash, below[i], now_ms, &store_ms);
            queue_offsets[i] = TS_DUPLICATE;
            if (log_offsets[i] >= 0)
                continue;
            if (ts_ids_full(ids)) {
                status = TS_NEED_IDS;
                log->need = 1;
                break;
            }
        }
        log_offsets[i] = log->base + log->filled;
        status = ts_put_append(log, route, &put, now_ms);
        if (status != TS_OK)
            break;
        queue_offsets[i] = log->out[0];
        if (put.id.size > 0)
            ts_id_add(ids, hash, log_offsets[i], once_ms);
    }
    ts_log_publish(log);
    return i > from ? i - from : status;
}

/* Return the size of a record of a group, or 0 if its properties are too large. */
static int32_t grouped_bytes(const ts_log *log, const ts_route *route, const ts_put *put,
                             int64_t now_ms, ts_record *head, int32_t *is_timer)
{
    int64_t properties;
    const ts_route *target;

    *is_timer = put->due_ms > now_ms;
    target = *is_timer ? log->timer_route : route;
    properties = ts_put_properties(log, route, put, *is_timer);
    if (properties > TS_PROPERTIES_BYTES_MAX)
        return 0;
    ts_head_of(log, head, target, now_ms);
    head->properties_size = (int32_t)properties;
    head->body_size = put->body_size;
    return ts_record_bytes(head);
}

int32_t ts_batch_measure(const ts_log *log, const ts_route *route, const ts_column_batch *rows,
                         int32_t from, int32_t most, int64_t limit, int64_t now_ms, int64_t *bytes,
                         int32_t *timers)
{
    int32_t i;

    *bytes = 0;
    *timers = 0;
    for (i = from; i < rows->count && i - from < most; i++) {
        ts_put put = put_of(rows, i);
        ts_record head;
        int32_t size, is_timer;

        put.group_left = 0;
        size = grouped_bytes(log, route, &put, now_ms, &head, &is_timer);
        if (size == 0 || *bytes + size > limit)
            break;
        *bytes += size;
        *timers += is_timer;
    }
    return i - from;
}

int32_t ts_put_many_fits(const ts_log *log, const ts_route *route, const ts_column_batch *rows,
                         int32_t body_bytes, int64_t now_ms)
{
    int64_t most = 0; /* bytes of a row without its body; a time of 19 digits is the longest */

    for (int32_t waits = 0; waits < 2; waits++) {
        ts_put put = {.properties_size = rows->properties_size, .group_left = -1,
                      .due_ms = waits ? INT64_MAX : 0};
        ts_record head;
        int32_t is_timer, size = grouped_bytes(log, route, &put, now_ms, &head, &is_timer);

        if (size == 0)
            return 0;
        most = size > most ? size : most;
    }
    most = most * rows->count + body_bytes;
    return are_plain(rows) && log->filled + most <= log->staging_bytes &&
           log->base + log->filled + most <= log->append_limit &&
           log->timer_route->next_offset + rows->count <= log->states->end &&
           ts_calendar_has_space(log->calendar, rows->count);
}

static ts_put head_put(const uint8_t *head, int32_t head_size)
{
    return (ts_put){.body = head, .body_size = head_size, .unique = -1};
}

int64_t ts_group_head_bytes(const ts_log *log, const ts_route *route, int32_t head_size)
{
    ts_put put = head_put(NULL, head_size);
    int32_t is_timer;
    ts_record head;

    return grouped_bytes(log, route, &put, 0, &head, &is_timer);
}

static void append_grouped(ts_log *log, ts_route *route, ts_put *put, int64_t start, int64_t *left,
                           int64_t now_ms)
{
    ts_record head;
    int32_t is_timer;

    put->group_left = 0;
    *left -= grouped_bytes(log, route, put, now_ms, &head, &is_timer);
    put->group_start = start;
    put->group_left = (int32_t)*left;
    ts_put_write(log, route, put, &head, is_timer);
}

int32_t ts_put_group(ts_log *log, ts_route *head_route, const uint8_t *head, int32_t head_size,
                     ts_route *route, const ts_column_batch *rows, int32_t from, int32_t count,
                     int64_t bytes, int32_t timers, int64_t now_ms, int64_t *log_offsets,
                     int64_t *queue_offsets)
{
    int64_t start = log->base + log->filled, last_id = log->timer_route->next_offset + timers - 1;
    int64_t left = bytes + (head == NULL ? 0 : ts_group_head_bytes(log, head_route, head_size));
    int64_t head_offset = -1;

    if (left > INT32_MAX || from < 0 || count < 0 || from + count > rows->count)
        return TS_INVALID;
    if (ts_log_has_space(log, (int32_t)left) != TS_OK)
        return TS_NEED_SPACE;
    if (timers > 0 &&
        (last_id >= log->states->end || !ts_calendar_has_space(log->calendar, timers))) {
        log->need = last_id;
        return TS_NEED_STATES;
    }
    if (head != NULL) {
        ts_put put = head_put(head, head_size);

        append_grouped(log, head_route, &put, start, &left, now_ms);
        head_offset = log->out[0];
    }
    for (int32_t i = from; i < from + count; i++) {
        ts_put put = put_of(rows, i);

        if (log_offsets != NULL)
            log_offsets[i] = log->base + log->filled;
        append_grouped(log, route, &put, start, &left, now_ms);
        if (queue_offsets != NULL)
            queue_offsets[i] = log->out[0];
    }
    log->put_count += count;
    log->out[0] = head_offset;
    log->out[1] = log->base + log->filled;
    ts_log_publish(log); /* all or none: the mark passes them in one step */
    return TS_OK;
}

static inline uint64_t mixed(uint64_t state, uint64_t value)
{
    state ^= value;
    state *= 0x9E3779B97F4A7C15u;
    return state ^ (state >> 29);
}

static inline uint64_t text_of(const ts_slice *given)
{
    return (uint64_t)(uint32_t)given->size << 32 | ts_crc32(0, given->at, given->size);
}

uint64_t ts_batch_digest(const ts_column_batch *rows, const uint8_t *topic, int32_t topic_size,
                         int32_t from, int32_t to, uint64_t digest)
{
    uint64_t same = mixed(ts_identity(topic, topic_size),
                          ts_identity(rows->properties, rows->properties_size));

    for (int32_t i = from; i < to && i < rows->count; i++) {
        ts_put put = put_of(rows, i);
        ts_slice body = {put.body, put.body_size};

        digest = mixed(digest, same);
        digest = mixed(digest, (uint64_t)put.due_ms);
        digest = mixed(digest, text_of(&body));
        if (rows->extra != NULL)
            digest = mixed(digest, text_of(&put.extra) + 1);
        if (put.tags.size > 0)
            digest = mixed(digest, text_of(&put.tags) + 2);
        if (put.keys.size > 0)
            digest = mixed(digest, text_of(&put.keys) + 3);
        if (put.id.size > 0)
            digest = mixed(digest, text_of(&put.id) + 4);
    }
    return digest;
}
