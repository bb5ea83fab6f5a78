/* The properties of a record that matter to timers. */
#ifndef TS_PARSE_H
#define TS_PARSE_H

#include "format/record.h"
#include "timerstore.h"

typedef struct {
    const uint8_t *at; /* NULL: missing */
    int32_t size;
} ts_text;

typedef struct {
    ts_text real_topic;
    ts_text unique_key;
    ts_text delete_key;
    ts_text tags;
    int64_t out_ms;      /* -1: missing */
    int64_t deliver_ms;  /* -1: missing */
    int64_t timer_id;    /* -1: missing */
    int64_t level_place; /* -1: missing; ts_marks_get_timer reads it only if there is a DELAY */
    int64_t level_due_ms;
    int64_t place_offset; /* -1: missing; not read by ts_marks_get_timer */
    uint32_t store_id;
    uint32_t level_store_id;
    uint32_t place_store_id;
    int32_t real_queue;  /* -1: missing */
    int32_t roll_times;
    int32_t delay_level;
    int32_t relative;    /* there is a relative delay, too */
    int32_t broken;      /* a number that delivery needs does not parse */
    int64_t group_start; /* -1: missing; not read by ts_marks_get_timer */
    int64_t group_left;
    ts_text last_key;    /* UNIQ_KEY if it directly precedes the times; set by ts_marks_get_timer
                          * only */
    int32_t plain_size;  /* > 0: a source written by this engine; its size without group and CRC */
} ts_marks;

/* The tail that most records of one call share after their own properties: the real topic and
 * queue, as text. It is learned from the first record, so that the others are compared instead of
 * parsed. */
typedef struct {
    uint8_t real[320];
    int32_t real_size;    /* 0: nothing was learned */
    int32_t topic_size;
    int32_t real_queue;
} ts_tail;

#define TS_QUEUES_MAX 65536 /* queues of a topic, as in format/store_paths.py */
#define TS_TIMER_TOPIC "rmq_sys_wheel_timer"
#define TS_LEVELS_TOPIC "SCHEDULE_TOPIC_XXXX"
#define TS_TAIL_TIMES_BYTES 62 /* TIMER_ENQUEUE_MS and TIMER_DEQUEUE_MS with 13 digits each */

void ts_marks_get(const uint8_t *properties, int32_t size, ts_marks *marks);

/* Read the properties without the unique key and the tags. This is faster for records of this
 * engine, and fastest if the tail is the one of the previous record. */
void ts_marks_get_timer(const uint8_t *properties, int32_t size, ts_tail *tail, ts_marks *marks);

/* Read a put's tail that was learned before, ending at `end`. `size` bytes before it may be read.
 * Return how many bytes it takes together with the UNIQ_KEY pair in front of it, or 0. Sets the
 * marks of the timer. */
int32_t ts_tail_get(const ts_tail *tail, const uint8_t *end, int32_t size, ts_marks *marks);

/* Do the same without the UNIQ_KEY pair: read only the time and the id of the timer. */
int32_t ts_tail_time(const ts_tail *tail, const uint8_t *end, int32_t size, ts_marks *marks);

/* Return the size of the TS_GROUP pair if the text's first `end` bytes end with one, else 0.
 * TS_GROUP is the last property of a record of a group, except its CRC. */
int32_t ts_group_tail(const uint8_t *text, int32_t end);

/* Return whether this engine delivered the record for a level. Without DELAY the mark was copied by
 * a client: a client that sends a message on keeps its properties, but each message that waits for
 * a level has a DELAY. */
static inline int32_t ts_marks_leveled(const ts_marks *marks)
{
    return marks->level_place >= 0 && marks->delay_level > 0;
}

/* Return when the message is or was due according to its marks, or 0 if that is not known. */
static inline int64_t ts_marks_due(const ts_marks *marks, int64_t precision_ms)
{
    if (ts_marks_leveled(marks))
        return marks->level_due_ms;
    if (marks->out_ms < 0)
        return 0;
    if (marks->deliver_ms >= 0 && !marks->relative)
        return marks->deliver_ms;
    if (marks->out_ms > INT64_MAX - precision_ms)
        return INT64_MAX;
    return marks->out_ms + precision_ms;
}

/* Return whether the TS_ID of a record of the timer topic may have been copied by a client: a
 * client that sends a message on keeps its properties. A source has its own queue offset as id, and
 * TS_PLACE confirms the id of a record that this engine rolled or moved. */
static inline int32_t ts_marks_unsure(const ts_marks *marks, int64_t queue_offset)
{
    return marks->timer_id >= 0 && marks->timer_id < queue_offset &&
           marks->delete_key.at == NULL &&
           (marks->place_offset != queue_offset || marks->place_store_id != marks->store_id);
}

/* Return whether it was copied for certain: a broker sets a roll count on what it rolls. */
static inline int32_t ts_marks_left_over(const ts_marks *marks, int64_t queue_offset)
{
    return marks->roll_times == 0 && ts_marks_unsure(marks, queue_offset);
}

/* Return the timer that a record of the timer topic belongs to. The id of a broker's record is its
 * queue offset, and so is that of a record that a client sent on. If a record with a roll count may
 * have been sent on, the fold of the log has decided (log/fold.py): then its own queue offset has a
 * state, which a copy's never has. */
static inline int64_t ts_marks_id(const ts_marks *marks, const ts_states *states,
                                  uint32_t store_id, int64_t queue_offset)
{
    if (marks->timer_id < 0 || marks->timer_id > queue_offset || marks->store_id != store_id)
        return queue_offset;
    if (!ts_marks_unsure(marks, queue_offset))
        return marks->timer_id;
    return marks->roll_times == 0 || ts_state_get(states, queue_offset) != TS_NONE
               ? queue_offset
               : marks->timer_id;
}

/* Return whether two texts of one size are equal. For short texts, where a call of memcmp is
 * expensive. */
static inline int32_t ts_is_same(const uint8_t *a, const uint8_t *b, int32_t size)
{
    uint64_t one, other;

    if (size < 8)
        return memcmp(a, b, (size_t)size) == 0;
    for (int32_t i = 0;; i += 8) {
        int32_t at = i < size - 8 ? i : size - 8;

        memcpy(&one, a + at, 8);
        memcpy(&other, b + at, 8);
        if (one != other)
            return 0;
        if (at == size - 8)
            return 1;
    }
}

static inline int32_t ts_text_is(const ts_text *text, const void *wanted, int32_t size)
{
    return text->size == size && memcmp(text->at, wanted, (size_t)size) == 0;
}

/* Return whether a handle with this topic, key and slot time names the timer. */
static inline int32_t ts_marks_named(const ts_marks *marks, const uint8_t *topic,
                                     int32_t topic_size, const uint8_t *key, int32_t key_size,
                                     int64_t out_ms)
{
    return marks->delete_key.at == NULL && marks->out_ms == out_ms &&
           marks->real_topic.at != NULL && marks->unique_key.at != NULL &&
           ts_text_is(&marks->real_topic, topic, topic_size) &&
           ts_text_is(&marks->unique_key, key, key_size);
}

/* Return the slot that is read before any message in it is due: due times are in (slot, slot + 1]
 * precisions. */
static inline int64_t ts_slot_of(int64_t due_ms, int64_t precision_ms)
{
    return (due_ms - 1) / precision_ms;
}

/* Return whether a record of the timer topic can be delivered at all. */
static inline int32_t ts_marks_usable(const ts_marks *marks)
{
    return marks->out_ms >= 0 && marks->real_topic.at != NULL && marks->real_topic.size > 0 &&
           marks->real_topic.size < 256 && marks->real_queue >= 0 && !marks->broken;
}

/* Return whether the queue of the delivery can exist. */
static inline int32_t ts_marks_have_queue(const ts_marks *marks)
{
    const ts_text *topic = &marks->real_topic;

    if (topic->at == NULL || topic->size < 1 || topic->size > 255 || marks->real_queue < 0 ||
        marks->real_queue >= TS_QUEUES_MAX)
        return 0;
    for (int32_t i = 0; i < topic->size; i++) {
        uint8_t c = topic->at[i];

        if (!((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
              c == '%' || c == '_' || c == '-' || c == '|'))
            return 0;
    }
    return 1;
}

/* Return whether a record that a broker's client wrote to the timer topic is a timer. Such a client
 * may name any topic, even those that the engine reads itself. */
static inline int32_t ts_timer_usable(const ts_marks *marks)
{
    const ts_text *topic = &marks->real_topic;

    return ts_marks_usable(marks) && ts_marks_have_queue(marks) &&
           !ts_text_is(topic, TS_TIMER_TOPIC, (int32_t)sizeof TS_TIMER_TOPIC - 1) &&
           !ts_text_is(topic, TS_LEVELS_TOPIC, (int32_t)sizeof TS_LEVELS_TOPIC - 1);
}

/* Return whether a record of the level topic can be delivered at all. A half message cannot: its
 * delivery would begin its transaction again. */
static inline int32_t ts_level_usable(const ts_marks *marks)
{
    static const char half[] = "RMQ_SYS_TRANS_HALF_TOPIC";
    const ts_text *topic = &marks->real_topic;

    if (marks->delay_level < 1 || !ts_marks_have_queue(marks))
        return 0;
    return topic->size != (int32_t)sizeof half - 1 ||
           memcmp(topic->at, half, sizeof half - 1) != 0;
}

/* Return where the byte first occurs, or end. Properties are short texts, so eight bytes at a time
 * are faster than calls of memchr. */
static inline const uint8_t *ts_find(const uint8_t *at, const uint8_t *end, uint8_t byte)
{
    const uint64_t ones = 0x0101010101010101u, highs = 0x8080808080808080u;

    for (; end - at >= 8; at += 8) {
        uint64_t word;

        memcpy(&word, at, 8);
        word ^= ones * byte;
        word = (word - ones) & ~word & highs;
        if (word != 0) {
            for (; *at != byte; at++) {
            }
            return at;
        }
    }
    while (at < end && *at != byte)
        at++;
    return at;
}

/* Read one pair of the text at *at, and move on. Return 0 at the end. Skips a pair without
 * separator. */
static inline int32_t ts_pair_next(const uint8_t *text, int32_t size, int32_t *at,
                                   ts_text *name, ts_text *value)
{
    while (*at < size) {
        const uint8_t *from = text + *at;
        const uint8_t *end = ts_find(from, text + size, 2);
        const uint8_t *split = ts_find(from, end, 1);

        *at = (int32_t)(end - text) + 1;
        if (split == end)
            continue;
        name->at = from;
        name->size = (int32_t)(split - from);
        value->at = split + 1;
        value->size = (int32_t)(end - split) - 1;
        return 1;
    }
    return 0;
}

#define TS_IS(text, literal) ts_text_is((text), (literal), (int32_t)sizeof(literal) - 1)

#endif
