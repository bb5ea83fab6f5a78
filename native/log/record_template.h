/* Record template: the common bytes of many puts to one queue, filled in for each put.
 *
 *   | head, 88 bytes        | body | topic, properties                                | CRC |
 *     size, body CRC and            number of the id; of a timer its times and its id
 *     size, both offsets
 *
 * The fields of the second and third line are filled in. A template is for puts that differ only in
 * their bodies, whose ids the store makes, and whose times have 13 digits. It is made by the code
 * that writes any other put, so its records have the same bytes. It is valid for the time of its
 * puts, now_ms, which can be changed. All other inputs are constant for the lifetime of the log and
 * route.
 */
#ifndef TS_RECORD_TEMPLATE_H
#define TS_RECORD_TEMPLATE_H

#include "log/put.h"

enum { TS_TEMPLATE_TEXT_BYTES = 1024 }; /* for longer texts the copy takes as long as everything
                                         * else */

typedef struct {
    ts_route *target;
    int32_t is_timer;
    int32_t text_size;    /* topic and properties with their CRC; 0: there is no template */
    int32_t at_unique;    /* offsets in the text */
    int32_t at_due;       /* of a timer */
    int32_t at_out;
    int32_t at_timer_id;
    int32_t has_hint;     /* puts get an append hint, with the next three values */
    int32_t has_tags;
    int32_t tags;
    int64_t now_ms;
    uint32_t key_prefix;  /* Java hash of `topic#` and the fixed part of the id */
    uint8_t head[TS_RECORD_AT_BODY];
    uint8_t text[TS_TEMPLATE_TEXT_BYTES];
} ts_record_template;

/* Return whether a row with these times fits a template for timers. */
static inline int32_t ts_template_fits(int64_t due_ms, int64_t out_ms)
{
    return ts_digits_is_time(due_ms) && ts_digits_is_time(out_ms);
}

/* Set the values that the append hints of all puts share. There are no hints if the caller sets
 * keys. */
static inline void ts_template_set_hint(ts_record_template *template, const ts_log *log,
                                        int32_t topic_size, int32_t properties_size)
{
    const uint8_t *id = template->text + template->at_unique - 20;
    ts_names names;

    template->has_hint = 0;
    ts_names_get(template->text + 1 + topic_size + 2, properties_size, &names);
    if (names.unique_key.at != id || names.keys.at != NULL ||
        template->target->kind == TS_ROUTE_LEVELS)
        return;
    template->has_hint = 1;
    template->has_tags = names.tags.at != NULL;
    template->tags = names.tags.at == NULL ? 0 : ts_java_hash(names.tags.at, names.tags.size);
    template->key_prefix = ts_hint_id_prefix(log, template->target);
}

/* Make the template for puts like `any`, which is one of them. Its body and time do not matter. */
static inline void ts_template_make(ts_record_template *template, const ts_log *log,
                                    ts_route *route,
                                    const ts_put *any, int32_t is_timer, int64_t now_ms)
{
    int32_t crc_size = log->property_crc ? TS_PROPERTY_CRC_BYTES : 0;
    ts_put sample = *any;
    ts_record head;
    int64_t properties;
    uint8_t *end;

    sample.due_ms = 9999999999999;
    template->target = is_timer ? log->timer_route : route;
    template->is_timer = is_timer;
    template->text_size = 0;
    template->now_ms = now_ms;
    properties = ts_put_properties(log, route, &sample, is_timer);
    ts_head_of(log, &head, template->target, now_ms);
    if (head.magic != TS_RECORD_MAGIC_V1 || properties > TS_PROPERTIES_BYTES_MAX ||
        3 + head.topic_size + properties > TS_TEMPLATE_TEXT_BYTES)
        return;
    head.properties_size = (int32_t)properties;
    ts_head_put(template->head, &head);
    end = ts_topic_put(template->text, &head);
    end = ts_put_texts(end, log, route, &sample, is_timer, 0);
    template->text_size = (int32_t)(end - template->text) + crc_size;
    template->at_timer_id = (int32_t)(end - template->text) - TS_TIMER_ID_TEXT_BYTES - 1;
    template->at_out = template->at_timer_id - (TS_ID_PAIR_BYTES - TS_TIMER_ID_TEXT_BYTES - 1) -
                   route->real_size - 1 - TS_TIME_DIGITS;
    template->at_due =
        template->at_out - (int32_t)sizeof(TS_PROP_TIMER_OUT_MS) - 1 - TS_TIME_DIGITS;
    template->at_unique =
        (is_timer ? template->at_due - (int32_t)sizeof(TS_PROP_TIMER_DELIVER_MS)
                  : (int32_t)(end - template->text)) - 1 - TS_UNIQUE_DIGITS;
    ts_template_set_hint(template, log, head.topic_size, head.properties_size - crc_size);
}

static inline int32_t ts_template_bytes(const ts_record_template *template, int32_t body_size)
{
    return TS_RECORD_AT_BODY + body_size + template->text_size;
}

/* Set the time of the following puts. */
static inline void ts_template_set_now(ts_record_template *template, int64_t now_ms)
{
    if (template->now_ms == now_ms)
        return;
    ts_put_i64(template->head + TS_RECORD_AT_BORN_MS, now_ms);
    ts_put_i64(template->head + TS_RECORD_AT_BORN_HOST + 8, now_ms);
    template->now_ms = now_ms;
}

/* Write the record at the log's end, without its CRCs. There is space for it, and its timer id has
 * a state. */
static inline void template_write(const ts_record_template *template, ts_log *log, ts_route *route,
                                  const ts_put *put, int64_t out_ms)
{
    uint8_t *out = log->staging + log->filled, *text;
    int64_t number = template->target->next_offset++;
    int32_t size = ts_template_bytes(template, put->body_size);
    ts_append_hint *hint;

    memcpy(out, template->head, TS_RECORD_AT_BODY);
    ts_put_i32(out + TS_RECORD_AT_SIZE, size);
    ts_put_i64(out + TS_RECORD_AT_QUEUE_OFFSET, number);
    ts_put_i64(out + TS_RECORD_AT_LOG_OFFSET, log->base + log->filled);
    ts_put_i32(out + TS_RECORD_AT_BODY_SIZE, put->body_size);
    text = ts_copy(out + TS_RECORD_AT_BODY, put->body, put->body_size);
    memcpy(text, template->text, (size_t)template->text_size);
    ts_unique_put(text + template->at_unique, put->unique);
    if (template->is_timer) {
        ts_digits_time_put(text + template->at_due, put->due_ms);
        ts_digits_time_put(text + template->at_out, out_ms);
        ts_timer_id_put(text + template->at_timer_id, log->store_id, (uint64_t)number);
        ts_put_waits(log, route, number, put->due_ms);
    }
    hint = template->has_hint ? ts_hint_next(log) : NULL;
    if (hint != NULL) {
        *hint = (ts_append_hint){
            .log_offset = log->base + log->filled, .queue_offset = number,
            .store_ms = template->now_ms, .due_ms = put->due_ms, .route = template->target,
            .real = template->is_timer ? route : NULL, .size = size, .tags = template->tags,
            .has_tags = template->has_tags,
            .key_hash = ts_key_hash(template->key_prefix, text + template->at_unique,
                                    TS_UNIQUE_DIGITS),
        };
        ts_hint_added(log);
    }
    log->filled += size;
    log->last_store_ms = template->now_ms;
    log->put_count++;
    log->out[0] = number;
}

/* Append a put with a template, without its CRCs. Return 1 if there is no template, or the put does
 * not fit it. */
static inline int32_t ts_template_append(const ts_record_template *template, ts_log *log,
                                         ts_route *route, const ts_put *put)
{
    int64_t out_ms = 0;

    if (template->text_size == 0)
        return 1;
    if (template->is_timer) {
        out_ms = ts_out_ms_of(put->due_ms, log->precision_ms);
        if (!ts_template_fits(put->due_ms, out_ms))
            return 1;
    }
    if (ts_log_has_space(log, ts_template_bytes(template, put->body_size)) != TS_OK)
        return TS_NEED_SPACE;
    if (template->is_timer && ts_put_may_wait(log) != TS_OK)
        return TS_NEED_STATES;
    template_write(template, log, route, put, out_ms);
    return TS_OK;
}

#endif
