/* A form: what the records of many puts to one queue have in common, filled in for each.
 *
 *   | head, 88 bytes        | body | topic, properties                                | CRC |
 *     size, body CRC and            number of the id; of a timer its times and its id
 *     size, both offsets
 *
 * The second line is filled in. A form is for puts whose texts are the same but for their bodies,
 * whose ids the store makes, and whose times have 13 digits; it is made by what writes any other
 * put, so its records are the same bytes. It holds for the time of its puts, now_ms, which may be
 * set anew; all else that it is made of, the log and the route have for as long as they are there.
 */
#ifndef TS_FORM_H
#define TS_FORM_H

#include "log/put.h"

enum { TS_FORM_TEXT_BYTES = 1024 }; /* longer ones are copied by the time that all else takes */

typedef struct {
    ts_route *target;
    int32_t is_timer;
    int32_t text_size;    /* topic and properties with their CRC; 0: there is no form */
    int32_t at_unique;    /* places in the text */
    int32_t at_due;       /* of a timer */
    int32_t at_out;
    int32_t at_timer_id;
    int32_t is_noted;     /* notes are made, of which all have: */
    int32_t has_tags;
    int32_t tags;
    int64_t now_ms;
    uint32_t key_prefix;  /* Java hash of topic# and what comes before the number of the id */
    uint8_t head[TS_RECORD_AT_BODY];
    uint8_t text[TS_FORM_TEXT_BYTES];
} ts_form;

/* Whether a row of such times can go on a form for timers. */
static inline int32_t ts_form_fits(int64_t due_ms, int64_t out_ms)
{
    return ts_digits_is_time(due_ms) && ts_digits_is_time(out_ms);
}

/* What the notes of all on a form have in common. Keys that the caller gives are not noted. */
static inline void ts_form_note(ts_form *form, const ts_log *log, int32_t topic_size,
                                int32_t properties_size)
{
    const uint8_t *id = form->text + form->at_unique - 20;
    ts_names names;

    form->is_noted = 0;
    ts_names_get(form->text + 1 + topic_size + 2, properties_size, &names);
    if (names.unique_key.at != id || names.keys.at != NULL ||
        form->target->kind == TS_ROUTE_LEVELS)
        return;
    form->is_noted = 1;
    form->has_tags = names.tags.at != NULL;
    form->tags = names.tags.at == NULL ? 0 : ts_java_hash(names.tags.at, names.tags.size);
    form->key_prefix = ts_note_id_prefix(log, form->target);
}

/* The form of puts like `any`; `any` is one of them, its body and time do not matter. */
static inline void ts_form_make(ts_form *form, const ts_log *log, ts_route *route,
                                const ts_put *any, int32_t is_timer, int64_t now_ms)
{
    int32_t crc_size = log->property_crc ? TS_PROPERTY_CRC_BYTES : 0;
    ts_put sample = *any;
    ts_record head;
    int64_t properties;
    uint8_t *end;

    sample.due_ms = 9999999999999;
    form->target = is_timer ? log->timer_route : route;
    form->is_timer = is_timer;
    form->text_size = 0;
    form->now_ms = now_ms;
    properties = ts_put_properties(log, route, &sample, is_timer);
    ts_head_of(log, &head, form->target, now_ms);
    if (head.magic != TS_RECORD_MAGIC_V1 || properties > TS_PROPERTIES_BYTES_MAX ||
        3 + head.topic_size + properties > TS_FORM_TEXT_BYTES)
        return;
    head.properties_size = (int32_t)properties;
    ts_head_put(form->head, &head);
    end = ts_topic_put(form->text, &head);
    end = ts_put_texts(end, log, route, &sample, is_timer, 0);
    form->text_size = (int32_t)(end - form->text) + crc_size;
    form->at_timer_id = (int32_t)(end - form->text) - TS_TIMER_ID_TEXT_BYTES - 1;
    form->at_out = form->at_timer_id - (TS_ID_PAIR_BYTES - TS_TIMER_ID_TEXT_BYTES - 1) -
                   route->real_size - 1 - TS_TIME_DIGITS;
    form->at_due = form->at_out - (int32_t)sizeof(TS_PROP_TIMER_OUT_MS) - 1 - TS_TIME_DIGITS;
    form->at_unique =
        (is_timer ? form->at_due - (int32_t)sizeof(TS_PROP_TIMER_DELIVER_MS)
                  : (int32_t)(end - form->text)) - 1 - TS_UNIQUE_DIGITS;
    ts_form_note(form, log, head.topic_size, head.properties_size - crc_size);
}

static inline int32_t ts_form_bytes(const ts_form *form, int32_t body_size)
{
    return TS_RECORD_AT_BODY + body_size + form->text_size;
}

/* The time of the puts from here on. */
static inline void ts_form_set_now(ts_form *form, int64_t now_ms)
{
    if (form->now_ms == now_ms)
        return;
    ts_put_i64(form->head + TS_RECORD_AT_BORN_MS, now_ms);
    ts_put_i64(form->head + TS_RECORD_AT_BORN_HOST + 8, now_ms);
    form->now_ms = now_ms;
}

/* The record at the log's end, but for its CRCs. There is room for it, and its timer id has a state. */
static inline void form_write(const ts_form *form, ts_log *log, ts_route *route,
                                 const ts_put *put, int64_t out_ms)
{
    uint8_t *out = log->staging + log->filled, *text;
    int64_t number = form->target->next_offset++;
    int32_t size = ts_form_bytes(form, put->body_size);
    ts_note *note;

    memcpy(out, form->head, TS_RECORD_AT_BODY);
    ts_put_i32(out + TS_RECORD_AT_SIZE, size);
    ts_put_i64(out + TS_RECORD_AT_QUEUE_OFFSET, number);
    ts_put_i64(out + TS_RECORD_AT_LOG_OFFSET, log->base + log->filled);
    ts_put_i32(out + TS_RECORD_AT_BODY_SIZE, put->body_size);
    text = ts_copy(out + TS_RECORD_AT_BODY, put->body, put->body_size);
    memcpy(text, form->text, (size_t)form->text_size);
    ts_unique_put(text + form->at_unique, put->unique);
    if (form->is_timer) {
        ts_digits_time_put(text + form->at_due, put->due_ms);
        ts_digits_time_put(text + form->at_out, out_ms);
        ts_timer_id_put(text + form->at_timer_id, log->store_id, (uint64_t)number);
        ts_put_waits(log, route, number, put->due_ms);
    }
    note = form->is_noted ? ts_note_next(log) : NULL;
    if (note != NULL) {
        *note = (ts_note){
            .log_offset = log->base + log->filled, .queue_offset = number,
            .store_ms = form->now_ms, .due_ms = put->due_ms, .route = form->target,
            .real = form->is_timer ? route : NULL, .size = size, .tags = form->tags,
            .has_tags = form->has_tags,
            .key_hash = ts_key_hash(form->key_prefix, text + form->at_unique, TS_UNIQUE_DIGITS),
        };
        ts_note_added(log);
    }
    log->filled += size;
    log->last_store_ms = form->now_ms;
    log->put_count++;
    log->out[0] = number;
}

/* A put on a form, but for its CRCs; 1 where there is no form, or it does not fit. */
static inline int32_t ts_form_append(const ts_form *form, ts_log *log, ts_route *route,
                                     const ts_put *put)
{
    int64_t out_ms = 0;

    if (form->text_size == 0)
        return 1;
    if (form->is_timer) {
        out_ms = ts_out_ms_of(put->due_ms, log->precision_ms);
        if (!ts_form_fits(put->due_ms, out_ms))
            return 1;
    }
    if (ts_log_room(log, ts_form_bytes(form, put->body_size)) != TS_OK)
        return TS_NEED_ROOM;
    if (form->is_timer && ts_put_may_wait(log) != TS_OK)
        return TS_NEED_STATES;
    form_write(form, log, route, put, out_ms);
    return TS_OK;
}

#endif
