#include "log/parse.h"

#include "format/level_mark.h"
#include "format/properties.h"

/* Return a number from 0 to `most`, else -1. */
static int64_t number(const ts_text *value, int64_t most)
{
    int64_t n = 0;

    return ts_decimal_get_i64(value->at, value->size, &n) != 0 || n < 0 || n > most ? -1 : n;
}

/* Parse a number that delivery needs, and mark the record as broken if it does not parse. */
static int64_t needed(const ts_text *value, int64_t most, ts_marks *marks)
{
    int64_t n = number(value, most);

    if (n < 0)
        marks->broken = 1;
    return n;
}

/* Parse a number that a broker ignores if other properties give the time. Return 0 if it is not a
 * number. */
static int32_t small_number(const ts_text *value)
{
    int64_t n = number(value, INT32_MAX);

    return n < 0 ? 0 : (int32_t)n;
}

static void timer_mark(const ts_text *name, const ts_text *value, ts_marks *marks)
{
    if (TS_IS(name, "TIMER_OUT_MS"))
        marks->out_ms = needed(value, INT64_MAX, marks);
    else if (TS_IS(name, "TIMER_DELIVER_MS"))
        marks->deliver_ms = number(value, INT64_MAX);
    else if (TS_IS(name, "TIMER_DELAY_SEC") || TS_IS(name, "TIMER_DELAY_MS"))
        marks->relative = 1;
    else if (TS_IS(name, "TIMER_DEL_UNIQKEY"))
        marks->delete_key = *value;
    else if (TS_IS(name, "TIMER_ROLL_TIMES"))
        marks->roll_times = small_number(value);
}

void ts_marks_get(const uint8_t *properties, int32_t size, ts_marks *marks)
{
    ts_text name, value;
    int32_t at = 0;

    memset(marks, 0, sizeof *marks);
    marks->out_ms = marks->deliver_ms = marks->timer_id = marks->group_start = -1;
    marks->level_place = marks->place_offset = -1;
    marks->real_queue = -1;
    while (ts_pair_next(properties, size, &at, &name, &value)) {
        if (name.size < 4 || value.size == 0)
            continue; /* no relevant name is shorter; an empty value counts as missing */
        switch (name.at[0]) {
        case 'T':
            if (name.size > 6 && memcmp(name.at, "TIMER_", 6) == 0) {
                timer_mark(&name, &value, marks);
            } else if (TS_IS(&name, "TAGS")) {
                marks->tags = value;
            } else if (TS_IS(&name, "TS_ID") && value.size == 16) {
                uint64_t id = 0;
                if (ts_timer_id_get(value.at, &marks->store_id, &id) == 0 &&
                    id <= (uint64_t)INT64_MAX)
                    marks->timer_id = (int64_t)id;
            } else if (TS_IS(&name, "TS_GROUP") && value.size == TS_GROUP_TEXT_BYTES) {
                if (ts_group_get(value.at, &marks->group_start, &marks->group_left) != 0)
                    marks->group_start = -1;
            } else if (TS_IS(&name, "TS_PLACE") && value.size == TS_TIMER_ID_TEXT_BYTES) {
                uint64_t at_offset = 0;
                if (ts_timer_id_get(value.at, &marks->place_store_id, &at_offset) == 0 &&
                    at_offset <= (uint64_t)INT64_MAX)
                    marks->place_offset = (int64_t)at_offset;
            } else if (TS_IS(&name, "TS_LEVEL") && value.size == TS_LEVEL_MARK_TEXT_BYTES) {
                if (ts_level_mark_get(value.at, &marks->level_store_id, &marks->level_place,
                                      &marks->level_due_ms) != 0)
                    marks->level_place = -1;
            }
            break;
        case 'R':
            if (TS_IS(&name, "REAL_TOPIC"))
                marks->real_topic = value;
            else if (TS_IS(&name, "REAL_QID"))
                marks->real_queue = (int32_t)needed(&value, INT32_MAX, marks);
            break;
        case 'U':
            if (TS_IS(&name, "UNIQ_KEY"))
                marks->unique_key = value;
            break;
        case 'D':
            if (TS_IS(&name, "DELAY"))
                marks->delay_level = small_number(&value);
            break;
        default:
            break;
        }
    }
}

/* Return whether one of two bytes occurs in these size >= 8 bytes. */
static inline __attribute__((always_inline)) int32_t has_either(const uint8_t *at, int32_t size,
                                                                uint8_t byte, uint8_t other)
{
    const uint64_t ones = 0x0101010101010101u;
    uint64_t word, first, second, found = 0;

    for (int32_t i = 0; i < size; i += 8) {
        memcpy(&word, at + (i < size - 8 ? i : size - 8), 8);
        first = word ^ ones * byte;
        second = word ^ ones * other;
        found |= ((first - ones) & ~first) | ((second - ones) & ~second);
    }
    return (found & ones << 7) != 0;
}

/* Take the pair that ends at *end off the text if it has this name. `likely` is the usual size of
 * its value, tried first. A pair's end inside such a value means that there are two pairs. */
static inline __attribute__((always_inline)) int32_t take_last(const uint8_t *text, int32_t *end,
                                                               const char *name, int32_t name_size,
                                                               int32_t likely, ts_text *value)
{
    int32_t last = *end - 1, split = last - likely - 1, from;

    if (last < name_size + 2 || text[last] != 2)
        return 0;
    if (split < name_size || text[split] != 1) {
        for (split = last - 1; split > name_size && text[split] > 2; split--) {
        }
    }
    if (split < name_size || text[split] != 1 ||
        memcmp(text + split - name_size, name, (size_t)name_size) != 0)
        return 0;
    from = split - name_size;
    if ((from > 0 && text[from - 1] != 2) ||
        (likely >= 8 && split == last - likely - 1 && has_either(text + split + 1, likely, 2, 2)))
        return 0;
    value->at = text + split + 1;
    value->size = last - split - 1;
    *end = from;
    return 1;
}

#define TAKE(literal, likely, value) \
    take_last(text, &end, (literal), (int32_t)sizeof(literal) - 1, (likely), (value))

#define BEGINS(at, end, literal) \
    ((end) - (at) >= (int32_t)sizeof(literal) - 1 && \
     memcmp((at), (literal), sizeof(literal) - 1) == 0)

/* Return whether no pair before the tail affects the timer: the target of a delete, a relative
 * delay, a number that does not parse, or a pair that copies leave out. */
static int32_t has_no_marks(const uint8_t *text, int32_t size)
{
    const uint8_t *end = text + size;

    if (size >= 8 && !has_either(text, size, '_', 'L'))
        return 1; /* quick check, enough for most texts: each name below has one of the two bytes */
    for (const uint8_t *at = text; at < end; at = ts_find(at, end, 2) + 1) {
        if (BEGINS(at, end, "TIMER_") || BEGINS(at, end, "REAL_QID\001") ||
            BEGINS(at, end, "REAL_TOPIC\001") ||
            BEGINS(at, end, "DELAY\001") || BEGINS(at, end, "TS_ID\001") ||
            BEGINS(at, end, "TS_GROUP\001") || BEGINS(at, end, "TS_LEVEL\001") ||
            BEGINS(at, end, "TS_PLACE\001") || BEGINS(at, end, "__CRC32#\001"))
            return 0;
    }
    return 1;
}

/* Whether a pair with this name and 13 digits begins at `at`. The caller has checked the bounds. */
#define TIME_IS(at, literal, value) \
    (memcmp((at), (literal), sizeof(literal) - 1) == 0 && \
     (at)[sizeof(literal) - 1 + TS_TIME_DIGITS] == 2 && \
     ts_digits_time_get((at) + sizeof(literal) - 1, (value)))

enum {
    ID_BYTES = 6 + TS_TIMER_ID_TEXT_BYTES + 1,
    OUT_BYTES = 13 + TS_TIME_DIGITS + 1,
    DELIVER_BYTES = 17 + TS_TIME_DIGITS + 1,
    UNIQUE_BYTES = 9 + 32 + 1,
    GROUP_BYTES = 9 + TS_GROUP_TEXT_BYTES + 1
};

int32_t ts_group_tail(const uint8_t *text, int32_t end)
{
    const uint8_t *at = text + end - GROUP_BYTES;

    return end >= GROUP_BYTES && memcmp(at, "TS_GROUP\001", 9) == 0 && at[GROUP_BYTES - 1] == 2 &&
                   !has_either(at + 9, TS_GROUP_TEXT_BYTES, 2, 2)
               ? GROUP_BYTES : 0;
}

static void learn(ts_tail *tail, const ts_text *topic, const ts_text *queue, int32_t real_queue)
{
    const uint8_t *from = topic->at - 11; /* REAL_TOPIC and its separator */
    int64_t size = queue->at + queue->size + 1 - from;

    if (size > (int64_t)sizeof tail->real)
        return;
    memcpy(tail->real, from, (size_t)size);
    tail->real_size = (int32_t)size;
    tail->topic_size = topic->size;
    tail->real_queue = real_queue;
}

static inline __attribute__((always_inline)) int32_t tail_time(const ts_tail *tail,
                                                               const uint8_t *end, int32_t size,
                                                               ts_marks *marks)
{
    int32_t wanted = DELIVER_BYTES + OUT_BYTES + tail->real_size + ID_BYTES;
    const uint8_t *id, *real, *out, *deliver;
    uint64_t timer_id;

    if (tail->real_size == 0 || size <= wanted)
        return 0;
    id = end - ID_BYTES;
    real = id - tail->real_size;
    out = real - OUT_BYTES;
    deliver = out - DELIVER_BYTES;
    if (memcmp(id, "TS_ID\001", 6) != 0 || id[ID_BYTES - 1] != 2 ||
        !ts_is_same(real, tail->real, tail->real_size) ||
        !TIME_IS(out, "TIMER_OUT_MS\001", &marks->out_ms) ||
        !TIME_IS(deliver, "TIMER_DELIVER_MS\001", &marks->deliver_ms) || deliver[-1] != 2 ||
        ts_timer_id_get(id + 6, &marks->store_id, &timer_id) != 0 ||
        timer_id > (uint64_t)INT64_MAX)
        return 0;
    marks->timer_id = (int64_t)timer_id;
    marks->real_topic.at = real + 11;
    marks->real_topic.size = tail->topic_size;
    marks->real_queue = tail->real_queue;
    return wanted;
}

int32_t ts_tail_time(const ts_tail *tail, const uint8_t *end, int32_t size, ts_marks *marks)
{
    return tail_time(tail, end, size, marks);
}

int32_t ts_tail_get(const ts_tail *tail, const uint8_t *end, int32_t size, ts_marks *marks)
{
    int32_t took = tail_time(tail, end, size, marks);
    const uint8_t *unique = end - took - UNIQUE_BYTES;

    if (took == 0 || size < took + UNIQUE_BYTES || memcmp(unique, "UNIQ_KEY\001", 9) != 0 ||
        has_either(unique + 9, 32, 2, 2))
        return 0;
    return took + UNIQUE_BYTES;
}

/* Return where a CRC pair at the end of the text begins, or the text's size without such a pair. */
static int32_t crc_begin(const uint8_t *text, int32_t size)
{
    const uint8_t *end = text + size;

    return size >= TS_PROPERTY_CRC_BYTES &&
                   memcmp(end - TS_PROPERTY_CRC_BYTES, "__CRC32#\001", 9) == 0 && end[-1] == 2 &&
                   !has_either(end - 11, 10, 2, 2)
               ? size - TS_PROPERTY_CRC_BYTES : size;
}

/* Read a text whose tail was learned from another record. Return 0 if it has another tail. */
static int32_t read_known(const uint8_t *text, int32_t size, const ts_tail *tail, ts_marks *marks)
{
    int32_t end = crc_begin(text, size), took, plain;
    int64_t time;

    end -= ts_group_tail(text, end);
    plain = end;
    if (end >= TS_TAIL_TIMES_BYTES &&
        TIME_IS(text + end - 31, "TIMER_DEQUEUE_MS\001", &time) &&
        TIME_IS(text + end - 62, "TIMER_ENQUEUE_MS\001", &time)) {
        end -= TS_TAIL_TIMES_BYTES;
        plain = 0;
    }
    took = ts_tail_get(tail, text + end, end, marks);
    end -= took;
    if (took == 0 || (end > 0 && (text[end - 1] != 2 || !has_no_marks(text, end))))
        return 0;
    marks->plain_size = plain;
    marks->last_key = (ts_text){text + end + 9, UNIQUE_BYTES - 10};
    return 1;
}

/* Read a delivered text without the real topic, as `needed_only` leaves it. Return 0 if the text
 * ends otherwise. */
static int32_t read_needed(const uint8_t *text, int32_t size, ts_marks *marks)
{
    int32_t end = crc_begin(text, size), rest;
    uint64_t id;

    rest = end - ID_BYTES - OUT_BYTES - DELIVER_BYTES;
    if (rest < UNIQUE_BYTES ||
        !TIME_IS(text + rest + DELIVER_BYTES, "TIMER_OUT_MS\001", &marks->out_ms) ||
        !TIME_IS(text + rest, "TIMER_DELIVER_MS\001", &marks->deliver_ms) ||
        memcmp(text + end - ID_BYTES, "TS_ID\001", 6) != 0 || text[end - 1] != 2 ||
        ts_timer_id_get(text + end - ID_BYTES + 6, &marks->store_id, &id) != 0 ||
        id > (uint64_t)INT64_MAX)
        return 0;
    rest -= UNIQUE_BYTES;
    if (memcmp(text + rest, "UNIQ_KEY\001", 9) != 0 || text[rest + UNIQUE_BYTES - 1] != 2 ||
        has_either(text + rest + 9, 32, 2, 2) ||
        (rest > 0 && (text[rest - 1] != 2 || !has_no_marks(text, rest))))
        return 0;
    marks->timer_id = (int64_t)id;
    marks->real_queue = -1;
    marks->last_key = (ts_text){text + rest + 9, UNIQUE_BYTES - 10};
    return 1;
}

/* Read the properties that append.c writes last, from the end of the text. Return 0 if the text
 * ends otherwise. */
static int32_t read_tail(const uint8_t *text, int32_t size, ts_tail *tail, ts_marks *marks)
{
    ts_text value, out, deliver, topic, queue;
    int32_t end = size, plain;
    uint64_t id = 0;

    (void)TAKE("__CRC32#", 10, &value);
    end -= ts_group_tail(text, end);
    plain = end;
    if (TAKE("TIMER_DEQUEUE_MS", 13, &value)) {
        if (!TAKE("TIMER_ENQUEUE_MS", 13, &value))
            return 0;
        plain = 0;
    }
    if (!TAKE("TS_ID", 16, &value) || value.size != 16 ||
        ts_timer_id_get(value.at, &marks->store_id, &id) != 0 || id > (uint64_t)INT64_MAX)
        return 0;
    if (!TAKE("REAL_QID", 1, &queue) || !TAKE("REAL_TOPIC", 8, &topic) ||
        !TAKE("TIMER_OUT_MS", 13, &out) || !TAKE("TIMER_DELIVER_MS", 13, &deliver) ||
        topic.size == 0)
        return 0;
    if (TAKE("UNIQ_KEY", 32, &value) && value.size > 0)
        marks->last_key = value;
    if (!has_no_marks(text, end))
        return 0;
    marks->timer_id = (int64_t)id;
    marks->real_topic = topic;
    marks->real_queue = (int32_t)needed(&queue, INT32_MAX, marks);
    marks->out_ms = needed(&out, INT64_MAX, marks);
    marks->deliver_ms = number(&deliver, INT64_MAX);
    marks->plain_size = plain;
    if (marks->broken)
        return 0;
    learn(tail, &topic, &queue, marks->real_queue);
    return 1;
}

void ts_marks_get_timer(const uint8_t *properties, int32_t size, ts_tail *tail, ts_marks *marks)
{
    memset(marks, 0, sizeof *marks);
    if (read_known(properties, size, tail, marks))
        return;
    memset(marks, 0, sizeof *marks);
    if (read_needed(properties, size, marks))
        return;
    memset(marks, 0, sizeof *marks);
    if (!read_tail(properties, size, tail, marks))
        ts_marks_get(properties, size, marks);
}
