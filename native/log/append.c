/* Appending single records to the commit log: puts, cancels, reschedules, and the blank at a
 * segment's end.
 *
 * Locking: everything here runs under the append lock, on the active staging half. A record is
 * complete before the filled mark passes it. So recovery sees nothing of a record if the process is
 * killed in the middle of the copy.
 */
#include "log/message_ids.h"
#include "log/template_cache.h"

int64_t ts_template_cache_bytes(void)
{
    return TS_TEMPLATE_CACHE_SIZE * (int64_t)sizeof(ts_cached_template);
}

/* Append a put with a cached template. Return 1 if the cache has none for it. */
static int32_t append_from_template(ts_log *log, ts_route *route, const ts_put *put, int64_t now_ms)
{
    uint8_t *record = log->staging + log->filled;
    ts_record_template *template = put->properties_size > 0
                        ? NULL
                        : ts_template_cache_get(log, route, put, put->due_ms > now_ms, now_ms);
    int32_t status = template == NULL ? 1 : ts_template_append(template, log, route, put);

    if (status != TS_OK)
        return status;
    ts_body_crc_set(record, TS_RECORD_AT_BODY, put->body_size);
    if (log->property_crc)
        ts_property_crc_set(record, ts_template_bytes(template, put->body_size));
    return TS_OK;
}

/* wanted_ms is the time of the delivery. */
static int64_t put_one(ts_log *log, ts_route *route, const uint8_t *body, int32_t body_size,
                       int64_t due_ms, const uint8_t *properties, int32_t properties_size,
                       int64_t now_ms, int64_t wanted_ms)
{
    ts_put put = {.body = body, .body_size = body_size, .properties = properties,
                  .properties_size = properties_size, .due_ms = due_ms,
                  .unique = log->unique_counter, .group_left = -1};
    int64_t log_offset = log->base + log->filled;
    int32_t status = append_from_template(log, route, &put, now_ms);

    if (status > 0)
        status = ts_put_append(log, route, &put, now_ms);
    if (status != TS_OK)
        return status;
    log->out[1] = log->unique_counter++;
    ts_log_publish_due(log, wanted_ms, now_ms);
    return log_offset;
}

int64_t ts_put_one(ts_log *log, ts_route *route, const uint8_t *body, int32_t body_size,
                   int64_t due_ms, const uint8_t *properties, int32_t properties_size,
                   int64_t now_ms)
{
    return put_one(log, route, body, body_size, due_ms, properties, properties_size, now_ms,
                   due_ms);
}

int64_t ts_put_named(ts_log *log, ts_ids *ids, const uint8_t *topic, int32_t topic_size,
                     ts_route *route, const uint8_t *body, int32_t body_size, int64_t due_ms,
                     const uint8_t *properties, int32_t properties_size, const uint8_t *id,
                     int32_t id_size, int64_t now_ms, int32_t *is_new)
{
    ts_put put = {.body = body, .body_size = body_size, .properties = properties,
                  .properties_size = properties_size, .id = {id, id_size}, .due_ms = due_ms,
                  .group_left = -1};
    int64_t log_offset = log->base + log->filled, first, store_ms;
    uint64_t hash = 0;
    int32_t status;

    *is_new = 0;
    if (ids != NULL) {
        hash = ts_id_hash(ts_identity(topic, topic_size), id, id_size);
        first = ts_id_find(ids, hash, INT64_MAX, now_ms, &store_ms);
        if (first >= 0)
            return first;
        if (ts_ids_full(ids)) {
            log->need = 1;
            return TS_NEED_IDS;
        }
    }
    status = ts_put_append(log, route, &put, now_ms);
    if (status != TS_OK)
        return status;
    log->out[1] = log_offset;
    if (ids != NULL)
        ts_id_add(ids, hash, log_offset, now_ms);
    ts_log_publish_due(log, due_ms, now_ms);
    *is_new = 1;
    return log_offset;
}

int64_t ts_put_level(ts_log *log, ts_route *route, const uint8_t *body, int32_t body_size,
                     const uint8_t *properties, int32_t properties_size, int64_t now_ms,
                     int64_t wanted_ms)
{
    return put_one(log, route, body, body_size, 0, properties, properties_size, now_ms, wanted_ms);
}

/* A delete record in the broker's format, so that a broker applies it, too. `left` is the number of
 * bytes of its group after this record. */
typedef struct {
    ts_record head;
    const uint8_t *properties;
    int32_t properties_size;
    int32_t left; /* -1: no group */
} delete_one;

static int32_t delete_bytes(const ts_log *log, delete_one *one, int64_t now_ms)
{
    int32_t added = TS_ID_PAIR_BYTES + (one->left < 0 ? 0 : TS_GROUP_PAIR_BYTES) +
                    (log->property_crc ? TS_PROPERTY_CRC_BYTES : 0);

    ts_head_of(log, &one->head, log->timer_route, now_ms);
    one->head.properties_size = one->properties_size + added;
    one->head.body_size = 1;
    return ts_record_bytes(&one->head);
}

static void append_delete(ts_log *log, ts_route *real, int64_t id, delete_one *one)
{
    static const uint8_t body[1] = {'0'};
    uint8_t *out = ts_record_open(log->staging + log->filled, &one->head, body, 1);

    out = ts_copy(out, one->properties, one->properties_size);
    out = ts_copy_timer_id(out, log->store_id, id);
    if (one->left >= 0)
        ts_copy_group(out, one->head.log_offset, one->left);
    ts_states_put(log->states, id, TS_CANCELLED);
    log->states->pending--;
    real->pending--;
    log->timer_route->next_offset++;
    ts_record_close(log, &one->head);
}

/* Return TS_OK if records with timer-queue offsets up to `id` may be appended; else set log->need.
 */
static int32_t states_reach(ts_log *log, int64_t id)
{
    if (id < log->states->end)
        return TS_OK;
    log->need = id;
    return TS_NEED_STATES;
}

int32_t ts_cancel(ts_log *log, ts_route *real, int64_t id, const uint8_t *properties,
                  int32_t properties_size, int64_t now_ms)
{
    delete_one one = {.properties = properties, .properties_size = properties_size, .left = -1};
    int32_t state = ts_state_get(log->states, id), size = delete_bytes(log, &one, now_ms);

    if (state == TS_PENDING) {
        if (one.head.properties_size > TS_PROPERTIES_BYTES_MAX)
            return TS_INVALID;
        if (ts_log_has_space(log, size) != TS_OK)
            return TS_NEED_SPACE;
        if (states_reach(log, log->timer_route->next_offset) != TS_OK)
            return TS_NEED_STATES;
        append_delete(log, real, id, &one);
        log->cancel_count++;
        ts_log_publish_far(log); /* the state decides; the record may wait for the next dispatch */
    }
    log->out[1] = log->base + log->filled;
    return state;
}

/* Fill in the fields of an encoded record that depend on its place in the log. The record ends with
 * its timer id if it is a source, its group, and its CRC if records have one. */
static void place_record(ts_log *log, ts_route *target, const uint8_t *record, int32_t size,
                         int64_t group_start, int64_t now_ms)
{
    uint8_t *out = log->staging + log->filled, *end;
    int32_t is_v6;

    ts_copy(out, record, size);
    is_v6 = (ts_get_i32(out + TS_RECORD_AT_SYS_FLAG) & TS_SYS_BORN_HOST_IPV6) != 0;
    ts_put_i64(out + TS_RECORD_AT_QUEUE_OFFSET, target->next_offset);
    ts_put_i64(out + TS_RECORD_AT_LOG_OFFSET, log->base + log->filled);
    ts_put_i64(out + TS_RECORD_AT_BORN_HOST + (is_v6 ? 20 : 8), now_ms);
    end = out + size - (log->property_crc ? TS_PROPERTY_CRC_BYTES : 0) - TS_GROUP_PAIR_BYTES;
    ts_copy_group(end, group_start, 0);
    if (target == log->timer_route)
        ts_copy_timer_id(end - TS_ID_PAIR_BYTES, log->store_id, target->next_offset);
    if (log->property_crc)
        ts_property_crc_set(out, size);
    log->out[0] = target->next_offset++;
    log->filled += size;
    log->last_store_ms = now_ms;
}

int32_t ts_reschedule(ts_log *log, ts_route *real, int64_t id, const uint8_t *properties,
                      int32_t properties_size, ts_route *target, const uint8_t *record,
                      int32_t record_size, int64_t now_ms)
{
    delete_one one = {.properties = properties, .properties_size = properties_size,
                      .left = record_size};
    int32_t state = ts_state_get(log->states, id), is_timer = target == log->timer_route;
    int32_t size = delete_bytes(log, &one, now_ms);

    if (state == TS_PENDING) {
        if (one.head.properties_size > TS_PROPERTIES_BYTES_MAX)
            return TS_INVALID;
        if (ts_log_has_space(log, size + record_size) != TS_OK)
            return TS_NEED_SPACE;
        if (states_reach(log, log->timer_route->next_offset + is_timer) != TS_OK)
            return TS_NEED_STATES;
        append_delete(log, real, id, &one);
        place_record(log, target, record, record_size, one.head.log_offset, now_ms);
        if (is_timer) {
            ts_states_put(log->states, log->out[0], TS_PENDING);
            log->states->pending++;
            real->pending++;
        }
        log->reschedule_count++;
        ts_log_publish(log); /* both records or neither: the mark passes them in one step */
    }
    log->out[1] = log->base + log->filled;
    return state;
}

int32_t ts_blank(ts_log *log)
{
    int64_t at = log->base + log->filled;
    int64_t left = log->segment_bytes - at % log->segment_bytes;

    if (left < TS_BLANK_BYTES)
        return TS_INVALID;
    ts_blank_put(log->staging + log->filled, (int32_t)left, at);
    log->filled += TS_BLANK_BYTES;
    ts_log_publish(log);
    return TS_OK;
}

int32_t ts_encode(uint8_t *out, int32_t out_bytes, const uint8_t *topic, int32_t topic_size,
                  int32_t queue_id, int64_t queue_offset, int64_t log_offset, int32_t flag,
                  int32_t sys_flag, int64_t born_ms, const uint8_t *born_host, int64_t store_ms,
                  const uint8_t *store_host, const uint8_t *body, int32_t body_size,
                  const uint8_t *properties, int32_t properties_size, int32_t property_crc)
{
    ts_record head = {
        .queue_id = queue_id, .queue_offset = queue_offset, .log_offset = log_offset,
        .flag = flag, .sys_flag = sys_flag, .born_ms = born_ms, .born_host = born_host,
        .born_host_size = sys_flag & TS_SYS_BORN_HOST_IPV6 ? 20 : 8, .store_ms = store_ms,
        .store_host = store_host, .store_host_size = sys_flag & TS_SYS_STORE_HOST_IPV6 ? 20 : 8,
        .topic = topic, .topic_size = topic_size, .magic = ts_record_magic(topic_size),
        .properties_size = properties_size + (property_crc ? TS_PROPERTY_CRC_BYTES : 0),
        .body_size = body_size,
    };

    if (topic_size < 1 || topic_size > 255 || body_size < 0 || properties_size < 0 ||
        head.properties_size > TS_PROPERTIES_BYTES_MAX || ts_record_bytes(&head) > out_bytes)
        return TS_INVALID;
    ts_copy(ts_record_open(out, &head, body, body_size), properties, properties_size);
    ts_body_crc_set(out, TS_RECORD_AT_BODY + head.born_host_size - 8 + head.store_host_size - 8,
                    body_size);
    if (property_crc)
        ts_property_crc_set(out, head.size);
    return head.size;
}
