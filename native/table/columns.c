/* Records, timer units and slots as rows of tables, from bytes that were read into a window.
 *
 * Two passes: a scan checks everything, says where each text lies and adds up sizes; then columns of
 * exactly these sizes are filled. Nothing is read beyond the window, whatever the bytes say. */
#include "format/properties.h"
#include "format/wheel_slot.h"
#include "log/message_names.h"
#include "recovery/scan.h"
#include "timer/unit_checksum.h"
#include "log/view.h"
#include "log/walk.h"

enum { SUM_PAIRS = TS_SPAN_COUNT, SUM_NAMES, SUM_VALUES, SUMS };

static int32_t fault_at(ts_window *window, int64_t offset, int32_t fault)
{
    window->fault = fault;
    window->fault_offset = offset;
    return TS_CORRUPT;
}

/* Bytes at offset that the window has and that lie below its end; how many in *available. */
static const uint8_t *bytes_at(const ts_window *window, int64_t offset, int64_t *available)
{
    int64_t at = offset - window->offset, left = window->size - at;

    if (at < 0 || left <= 0 || offset >= window->end)
        return NULL;
    if (left > window->end - offset)
        left = window->end - offset;
    *available = left;
    return window->bytes + at;
}

static int64_t segment_left(const ts_window *window, int64_t offset)
{
    return window->segment_bytes - offset % window->segment_bytes;
}

/* What a record that cannot be read here means: more bytes may help, or none will. */
static int32_t unread(ts_window *window, int64_t offset, int64_t available, int32_t fault)
{
    int64_t last = segment_left(window, offset);

    if (last > window->end - offset)
        last = window->end - offset; /* all that may ever be read of it */
    if (fault == TS_RECORD_SHORT && available < last) {
        int64_t wanted = available < 8 ? 8 : ts_get_i32(window->bytes + (offset - window->offset));

        if (wanted <= last) {
            window->need = wanted;
            return TS_NEED_ROOM;
        }
    }
    if (fault == TS_RECORD_ENDS)
        return fault_at(window, offset, TS_FAULT_END);
    if (fault == TS_RECORD_SHORT)
        return fault_at(window, offset, TS_FAULT_SHORT);
    if (fault == TS_RECORD_MAGIC)
        return fault_at(window, offset, TS_FAULT_MAGIC);
    return fault_at(window, offset, TS_FAULT_LENGTHS);
}

/* The record at *offset; a blank moves *offset to the next segment, where the window ends. */
static int32_t record_next(ts_window *window, int64_t *offset, ts_record *record)
{
    int64_t available = 0;
    int32_t remaining = 0, fault;
    const uint8_t *at = bytes_at(window, *offset, &available);

    window->need = 0;
    if (at == NULL)
        return TS_NEED_ROOM;
    if (available < 8 && segment_left(window, *offset) < 8)
        return fault_at(window, *offset, TS_FAULT_SHORT);
    if (ts_blank_is(at, available, &remaining)) {
        if (remaining != segment_left(window, *offset))
            return fault_at(window, *offset, TS_FAULT_LENGTHS);
        *offset += remaining;
        return TS_NEED_ROOM;
    }
    fault = ts_record_get(at, available, record);
    if (fault != 0)
        return unread(window, *offset, available, fault);
    if (record->log_offset != *offset)
        return fault_at(window, *offset, TS_FAULT_POSITION);
    if (window->verify) {
        fault = ts_record_check(record);
        if (fault != TS_FAULT_NONE)
            return fault_at(window, *offset, fault);
    }
    return TS_OK;
}

static int32_t topic_is(const ts_record *record, const char *topic, size_t size)
{
    return (size_t)record->topic_size == size && memcmp(record->topic, topic, size) == 0;
}

static int32_t route_kind(const ts_record *record)
{
    static const char timer[] = "rmq_sys_wheel_timer", levels[] = "SCHEDULE_TOPIC_XXXX";

    if (topic_is(record, timer, sizeof timer - 1))
        return TS_ROUTE_TIMER;
    return topic_is(record, levels, sizeof levels - 1) ? TS_ROUTE_LEVELS : TS_ROUTE_REAL;
}

static void set_span(const ts_window *window, ts_table_row *row, int32_t span, const uint8_t *at,
                     int32_t size)
{
    row->at[span] = at == NULL ? -1 : (int32_t)(at - window->bytes);
    row->sizes[span] = at == NULL ? 0 : size;
}

static void set_text(const ts_window *window, ts_table_row *row, int32_t span, const ts_text *text)
{
    set_span(window, row, span, text->at, text->size);
}

/* ---- pairs ---- */

enum { NAME_MARKS = 64 };

/* Whether a pair of the same name comes later in the text: then that one counts. */
static int32_t is_repeated(const uint8_t *text, int32_t size, int32_t at, const ts_text *name)
{
    ts_text other, value;

    while (ts_pair_next(text, size, &at, &other, &value)) {
        if (other.size == name->size && value.size > 0 &&
            memcmp(other.at, name->at, (size_t)name->size) == 0)
            return 1;
    }
    return 0;
}

/* A number for a name, such that most texts show at once that all their names differ. */
static uint32_t name_mark(const ts_text *name)
{
    uint32_t first = name->at[0], middle = name->at[name->size / 2];
    uint32_t last = name->at[name->size - 1];

    return (first * 31 + middle * 7 + last + (uint32_t)name->size * 131) % NAME_MARKS;
}

/* The next pair that counts. twice: of repeated_marks. */
static int32_t counted_next(const uint8_t *text, int32_t size, uint64_t twice, int32_t *at,
                            ts_text *name, ts_text *value)
{
    while (ts_pair_next(text, size, at, name, value)) {
        if (name->size == 0 || value->size == 0)
            continue;
        if ((twice >> name_mark(name) & 1) == 0 || !is_repeated(text, size, *at, name))
            return 1;
    }
    return 0;
}

/* Name marks that stand for more than one pair: only among those a name can stand twice. */
static uint64_t repeated_marks(const uint8_t *text, int32_t size)
{
    uint64_t once = 0, twice = 0;
    ts_text name, value;
    int32_t at = 0;

    while (ts_pair_next(text, size, &at, &name, &value)) {
        if (name.size > 0 && value.size > 0) {
            uint64_t bit = (uint64_t)1 << name_mark(&name);

            twice |= once & bit;
            once |= bit;
        }
    }
    return twice;
}

static void count_pairs(const ts_record *record, ts_table_row *row)
{
    uint64_t twice = repeated_marks(record->properties, record->properties_size);
    ts_text name, value;
    int32_t at = 0;

    while (counted_next(record->properties, record->properties_size, twice, &at, &name, &value)) {
        row->pair_count++;
        row->names_size += name.size;
        row->values_size += value.size;
    }
}

/* ---- rows ---- */

static int32_t in_topics(const ts_record *record, const ts_table_filter *filter)
{
    for (int32_t i = 0; i < filter->topic_count; i++) {
        int32_t size = filter->topic_offsets[i + 1] - filter->topic_offsets[i];

        if (size == record->topic_size &&
            memcmp(filter->topics + filter->topic_offsets[i], record->topic, (size_t)size) == 0)
            return 1;
    }
    return filter->topic_count == 0;
}

/* What it is to a table. */
static int32_t kind_of(const ts_record *record, const ts_marks *marks)
{
    return ts_is_queued(record) ? ts_record_kind(record, route_kind(record), marks)
                                : TS_KIND_ORDINARY;
}

static void set_marks(const ts_window *window, const ts_record *record, int64_t precision_ms,
                      ts_tail *tail, ts_table_row *row)
{
    ts_marks marks;

    ts_marks_get_timer(record->properties, record->properties_size, tail, &marks);
    row->kind = kind_of(record, &marks);
    row->due_ms = ts_marks_due(&marks, precision_ms);
    row->timer_id = marks.timer_id;
    row->roll_times = marks.roll_times;
    row->delay_level = marks.delay_level;
    set_text(window, row, TS_SPAN_REAL_TOPIC, &marks.real_topic);
}

static int32_t passes(const ts_table_row *row, const ts_table_filter *filter)
{
    if (filter->kinds != 0 && (filter->kinds >> row->kind & 1) == 0)
        return 0;
    return !filter->has_due || (row->due_ms != 0 && row->due_ms >= filter->due_from_ms &&
                                row->due_ms < filter->due_to_ms);
}

/* Makes the row, as far as it is wanted; 0 where the filter does not let it through. */
static int32_t make_row(const ts_window *window, const ts_record *record, int64_t precision_ms,
                        const ts_table_filter *filter, int32_t wants, ts_tail *tail, ts_table_row *row)
{
    if (filter->has_store && (record->store_ms < filter->store_from_ms ||
                              record->store_ms >= filter->store_to_ms))
        return 0;
    if (!in_topics(record, filter))
        return 0;
    memset(row, 0, sizeof *row);
    row->timer_id = -1;
    memset(row->at, -1, sizeof row->at);
    if ((wants & TS_WANT_MARKS) != 0 || filter->has_due || filter->kinds != 0) {
        set_marks(window, record, precision_ms, tail, row);
        if (!passes(row, filter))
            return 0;
    }
    row->log_offset = record->log_offset;
    row->queue_offset = record->queue_offset;
    row->born_ms = record->born_ms;
    row->store_ms = record->store_ms;
    row->queue_id = record->queue_id;
    row->flag = record->flag;
    row->sys_flag = record->sys_flag;
    row->body_crc = record->body_crc;
    set_span(window, row, TS_SPAN_BODY, record->body, record->body_size);
    set_span(window, row, TS_SPAN_TOPIC, record->topic, record->topic_size);
    set_span(window, row, TS_SPAN_PROPERTIES, record->properties, record->properties_size);
    if ((wants & TS_WANT_NAMES) != 0) {
        ts_names names;

        ts_names_get(record->properties, record->properties_size, &names);
        set_text(window, row, TS_SPAN_ID, &names.unique_key);
        set_text(window, row, TS_SPAN_KEYS, &names.keys);
        set_text(window, row, TS_SPAN_TAGS, &names.tags);
    }
    if ((wants & TS_WANT_PAIRS) != 0)
        count_pairs(record, row);
    return 1;
}

static int64_t add_sums(const ts_table_row *row, int64_t *sums)
{
    for (int32_t span = 0; span < TS_SPAN_COUNT; span++)
        sums[span] += row->sizes[span];
    sums[SUM_PAIRS] += row->pair_count;
    sums[SUM_NAMES] += row->names_size;
    sums[SUM_VALUES] += row->values_size;
    return sums[TS_SPAN_BODY] + sums[TS_SPAN_PROPERTIES] + sums[TS_SPAN_TOPIC];
}

int32_t ts_table_scan(ts_window *window, int64_t precision_ms, const ts_table_filter *filter,
                     int32_t wants, int64_t from, int64_t *next, int64_t bytes_max,
                     int32_t capacity, ts_table_row *rows, int64_t *sums)
{
    ts_tail tail = {.real_size = 0};
    int32_t count = 0, status;

    memset(sums, 0, SUMS * sizeof *sums);
    window->fault = TS_FAULT_NONE;
    *next = from;
    while (count < capacity) {
        ts_record record;
        int64_t offset = *next;

        status = record_next(window, &offset, &record);
        *next = offset;
        if (status != TS_OK)
            return *next != from ? count : status;
        *next += record.size;
        if (make_row(window, &record, precision_ms, filter, wants, &tail, &rows[count]) &&
            add_sums(&rows[count++], sums) >= bytes_max)
            break;
    }
    return count;
}

/* ---- columns ---- */

void ts_table_text(const ts_window *window, const ts_table_row *rows, int32_t count, int32_t span,
                  int32_t *offsets, uint8_t *data, uint8_t *validity)
{
    int32_t end = 0;

    memset(validity, 0, (size_t)(count + 7) / 8);
    for (int32_t i = 0; i < count; i++) {
        int32_t size = rows[i].sizes[span];

        offsets[i] = end;
        if (rows[i].at[span] < 0)
            continue;
        validity[i >> 3] = (uint8_t)(validity[i >> 3] | 1 << (i & 7));
        if (size > 0)
            memcpy(data + end, window->bytes + rows[i].at[span], (size_t)size);
        end += size;
    }
    offsets[count] = end;
}

void ts_table_pairs(const ts_window *window, const ts_table_row *rows, int32_t count, int32_t *offsets,
                   int32_t *name_offsets, uint8_t *names, int32_t *value_offsets, uint8_t *values)
{
    int32_t pair = 0, names_end = 0, values_end = 0;

    for (int32_t i = 0; i < count; i++) {
        const uint8_t *text = window->bytes + rows[i].at[TS_SPAN_PROPERTIES];
        int32_t size = rows[i].sizes[TS_SPAN_PROPERTIES], at = 0;
        uint64_t twice = repeated_marks(text, size);
        ts_text name, value;

        offsets[i] = pair;
        while (counted_next(text, size, twice, &at, &name, &value)) {
            name_offsets[pair] = names_end;
            value_offsets[pair++] = values_end;
            memcpy(names + names_end, name.at, (size_t)name.size);
            memcpy(values + values_end, value.at, (size_t)value.size);
            names_end += name.size;
            values_end += value.size;
        }
    }
    offsets[count] = pair;
    name_offsets[pair] = names_end;
    value_offsets[pair] = values_end;
}

/* ---- the rest of the log ---- */

int32_t ts_window_scan(ts_window *window, int64_t precision_ms, int64_t from, int64_t *next,
                       int32_t capacity, ts_scanned *out)
{
    int32_t count = 0, status;

    window->fault = TS_FAULT_NONE;
    *next = from;
    while (count < capacity) {
        ts_record record;
        ts_marks marks;
        int64_t offset = *next;

        status = record_next(window, &offset, &record);
        *next = offset;
        if (status != TS_OK)
            return *next != from ? count : status;
        ts_marks_get(record.properties, record.properties_size, &marks);
        memset(&out[count], 0, sizeof out[count]);
        ts_record_describe(&record, route_kind(&record), &marks, precision_ms, &out[count]);
        out[count].route = -1;
        if (!ts_is_queued(&record))
            out[count].kind = TS_KIND_ORDINARY;
        *next += record.size;
        count++;
    }
    return count;
}

int64_t ts_window_count(ts_window *window, int64_t from, int64_t *next, int64_t limit)
{
    int64_t count = 0;

    window->fault = TS_FAULT_NONE;
    *next = from;
    while (count < limit) {
        ts_record record;
        int64_t offset = *next;
        int32_t status = record_next(window, &offset, &record);

        *next = offset;
        if (status != TS_OK)
            return *next != from ? count : status;
        *next += record.size;
        count++;
    }
    return count;
}

int32_t ts_units_scan(ts_window *window, int64_t from, int64_t *next, int32_t capacity,
                      ts_unit_row *rows)
{
    int32_t count = 0;

    window->fault = TS_FAULT_NONE;
    window->need = 0;
    *next = from;
    while (count < capacity) {
        int64_t available = 0;
        int32_t remaining = 0;
        const uint8_t *at = bytes_at(window, *next, &available);
        ts_timer_unit unit;

        if (at == NULL)
            return *next != from ? count : TS_NEED_ROOM;
        if (ts_timer_blank_is(at, available, &remaining) &&
            remaining == segment_left(window, *next)) {
            *next += remaining;
            return count;
        }
        if (available < TS_TIMER_UNIT_BYTES && available < segment_left(window, *next) &&
            *next + available < window->end) {
            window->need = TS_TIMER_UNIT_BYTES;
            return *next != from ? count : TS_NEED_ROOM;
        }
        if (available < TS_TIMER_UNIT_BYTES || ts_sealed_get(at, *next, &unit) != 0) {
            int32_t status = fault_at(window, *next, TS_FAULT_MAGIC);

            return *next != from ? count : status;
        }
        rows[count].timer_pos = *next;
        rows[count].prev_pos = unit.prev_pos;
        rows[count].slot_ms = (int64_t)((uint64_t)unit.write_ms + (uint64_t)(int64_t)unit.delay_ms);
        rows[count].write_ms = unit.write_ms;
        rows[count].log_offset = unit.log_offset;
        rows[count].size = unit.size;
        rows[count].magic = unit.magic;
        rows[count].topic_hash = unit.topic_hash;
        rows[count].reserved = 0;
        *next += TS_TIMER_UNIT_BYTES;
        count++;
    }
    return count;
}

int32_t ts_slots_scan(const uint8_t *slots, int64_t first, int64_t count, int64_t slot_count,
                      ts_slot_row *rows)
{
    int32_t found = 0;

    for (int64_t i = 0; i < count; i++) {
        ts_slot slot;

        ts_slot_get(slots + i * TS_SLOT_BYTES, &slot);
        if (slot.time <= 0 || slot.time % slot_count != first + i)
            continue; /* never used, or no wheel of this many slots has it here */
        rows[found].time = slot.time;
        rows[found].first_pos = slot.first_pos;
        rows[found].last_pos = slot.last_pos;
        rows[found].slot = (int32_t)(first + i);
        rows[found].count = slot.count;
        found++;
    }
    return found;
}
