/* One put as a record at the log's end. Everything runs under the append lock, on the active
 * staging half. */
#ifndef TS_PUT_H
#define TS_PUT_H

#include "log/append_hints.h"
#include "log/encode.h"
#include "timer/calendar.h"
#include "timer/states.h"

typedef struct {
    const uint8_t *body;
    int32_t body_size;
    const uint8_t *properties; /* text */
    int32_t properties_size;
    ts_slice extra;            /* more text */
    ts_slice tags;             /* values */
    ts_slice keys;
    ts_slice id;
    int64_t due_ms;
    int64_t unique;            /* number of the id that the store makes if the caller has none;
                                * -1: no id */
    int64_t group_start;       /* with group_left: the group of the record */
    int32_t group_left;        /* -1: no group */
} ts_put;

static inline int32_t ts_digits(int64_t n)
{
    int32_t count = 1;

    if (ts_digits_is_time(n)) /* most numbers are times */
        return TS_TIME_DIGITS;
    for (; n >= 10; n /= 10)
        count++;
    return count;
}

/* Write eight hex digits at once: spread them to one a byte, then move those above 9 to the
 * letters. */
static inline void ts_hex_put(uint8_t *at8, uint32_t number)
{
    uint64_t digits = number;

    digits = (digits | digits << 16) & 0x0000FFFF0000FFFFu;
    digits = (digits | digits << 8) & 0x00FF00FF00FF00FFu;
    digits = (digits | digits << 4) & 0x0F0F0F0F0F0F0F0Fu;
    ts_put_u64(at8, digits + 0x3030303030303030u +
                        ts_bytes_from(digits, 10) * ('A' - '9' - 1));
}

#define TS_UNIQUE_DIGITS 12 /* for a number of 48 bits */

static inline void ts_unique_put(uint8_t *at12, int64_t unique)
{
    ts_hex_put(at12, (uint32_t)(unique >> 16));
    ts_hex_put(at12 + 4, (uint32_t)unique); /* writes 4 of them twice */
}

static inline uint8_t *ts_copy_unique(uint8_t *out, const ts_log *log, int64_t unique)
{
    out = TS_COPY_TEXT(out, "UNIQ_KEY\001");
    out = ts_copy(out, log->unique_prefix, 20);
    ts_unique_put(out, unique);
    out[TS_UNIQUE_DIGITS] = 2;
    return out + TS_UNIQUE_DIGITS + 1;
}

/* Return the newest slot time before due: a message is never due at the time of its own slot. */
static inline int64_t ts_out_ms_of(int64_t due_ms, int64_t precision_ms)
{
    int64_t rest = due_ms % precision_ms;

    return rest == 0 ? due_ms - precision_ms : due_ms - rest;
}

static inline void ts_head_of(const ts_log *log, ts_record *head, const ts_route *route,
                              int64_t now_ms)
{
    memset(head, 0, sizeof *head);
    head->queue_id = route->queue_id;
    head->queue_offset = route->next_offset;
    head->log_offset = log->base + log->filled;
    head->born_ms = head->store_ms = now_ms;
    head->born_host = head->store_host = log->host;
    head->born_host_size = head->store_host_size = 8;
    head->topic = route->topic;
    head->topic_size = route->topic_size;
    head->magic = ts_record_magic(route->topic_size);
}

/* Set the sizes, and write everything before the properties' text, without the body's CRC. */
static inline uint8_t *ts_record_open(uint8_t *out, ts_record *head, const uint8_t *body,
                                      int32_t body_size)
{
    head->body_size = body_size;
    head->size = ts_record_bytes(head);
    out = ts_head_put(out, head);
    out = ts_copy(out, body, body_size);
    return ts_topic_put(out, head);
}

/* Set both CRCs, and append the record. */
static inline void ts_record_close(ts_log *log, const ts_record *head)
{
    uint8_t *record = log->staging + log->filled;

    ts_body_crc_set(record, TS_RECORD_AT_BODY, head->body_size);
    if (log->property_crc)
        ts_property_crc_set(record, head->size);
    log->filled += head->size;
    log->last_store_ms = head->store_ms;
    log->out[0] = head->queue_offset;
}

/* Return the size of the pair: name 0x01 value 0x02. Without a value there is no pair. */
static inline int32_t ts_slice_pair_bytes(const ts_slice *given, int32_t name_size)
{
    return given->size > 0 ? name_size + given->size + 2 : 0;
}

static inline uint8_t *ts_copy_slice(uint8_t *out, const char *name, const ts_slice *given)
{
    if (given->size == 0)
        return out;
    out = ts_copy(out, name, (int32_t)strlen(name));
    *out++ = 1;
    out = ts_copy(out, given->at, given->size);
    *out++ = 2;
    return out;
}

/* Return the size of a put's properties, as ts_put_append writes them. */
static inline int64_t ts_put_properties(const ts_log *log, const ts_route *route,
                                        const ts_put *put, int32_t is_timer)
{
    int64_t size = (int64_t)put->properties_size + put->extra.size;

    size += ts_slice_pair_bytes(&put->tags, 4);
    size += ts_slice_pair_bytes(&put->keys, 4);
    if (put->id.size > 0 || put->unique >= 0)
        size += 8 + 2 + (put->id.size > 0 ? put->id.size : 32);
    if (is_timer)
        size += 16 + 12 + 4 + ts_digits(put->due_ms) +
                ts_digits(ts_out_ms_of(put->due_ms, log->precision_ms)) + route->real_size +
                TS_ID_PAIR_BYTES;
    if (put->group_left >= 0)
        size += TS_GROUP_PAIR_BYTES;
    return size + (log->property_crc ? TS_PROPERTY_CRC_BYTES : 0);
}

/* Write the properties' text without its CRC. Return its end. id: of a timer. */
static inline uint8_t *ts_put_texts(uint8_t *out, const ts_log *log, const ts_route *route,
                                    const ts_put *put, int32_t is_timer, int64_t id)
{
    out = ts_copy(out, put->properties, put->properties_size);
    out = ts_copy(out, put->extra.at, put->extra.size);
    out = ts_copy_slice(out, "TAGS", &put->tags);
    out = ts_copy_slice(out, "KEYS", &put->keys);
    if (put->id.size > 0)
        out = ts_copy_slice(out, "UNIQ_KEY", &put->id);
    else if (put->unique >= 0)
        out = ts_copy_unique(out, log, put->unique);
    if (is_timer) {
        out = TS_COPY_NUMBER(out, "TIMER_DELIVER_MS", put->due_ms);
        out = TS_COPY_NUMBER(out, "TIMER_OUT_MS", ts_out_ms_of(put->due_ms, log->precision_ms));
        out = ts_copy(out, route->real, route->real_size);
        out = ts_copy_timer_id(out, log->store_id, id);
    }
    return put->group_left < 0 ? out : ts_copy_group(out, put->group_start, put->group_left);
}

/* Count one more timer that waits for the topic. */
static inline void ts_put_waits(ts_log *log, ts_route *route, int64_t id, int64_t due_ms)
{
    ts_states_put(log->states, id, TS_PENDING);
    log->states->pending++;
    route->pending++;
    if (log->calendar != NULL)
        ts_calendar_add(log->calendar, route, due_ms, 1);
}

/* Write the append hint of a put whose only text is the id that the store makes. */
static inline void ts_put_hint(ts_log *log, ts_route *route, const ts_put *put,
                               const ts_record *head, int32_t is_timer)
{
    ts_route *target = is_timer ? log->timer_route : route;
    int32_t is_plain = put->unique >= 0 && put->properties_size == 0 && put->extra.size == 0 &&
                       put->tags.size == 0 && put->keys.size == 0 && put->id.size == 0;
    ts_append_hint *hint = is_plain ? ts_hint_next(log) : NULL;
    uint8_t number[TS_UNIQUE_DIGITS];

    if (hint == NULL)
        return;
    ts_unique_put(number, put->unique);
    *hint = (ts_append_hint){
        .log_offset = head->log_offset, .queue_offset = head->queue_offset,
        .store_ms = head->store_ms, .due_ms = put->due_ms, .route = target,
        .real = is_timer ? route : NULL, .size = head->size,
        .key_hash = ts_key_hash(ts_hint_id_prefix(log, target), number, TS_UNIQUE_DIGITS),
    };
    ts_hint_added(log);
}

/* Write the record at the log's end. There is space for it, and its timer id has a state. */
static inline void ts_put_write(ts_log *log, ts_route *route, const ts_put *put, ts_record *head,
                                int32_t is_timer)
{
    ts_route *target = is_timer ? log->timer_route : route;
    int64_t id = target->next_offset;
    uint8_t *out = ts_record_open(log->staging + log->filled, head, put->body, put->body_size);

    ts_put_texts(out, log, route, put, is_timer, id);
    if (is_timer)
        ts_put_waits(log, route, id, put->due_ms);
    target->next_offset++;
    ts_put_hint(log, route, put, head, is_timer);
    ts_record_close(log, head);
}

/* Return TS_OK if another timer may be appended: its id has a state, and the calendar has space;
 * else set log->need. */
static inline int32_t ts_put_may_wait(ts_log *log)
{
    int64_t id = log->timer_route->next_offset;

    if (id < log->states->end && ts_calendar_has_space(log->calendar, 1))
        return TS_OK;
    log->need = id;
    return TS_NEED_STATES;
}

/* Append one put: to the real topic if it is due, else to the timer topic as a pending timer. */
static inline int32_t ts_put_append(ts_log *log, ts_route *route, const ts_put *put, int64_t now_ms)
{
    int32_t is_timer = put->due_ms > now_ms;
    ts_route *target = is_timer ? log->timer_route : route;
    int64_t properties = ts_put_properties(log, route, put, is_timer);
    ts_record head;

    if (properties > TS_PROPERTIES_BYTES_MAX)
        return TS_INVALID;
    ts_head_of(log, &head, target, now_ms);
    head.properties_size = (int32_t)properties;
    head.body_size = put->body_size;
    if (ts_log_has_space(log, ts_record_bytes(&head)) != TS_OK)
        return TS_NEED_SPACE;
    if (is_timer && ts_put_may_wait(log) != TS_OK)
        return TS_NEED_STATES;
    ts_put_write(log, route, put, &head, is_timer);
    log->put_count++;
    return TS_OK;
}

#endif
