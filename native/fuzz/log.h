/* A commit log made of an input's bytes, and the routes that its records need. */
#ifndef TS_FUZZ_LOG_H
#define TS_FUZZ_LOG_H

#include <sanitizer/asan_interface.h>

#include "fuzz.h"

#include "base/checksum.h"
#include "base/hash.h"
#include "format/properties.h"
#include "log/encode.h"
#include "log/parse.h"
#include "log/view.h"
#include "log/walk.h"
#include "timer/states.h"

enum { FUZZ_SEGMENTS = 16, FUZZ_ROUTES = 24, FUZZ_TABLE = 64, FUZZ_LOG_BYTES = 8192 };

#define FUZZ_STORE_ID 0xC0FFEE01u

typedef struct {
    ts_view view;
    uint8_t *segments[FUZZ_SEGMENTS];
    ts_routes known;
    ts_route *table[FUZZ_TABLE];
    ts_route *by_index[FUZZ_ROUTES];
    ts_route routes[FUZZ_ROUTES];
    int32_t route_count;
    uint8_t *blocks[1];
    ts_states states;
} fuzz_log;

enum { FUZZ_IDS = 4096 };

/* Make the states of the first ids of a block. The block is shared by all inputs, because most of
 * it is never read. */
static inline void fuzz_states_make(fuzz_log *log)
{
    static uint8_t block[TS_BLOCK_BYTES + TS_BLOCK_CHUNKS];

    memset(block, 0, FUZZ_IDS / 4);
    memset(block + TS_BLOCK_BYTES, 0, TS_BLOCK_CHUNKS);
    log->blocks[0] = block;
    log->states = (ts_states){log->blocks, FUZZ_IDS, 0};
}

/* Give each record with valid lengths its place and its CRCs. Otherwise the code after these checks
 * would be reached by one input in four billion. */
static inline void fuzz_repair(uint8_t *bytes, int64_t size, int64_t segment_bytes)
{
    for (int64_t at = 0; at + 8 <= size;) {
        int64_t left = segment_bytes - at % segment_bytes;
        ts_record record;
        uint32_t crc;
        int32_t blank;

        if (ts_blank_is(bytes + at, size - at, &blank)) {
            ts_put_i32(bytes + at, (int32_t)left);
            at += left;
            continue;
        }
        if (ts_record_get(bytes + at, size - at < left ? size - at : left, &record) != 0)
            return;
        ts_put_i64(bytes + at + TS_RECORD_AT_LOG_OFFSET, at);
        ts_put_i32(bytes + at + TS_RECORD_AT_BODY_CRC,
                   (int32_t)(ts_crc32(0, record.body, record.body_size) & 0x7FFFFFFFu));
        if (record.properties_size >= TS_PROPERTY_CRC_BYTES &&
            ts_property_crc_get(bytes + at + record.size - TS_PROPERTY_CRC_BYTES, &crc))
            ts_property_crc_set(bytes + at, record.size);
        at += record.size;
    }
}

/* Make a log of the rest of the input; its first two bytes choose how. A read past the log's end is
 * detected like one past a buffer. */
static inline void fuzz_log_make(fuzz_log *log, fuzz_input *in)
{
    int32_t is_repaired = fuzz_below(in, 2);
    int64_t segment_bytes = (int64_t)512 << fuzz_below(in, 4), end;
    size_t took;
    uint8_t *bytes = fuzz_take(in, FUZZ_LOG_BYTES, &took);

    memset(log, 0, sizeof *log);
    end = (int64_t)took;
    if (is_repaired)
        fuzz_repair(bytes, end, segment_bytes);
    for (int64_t at = 0; at < end; at += segment_bytes) {
        int64_t size = end - at < segment_bytes ? end - at : segment_bytes;
        uint8_t *segment = fuzz_zeros(segment_bytes, 1);

        memcpy(segment, bytes + at, (size_t)size);
        ASAN_POISON_MEMORY_REGION(segment + size, (size_t)(segment_bytes - size));
        log->segments[at / segment_bytes] = segment;
    }
    free(bytes);
    log->view = (ts_view){.segments = (const uint8_t **)log->segments, .end = end,
                          .segment_count = FUZZ_SEGMENTS, .segment_bytes = segment_bytes};
    log->known = (ts_routes){log->table, FUZZ_TABLE - 1};
    fuzz_states_make(log);
}

static inline void fuzz_log_free(fuzz_log *log)
{
    for (int32_t i = 0; i < FUZZ_SEGMENTS; i++) {
        if (log->segments[i] != NULL)
            ASAN_UNPOISON_MEMORY_REGION(log->segments[i], (size_t)log->view.segment_bytes);
        free(log->segments[i]);
    }
}

static inline ts_route *fuzz_route(fuzz_log *log, const uint8_t *topic, int32_t size,
                                   int32_t queue_id)
{
    ts_route *route = ts_route_find(&log->known, topic, size, queue_id);
    uint64_t at = ts_route_key(topic, size, queue_id) & log->known.mask;

    if (route != NULL || log->route_count == FUZZ_ROUTES || size > 255)
        return route;
    route = &log->routes[log->route_count];
    route->index = log->route_count;
    route->queue_id = queue_id;
    route->topic_size = size;
    memcpy(route->topic, topic, (size_t)size);
    route->topic_hash = ts_topic_hash(topic, size);
    route->kind = size == 19 && memcmp(topic, TS_TIMER_TOPIC, 19) == 0    ? TS_ROUTE_TIMER
                  : size == 19 && memcmp(topic, TS_LEVEL_TOPIC, 19) == 0 ? TS_ROUTE_LEVELS
                                                                         : TS_ROUTE_REAL;
    route->real_size = snprintf((char *)route->real, sizeof route->real,
                                "REAL_TOPIC\001%.*s\002REAL_QID\001%d\002", size,
                                (const char *)topic, queue_id);
    log->by_index[log->route_count++] = route;
    while (log->table[at] != NULL)
        at = (at + 1) & log->known.mask;
    log->table[at] = route;
    return route;
}

/* Make the route that a call needs, as Python does: of the record's own topic, or of its real
 * topic. Return 0 if there are enough routes, or if Python would not make this one. */
static inline int32_t fuzz_route_needed(fuzz_log *log)
{
    int32_t before = log->route_count;
    ts_record record;
    ts_marks marks;

    if (ts_view_record(&log->view, log->view.need, &record) != TS_OK)
        return 0;
    fuzz_route(log, record.topic, record.topic_size, record.queue_id);
    ts_marks_get(record.properties, record.properties_size, &marks);
    if (marks.real_topic.at != NULL && marks.real_topic.size < 256 && marks.real_queue >= 0)
        fuzz_route(log, marks.real_topic.at, marks.real_topic.size, marks.real_queue);
    return log->route_count > before;
}

/* Fold a scan of the log to states, and collect the offsets of at most `most` records. Return their
 * number. */
static inline int32_t fuzz_log_fold(fuzz_log *log, int64_t precision_ms, int64_t *offsets,
                                    int32_t most)
{
    ts_scanned out[7];
    int64_t at = 0, next = 0, need = 0;
    int32_t found = 0, got;

    for (;;) {
        got = ts_scan(&log->view, &log->known, precision_ms, at, &next, 7, out);
        if (got == TS_NEED_ROUTE && fuzz_route_needed(log))
            continue;
        if (got <= 0)
            return found;
        /* If a blank reaches past the end, this is the start of the next segment. */
        CHECK(next > at && next < log->view.end + log->view.segment_bytes);
        for (int32_t i = 0; i < got; i++) {
            CHECK(out[i].size >= TS_RECORD_FIXED_BYTES);
            if (found < most)
                offsets[found++] = out[i].log_offset;
        }
        for (int32_t i = 0; i < got; i++) /* an id without a block is skipped */
            (void)ts_states_fold(&log->states, log->by_index, out + i, 1, FUZZ_STORE_ID, &need);
        at = next;
    }
}

#endif
