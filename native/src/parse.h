/* A record's properties, as far as the timer cares. */
#ifndef TS_PARSE_H
#define TS_PARSE_H

#include "../timerstore.h"
#include "../format/record.h"

typedef struct {
    const uint8_t *at; /* NULL: not there */
    int32_t size;
} ts_text;

typedef struct {
    ts_text real_topic;
    ts_text unique_key;
    ts_text delete_key;
    ts_text tags;
    int64_t out_ms;      /* -1: not there */
    int64_t deliver_ms;  /* -1: not there */
    int64_t timer_id;    /* -1: not there */
    uint32_t store_id;
    int32_t real_queue;  /* -1: not there */
    int32_t roll_times;
    int32_t delay_level;
    int32_t relative;    /* a relative delay stands beside */
    int32_t broken;      /* a number that does not parse */
    int64_t group_start; /* -1: not there; not looked for by ts_marks_get_timer */
    int64_t group_left;
    int32_t plain_size;  /* > 0: a source as this engine puts it; its bytes without the CRC pair */
} ts_marks;

/* What most records of one call share behind their own properties: the real topic and queue, as
 * text. Learned from the first, so that the others are compared instead of parsed. */
typedef struct {
    uint8_t real[320];
    int32_t real_size;    /* 0: nothing learned */
    int32_t topic_size;
    int32_t real_queue;
} ts_tail;

#define TS_TAIL_TIMES_BYTES 62 /* TIMER_ENQUEUE_MS and TIMER_DEQUEUE_MS with 13 digits each */

void ts_marks_get(const uint8_t *properties, int32_t size, ts_marks *marks);

/* The same for those who need no unique key and no tags: quick on what this engine wrote, quicker
 * where the tail is that of the record before. */
void ts_marks_get_timer(const uint8_t *properties, int32_t size, ts_tail *tail, ts_marks *marks);

/* A put's tail as it was learned, that ends at `end` and of which `size` bytes may be read: how many
 * bytes it takes with the UNIQ_KEY pair in front of it, or 0. Sets what it says of a timer. */
int32_t ts_tail_get(const ts_tail *tail, const uint8_t *end, int32_t size, ts_marks *marks);

/* When the message is due, from its marks: 0 where it is no timer. */
static inline int64_t ts_marks_due(const ts_marks *marks, int64_t precision_ms)
{
    if (marks->out_ms < 0)
        return 0;
    if (marks->deliver_ms >= 0 && !marks->relative)
        return marks->deliver_ms;
    if (marks->out_ms > INT64_MAX - precision_ms)
        return INT64_MAX;
    return marks->out_ms + precision_ms;
}

/* The slot that is read before anything due in it: due lies in (slot, slot + 1] precisions. */
static inline int64_t ts_slot_of(int64_t due_ms, int64_t precision_ms)
{
    return (due_ms - 1) / precision_ms;
}

/* Whether a record of the timer topic can be delivered at all. */
static inline int32_t ts_marks_usable(const ts_marks *marks)
{
    return marks->out_ms >= 0 && marks->real_topic.at != NULL && marks->real_topic.size > 0 &&
           marks->real_topic.size < 256 && marks->real_queue >= 0 && !marks->broken;
}

/* Where the byte first stands, or end. Properties are short texts: eight bytes at a time is quicker
 * than a call of memchr for each. */
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

/* One pair of the text at *at; moves on. 0 at the end. A pair without separator is passed over. */
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

static inline int32_t ts_text_is(const ts_text *text, const char *name, int32_t size)
{
    return text->size == size && memcmp(text->at, name, (size_t)size) == 0;
}

#define TS_IS(text, literal) ts_text_is((text), (literal), (int32_t)sizeof(literal) - 1)

#endif
