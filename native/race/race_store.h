/* The store that all threads share. A comment names the lock of a field. */
#ifndef TS_RACE_STORE_H
#define TS_RACE_STORE_H

#include <pthread.h>
#include <sched.h>

#include "test/check.h"

#include "base/hash.h"
#include "format/timer_unit.h"
#include "format/wheel_slot.h"
#include "log/encode.h"
#include "log/parse.h"
#include "log/view.h"
#include "timer/states.h"

enum {
    PUTTERS = 2, READERS = 2, ROUNDS = 400, BATCH = 8, REAL = 2, TIMER = REAL, ROUTES = REAL + 1,
    SEGMENT = 1 << 16, SEGMENTS = 128, HALF = 1 << 14, IDS_MAX = 20000, UNITS_MAX = 40000,
    TIMER_SEGMENT = 4096, TIMER_SEGMENTS = 2048, SLOTS = 256, PRECISION = 100, ROLL_SLOTS = 60,
    TABLE = 16, CAPACITY = 64, SERVICES = 5
};

#define STORE_ID 0xC0FFEE01u
#define START_MS ((int64_t)1700000000000)

typedef struct {
    pthread_mutex_t append, write, timer, open, given;
    int leave_out; /* omit a lock, to check that the sanitizer reports it */

    ts_log log; /* append */
    uint64_t marks[2];
    uint8_t *halves[2];
    int active; /* append */
    uint8_t *segments[SEGMENTS], *timer_segments[TIMER_SEGMENTS];
    ts_route routes[ROUTES];
    ts_route *table[TABLE];
    ts_routes known;
    ts_states states;
    uint8_t *blocks[1];
    ts_wheel wheel;                       /* timer */
    int64_t timer_end, read_slot, lowest;  /* timer */
    ts_heap heap;                         /* open */
    int64_t open_read_slot;                /* open */

    /* under the lock `given`, in place of the GIL */
    int64_t written, now_ms, outstanding[SLOTS], requested;
    uint8_t *queues[ROUTES];
    int64_t counts[ROUTES];
    int64_t source_at[IDS_MAX];
    int finished, stopping;
} store;

extern store *s;

/* race_store.c */
void lock(pthread_mutex_t *mutex);
void unlock(pthread_mutex_t *mutex);
int64_t get(const int64_t *of);
void set(int64_t *of, int64_t value);
int is_over(void);
void *zeros(int64_t size);
ts_view log_view(void);
void make_store(void);
void write_out(int roll);
void make_space(void);

/* race_putters.c */
void remember(int64_t id, int64_t log_offset);
void *putter(void *argument);

/* race_services.c */
int dispatch_step(void);
int enqueue_step(void);
int load_step(void);
int deliver_step(void);
void *service(void *argument);

#endif
