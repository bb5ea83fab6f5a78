/* Records as rows and columns of tables, from the bytes of a window.
 *
 * A scan checks each record, finds its texts and adds up their sizes. Then columns of exactly these
 * sizes are filled. Nothing outside of the window is read, whatever the bytes are.
 */
#include "log/message_names.h"
#include "log/walk.h"
#include "recovery/scan.h"
#include "table/window.h"

enum { SUM_PAIRS = TS_SPAN_COUNT, SUM_NAMES, SUM_VALUES, SUMS };

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

/* Return whether a text is one of several, which lie one after another. NULL is not. */
static int32_t is_one_of(const uint8_t *text, int32_t size, const uint8_t *several,
                         const int32_t *offsets, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        if (text != NULL && offsets[i + 1] - offsets[i] == size &&
            memcmp(text, several + offsets[i], (size_t)size) == 0)
            return 1;
    }
    return 0;
}

enum { NAME_MARKS = 64 };

/* Return whether a later pair of the text has the same name. Then the later pair counts. */
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

/* Return a number for a name, chosen so that for most texts the numbers alone prove all names
 * different. */
static uint32_t name_mark(const ts_text *name)
{
    uint32_t first = name->at[0], middle = name->at[name->size / 2];
    uint32_t last = name->at[name->size - 1];

    return (first * 31 + middle * 7 + last + (uint32_t)name->size * 131) % NAME_MARKS;
}

/* Read the next pair that counts. twice: the result of repeated_marks. */
static int32_t counted_next(const uint8_t *text, int32_t size, uint64_t twice,
                            const ts_table_filter *filter, int32_t *at, ts_text *name,
                            ts_text *value)
{
    while (ts_pair_next(text, size, at, name, value)) {
        if (name->size == 0 || value->size == 0)
            continue;
        if (filter->name_count > 0 && !is_one_of(name->at, name->size, filter->names,
                                                 filter->name_offsets, filter->name_count))
            continue;
        if ((twice >> name_mark(name) & 1) == 0 || !is_repeated(text, size, *at, name))
            return 1;
    }
    return 0;
}

/* Return the name marks that more than one pair has. Only names with these marks can occur twice.
 */
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

static void count_pairs(const ts_record *record, const ts_table_filter *filter,
                        ts_table_row *row)
{
    uint64_t twice = repeated_marks(record->properties, record->properties_size);
    ts_text name, value;
    int32_t at = 0;

    while (counted_next(record->properties, record->properties_size, twice, filter, &at, &name,
                        &value)) {
        row->pair_count++;
        row->names_size += name.size;
        row->values_size += value.size;
    }
}

static int32_t in_topics(const ts_text *topic, const ts_table_filter *filter)
{
    return filter->topic_count == 0 || is_one_of(topic->at, topic->size, filter->topics,
                                                 filter->topic_offsets, filter->topic_count);
}

/* Return whether one of the words of KEYS, which single spaces divide, is one of the keys. */
static int32_t has_key(const ts_text *words, const ts_table_filter *filter)
{
    const uint8_t *at = words->at, *end;

    if (at == NULL)
        return 0;
    for (const uint8_t *stop = at + words->size;; at = end + 1) {
        end = memchr(at, ' ', (size_t)(stop - at));
        if (end == NULL)
            end = stop;
        if (is_one_of(at, (int32_t)(end - at), filter->keys, filter->key_offsets,
                      filter->key_count))
            return 1;
        if (end == stop)
            return 0;
    }
}

/* Return the record's kind for a table. */
static int32_t kind_of(const ts_record *record, const ts_marks *marks)
{
    return ts_is_queued(record) ? ts_record_kind(record, ts_topic_kind(record), marks)
                                : TS_KIND_ORDINARY;
}

/* Set what the row has from the marks. Return 0 if the filter rejects the real topic. */
static int32_t set_marks(const ts_window *window, const ts_record *record, int64_t precision_ms,
                         const ts_table_filter *filter, ts_tail *tail, ts_table_row *row)
{
    ts_marks marks;

    ts_marks_get_timer(record->properties, record->properties_size, tail, &marks);
    row->kind = kind_of(record, &marks);
    row->due_ms = ts_marks_due(&marks, precision_ms);
    row->timer_id = marks.timer_id;
    row->roll_times = marks.roll_times;
    row->delay_level = marks.delay_level;
    set_text(window, row, TS_SPAN_REAL_TOPIC, &marks.real_topic);
    return !filter->by_real_topic || in_topics(&marks.real_topic, filter);
}

/* Return 0 for a record of the timer topic whose bit is not set. */
static int32_t has_bit(const ts_record *record, const ts_table_filter *filter)
{
    int64_t place = record->queue_offset - filter->first_timer;

    if (ts_topic_kind(record) != TS_ROUTE_TIMER)
        return 1;
    return place >= 0 && place < filter->timer_bit_count &&
           (filter->timer_bits[place >> 3] >> (place & 7) & 1) != 0;
}

static int32_t passes(const ts_table_row *row, const ts_table_filter *filter)
{
    if (filter->kinds != 0 && (filter->kinds >> row->kind & 1) == 0)
        return 0;
    return !filter->has_due || (row->due_ms != 0 && row->due_ms >= filter->due_from_ms &&
                                row->due_ms < filter->due_to_ms);
}

/* Make the row, with the fields that are wanted. Return 0 if the filter rejects the record. */
static int32_t make_row(const ts_window *window, const ts_record *record, int64_t precision_ms,
                        const ts_table_filter *filter, int32_t wants, ts_tail *tail,
                        ts_table_row *row)
{
    const ts_text topic = {.at = record->topic, .size = record->topic_size};
    ts_names names;

    if (filter->has_store && (record->store_ms < filter->store_from_ms ||
                              record->store_ms >= filter->store_to_ms))
        return 0;
    if (!filter->by_real_topic && !in_topics(&topic, filter))
        return 0;
    if (filter->without_size > 0 && ts_text_is(&topic, filter->without, filter->without_size))
        return 0;
    if (filter->timer_bits != NULL && !has_bit(record, filter))
        return 0;
    if ((wants & TS_WANT_NAMES) != 0 || filter->key_count > 0)
        ts_names_get(record->properties, record->properties_size, &names);
    if (filter->key_count > 0 && !has_key(&names.keys, filter))
        return 0;
    memset(row, 0, sizeof *row);
    row->timer_id = -1;
    memset(row->at, -1, sizeof row->at);
    if ((wants & TS_WANT_MARKS) != 0 || filter->has_due || filter->kinds != 0 ||
        filter->by_real_topic) {
        if (!set_marks(window, record, precision_ms, filter, tail, row) || !passes(row, filter))
            return 0;
    }
    row->log_offset = record->log_offset;
    row->queue_offset = record->queue_offset;
    row->born_ms = record->born_ms;
    row->store_ms = record->store_ms;
    row->size = record->size;
    row->queue_id = record->queue_id;
    row->flag = record->flag;
    row->sys_flag = record->sys_flag;
    row->body_crc = record->body_crc;
    set_span(window, row, TS_SPAN_BODY, record->body, record->body_size);
    set_span(window, row, TS_SPAN_TOPIC, record->topic, record->topic_size);
    set_span(window, row, TS_SPAN_PROPERTIES, record->properties, record->properties_size);
    if ((wants & TS_WANT_NAMES) != 0) {
        set_text(window, row, TS_SPAN_ID, &names.unique_key);
        set_text(window, row, TS_SPAN_KEYS, &names.keys);
        set_text(window, row, TS_SPAN_TAGS, &names.tags);
    }
    if ((wants & TS_WANT_PAIRS) != 0)
        count_pairs(record, filter, row);
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

        status = ts_window_record(window, &offset, &record);
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

void ts_table_pairs(const ts_window *window, const ts_table_row *rows, int32_t count,
                    const ts_table_filter *filter, int32_t *offsets, int32_t *name_offsets,
                    uint8_t *names, int32_t *value_offsets, uint8_t *values)
{
    int32_t pair = 0, names_end = 0, values_end = 0;

    for (int32_t i = 0; i < count; i++) {
        const uint8_t *text = window->bytes + rows[i].at[TS_SPAN_PROPERTIES];
        int32_t size = rows[i].sizes[TS_SPAN_PROPERTIES], at = 0;
        uint64_t twice = repeated_marks(text, size);
        ts_text name, value;

        offsets[i] = pair;
        while (counted_next(text, size, twice, filter, &at, &name, &value)) {
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
