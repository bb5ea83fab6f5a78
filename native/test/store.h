/* A store in memory, for tests: a commit log of a few segments, each of which is the staging in
 * turn; consume queues, timer log and wheel as arrays. All are heap buffers of exactly their size.
 */
#ifndef TS_TEST_STORE_H
#define TS_TEST_STORE_H

#include "check.h"

#include "timer/states.h"
#include "timerstore.h"

enum {
    REAL = 3, ROUTES = REAL + 2, TIMER = REAL, LEVELS = REAL + 1, TABLE = 16,
    SEGMENTS = 64, TIMER_SEGMENTS = 256, UNITS_MAX = 8192, IDS_MAX = 4096, BATCH = 64,
    BLOCK_BYTES = TS_BLOCK_BYTES + TS_BLOCK_CHUNKS, ROLL_SLOTS = 12
};

#define STORE_ID 0xC0FFEE01u
#define TAGGED "TAGS\001green\002"

typedef struct {
    int64_t precision_ms, segment_bytes, timer_segment_bytes, slot_count, start_ms;
    int32_t property_crc;
} shape;

typedef struct {
    shape is;
    ts_log log;
    uint64_t filled_mark;
    ts_view view, timer_view;
    uint8_t *segments[SEGMENTS], *timer_segments[TIMER_SEGMENTS];
    ts_route routes[ROUTES];
    ts_route *table[TABLE], *by_index[ROUTES];
    ts_routes known;
    ts_states states;
    uint8_t *blocks[1];
    ts_wheel wheel;
    uint8_t *queues[ROUTES];        /* their units */
    int32_t counts[ROUTES];
    int64_t dispatched, requested;  /* log offset; queue offset of the timer topic */
    int64_t timer_end, read_slot;
    ts_open open;
    int64_t unique;
    /* what the test expects */
    int64_t now_ms;
    int64_t due_ms[IDS_MAX];        /* by timer id; 0: not a source */
    int64_t source_at[IDS_MAX];
    int32_t real[IDS_MAX], cancelled[IDS_MAX];
    int64_t rolled, late, cuts;
    int64_t heads[ROUTES];
} store;

/* store.c */
void *bytes_of(int64_t size);
void know_route(store *s, int32_t index);
uint8_t *log_segment(store *s, int64_t number);
void make_heap(ts_heap *heap, int64_t capacity);
void free_heap(ts_heap *heap);
void free_open(ts_open *open);
void load_open(store *s, const ts_due *in, int32_t count);
store *make_store(const shape *is);
void free_store(store *s);
int64_t log_end(const store *s);
void give_space(store *s);
void give_states(store *s);
void serve_log(store *s, int64_t status);

/* store_put.c */
void put_many(store *s, uint64_t *seed, int32_t index, int32_t count, int32_t ahead_ms);
void put_one(store *s, int32_t index, int64_t due_ms);
int32_t delete_text(const store *s, int64_t id, char *text);
void cancel(store *s, int64_t id);
void reschedule(store *s, int64_t id, int64_t due_ms);

/* store_services.c */
void dispatch(store *s);
void enqueue(store *s, int32_t batch);
void dequeue(store *s, int32_t capacity);
void deliver(store *s, int32_t capacity);
void step(store *s, uint64_t *seed);

/* store_check.c */
void check_scan(store *s);
void check_end(store *s);

#endif
