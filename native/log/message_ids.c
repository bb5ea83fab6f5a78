/* Deduplication by message id: look-up, insertion, and the scan of the log. */
#include "log/message_ids.h"

#include "format/digits.h"
#include "log/column_batch.h"
#include "log/parse.h"
#include "log/view.h"
#include "log/walk.h"
#include "timer/states.h"

int64_t ts_ids_look(const ts_ids *ids, uint64_t topic_hash, const ts_column_batch *rows,
                    int32_t from,
                    int32_t to, const int64_t *below, int64_t now_ms, int64_t *log_offsets)
{
    int64_t known = 0, store_ms;

    for (int32_t i = from; i < to; i++) {
        ts_slice id = ts_slice_of(rows->ids, rows->id_offsets, i);

        log_offsets[i] = -1;
        if (id.size > 0)
            log_offsets[i] = ts_id_find(ids, ts_id_hash(topic_hash, id.at, id.size),
                                        below == NULL ? INT64_MAX : below[i], now_ms, &store_ms);
        known += log_offsets[i] >= 0;
    }
    return known;
}

int32_t ts_ids_repeated(const ts_column_batch *rows, uint32_t *slots, int32_t slot_count,
                        int32_t *earlier)
{
    uint64_t mask = (uint64_t)slot_count - 1;
    int32_t repeated = 0;

    for (int32_t i = 0; i < rows->count; i++) {
        ts_slice id = ts_slice_of(rows->ids, rows->id_offsets, i), other;
        uint64_t at;

        earlier[i] = -1;
        if (id.size == 0)
            continue;
        for (at = ts_id_hash(0, id.at, id.size) & mask; slots[at] != 0; at = (at + 1) & mask) {
            other = ts_slice_of(rows->ids, rows->id_offsets, (int32_t)slots[at] - 1);
            if (other.size == id.size && memcmp(other.at, id.at, (size_t)id.size) == 0)
                break;
        }
        if (slots[at] == 0) {
            slots[at] = (uint32_t)i + 1;
        } else {
            earlier[i] = (int32_t)slots[at] - 1;
            repeated++;
        }
    }
    return repeated;
}

int32_t ts_ids_add(ts_ids *ids, uint64_t topic_hash, const ts_column_batch *rows, int32_t from,
                   int32_t to, const int64_t *log_offsets, int64_t store_ms)
{
    int32_t i;

    for (i = from; i < to; i++) {
        ts_slice id = ts_slice_of(rows->ids, rows->id_offsets, i);

        if (id.size == 0)
            continue;
        if (ts_ids_full(ids))
            break;
        ts_id_add(ids, ts_id_hash(topic_hash, id.at, id.size), log_offsets[i], store_ms);
    }
    return i - from;
}

int32_t ts_ids_load(ts_ids *ids, const ts_id *entries, int32_t count)
{
    int32_t i;

    for (i = 0; i < count && !ts_ids_full(ids); i++)
        ts_id_add(ids, entries[i].hash, entries[i].log_offset, entries[i].store_ms);
    return i;
}

int32_t ts_ids_move(ts_ids *ids, const uint8_t *topic, int32_t topic_size, const uint8_t *id,
                    int32_t size, int64_t log_offset, int64_t now_ms)
{
    uint64_t hash = ts_id_hash(ts_identity(topic, topic_size), id, size);
    int64_t store_ms = 0;

    if (ts_id_find(ids, hash, log_offset, now_ms, &store_ms) < 0)
        return 0;
    if (ts_ids_full(ids))
        return TS_NEED_IDS;
    ts_id_add(ids, hash, log_offset, store_ms);
    return 1;
}

static int32_t is_topic(const ts_record *record, const char *topic, int32_t size)
{
    return record->topic_size == size && memcmp(record->topic, topic, (size_t)size) == 0;
}

/* Return whether the record is a message's first, or the one that rescheduling made. Delivered and
 * rolled copies are not. */
static int32_t is_first(const ts_record *record, const ts_marks *marks, uint32_t store_id)
{
    if (marks->unique_key.at == NULL || marks->delete_key.at != NULL)
        return 0;
    if (is_topic(record, TS_TIMER_TOPIC, (int32_t)sizeof TS_TIMER_TOPIC - 1))
        return marks->timer_id == record->queue_offset && marks->store_id == store_id &&
               marks->roll_times == 0 && marks->real_topic.at != NULL;
    if (is_topic(record, TS_LEVELS_TOPIC, (int32_t)sizeof TS_LEVELS_TOPIC - 1))
        return marks->real_topic.at != NULL;
    return marks->timer_id < 0 && marks->out_ms < 0 && marks->delay_level <= 0;
}

/* Return when the message was first put, as its TS_ONCE says, or -1. */
static int64_t once_ms(const ts_record *record)
{
    ts_text name, value;
    int64_t ms = -1;
    int32_t at = 0;

    while (ts_pair_next(record->properties, record->properties_size, &at, &name, &value)) {
        if (TS_IS(&name, "TS_ONCE") && ts_decimal_get_i64(value.at, value.size, &ms) != 0)
            ms = -1;
    }
    return ms;
}

int32_t ts_ids_scan(ts_view *view, uint32_t store_id, int64_t from, int64_t *next, int32_t capacity,
                    ts_id *entries)
{
    int64_t offset = from;
    int32_t count = 0;

    *next = from;
    while (count < capacity && offset < view->end) {
        ts_record record;
        ts_marks marks;
        int64_t ms;
        int32_t status = ts_walk(view, &offset, &record);

        if (status == TS_CORRUPT && view->fault == TS_FAULT_END && offset >= view->end) {
            *next = offset;
            break;
        }
        if (status != TS_OK)
            return count > 0 ? count : status;
        ms = once_ms(&record);
        if (ms >= 0) {
            ts_marks_get(record.properties, record.properties_size, &marks);
            if (is_first(&record, &marks, store_id)) {
                ts_text topic = {record.topic, record.topic_size};

                if (marks.real_topic.at != NULL && marks.real_queue >= 0)
                    topic = marks.real_topic;
                entries[count++] = (ts_id){
                    ts_id_hash(ts_identity(topic.at, topic.size), marks.unique_key.at,
                               marks.unique_key.size),
                    record.log_offset, ms};
            }
        }
        offset += record.size;
        *next = offset;
    }
    return count;
}

/* Return whether the engine sets a property, not the caller of a put. Python has the same names
 * (base/message_fields.py). */
static int32_t is_of_engine(const ts_text *name)
{
    static const char *const names[] = {
        TS_PROP_UNIQ_KEY, TS_PROP_TS_ONCE, TS_PROP_REAL_TOPIC, TS_PROP_REAL_QID, TS_PROP_DELAY,
        TS_PROP_TS_ID, TS_PROP_TS_GROUP, TS_PROP_CRC32, "TS_LEVEL", "TS_PLACE", "TS_LEASE",
        "TS_ERROR", "TS_RENEWED", "TS_REPLACE", "TS_UNIQUE", "TS_EVERY",
    };

    if (name->size >= 6 && memcmp(name->at, "TIMER_", 6) == 0)
        return 1;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (ts_text_is(name, names[i], (int32_t)strlen(names[i])))
            return 1;
    }
    return 0;
}

/* Find the next property that a caller gave. Return 0 at the end of the text. */
static int32_t next_given(const uint8_t *text, int32_t size, int32_t *at, ts_text *name,
                          ts_text *value)
{
    while (ts_pair_next(text, size, at, name, value)) {
        if (!is_of_engine(name))
            return 1;
    }
    return 0;
}

/* Return whether a record has the given properties of a row, in the same order. */
static int32_t has_properties(const ts_record *record, const ts_column_batch *rows, int32_t row)
{
    ts_slice texts[2] = {{rows->properties, rows->properties_size},
                         ts_slice_of(rows->extra, rows->extra_offsets, row)};
    ts_text name, value, own_name, own_value;
    int32_t at = 0;

    for (int32_t i = 0; i < 2; i++) {
        int32_t own_at = 0;

        while (next_given(texts[i].at, texts[i].size, &own_at, &own_name, &own_value)) {
            if (!next_given(record->properties, record->properties_size, &at, &name, &value) ||
                !ts_text_is(&name, own_name.at, own_name.size) ||
                !ts_text_is(&value, own_value.at, own_value.size))
                return 0;
        }
    }
    return !next_given(record->properties, record->properties_size, &at, &name, &value);
}

static int32_t has_body(const ts_record *record, const ts_column_batch *rows, int32_t row)
{
    ts_slice body = ts_body_of(rows, row);

    return record->body_size == body.size &&
           (body.size == 0 || memcmp(record->body, body.at, (size_t)body.size) == 0);
}

/* Set whether a reschedule wrote the record: then its group begins with a delete record. */
static int32_t set_moved(ts_view *view, const ts_record *record, const ts_marks *marks,
                         ts_first_message *first)
{
    ts_record start;
    ts_marks start_marks;
    int32_t status;

    first->is_moved = 0;
    if (marks->group_start < 0 || marks->group_start >= record->log_offset)
        return TS_OK;
    status = ts_view_record(view, marks->group_start, &start);
    if (status != TS_OK)
        return status;
    ts_marks_get(start.properties, start.properties_size, &start_marks);
    first->is_moved = start_marks.delete_key.at != NULL;
    return TS_OK;
}

int32_t ts_first_messages(ts_view *view, const ts_states *states, uint32_t store_id,
                          int64_t precision_ms,
                          const uint8_t *topic, int32_t topic_size, const ts_column_batch *rows,
                          const int32_t *which, int32_t count, ts_first_message *firsts)
{
    for (int32_t k = 0; k < count; k++) {
        ts_first_message *first = &firsts[k];
        ts_slice id = ts_slice_of(rows->ids, rows->id_offsets, which[k]);
        ts_record record;
        ts_marks marks;
        int32_t status = ts_view_record(view, first->log_offset, &record), waited;

        if (status == TS_OK) {
            ts_marks_get(record.properties, record.properties_size, &marks);
            status = set_moved(view, &record, &marks, first);
        }
        if (status != TS_OK)
            return k > 0 ? k : status;
        waited = is_first(&record, &marks, store_id) && marks.real_topic.at != NULL &&
                 marks.real_queue >= 0;
        if (!waited)
            marks.real_topic = (ts_text){record.topic, record.topic_size};
        first->is_same = marks.unique_key.size == id.size && marks.real_topic.size == topic_size &&
                         memcmp(marks.unique_key.at, id.at, (size_t)id.size) == 0 &&
                         memcmp(marks.real_topic.at, topic, (size_t)topic_size) == 0;
        first->store_ms = record.store_ms;
        first->level = waited && marks.timer_id < 0 ? marks.delay_level : 0;
        first->queue_id = waited ? marks.real_queue : record.queue_id;
        first->timer_id = waited ? marks.timer_id : -1;
        first->queue_offset = waited ? -1 : record.queue_offset;
        first->due_ms = first->timer_id >= 0 ? ts_marks_due(&marks, precision_ms) : record.store_ms;
        first->is_cancelled = first->timer_id >= 0 &&
                              ts_state_get(states, first->timer_id) == TS_CANCELLED;
        first->body_size = record.body_size;
        first->body_crc = record.body_crc;
        first->has_body = has_body(&record, rows, which[k]);
        first->has_properties = has_properties(&record, rows, which[k]);
        /* Damage is not another message. */
        if (first->is_same && !(first->has_body && first->has_properties)) {
            int32_t fault = ts_record_check(&record);

            if (fault != 0)
                return k > 0 ? k : ts_view_fault(view, first->log_offset, fault);
        }
    }
    return count;
}
