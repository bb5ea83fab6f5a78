/* Timers on their way from the timer topic to the open slot. */

/* Flags of requests and due entries. */
enum ts_flag {
    TS_FLAG_DELETE = 1, TS_FLAG_UNUSABLE = 2, TS_FLAG_ROLL = 4,
    TS_FLAG_MOVE = 8,  /* append it unchanged to the log's end, because its segment is removed
                        * next */
    TS_FLAG_GONE = 16, /* out: its segment was removed; a moved copy exists */
    TS_FLAG_AGAIN = 32 /* it had a unit before; without a slot it gets no new one, unless
                        * UNUSABLE */
};

/* One message of the timer topic, on its way to the wheel. */
typedef struct {
    int64_t id;
    int64_t log_offset;
    int64_t due_ms;
    int64_t out_ms;
    int64_t queue_offset;
    int32_t size;
    int32_t topic_hash;
    int32_t flags;
    int32_t roll_times;
} ts_request;

/* The requests of one call. */
typedef struct {
    ts_request *at;
    int32_t count;        /* out */
    uint32_t store_id;
    int64_t precision_ms;
    const ts_states *states;
} ts_requests;

/* A timer unit that was read from a slot's chain. */
typedef struct {
    int64_t log_offset;
    int64_t slot;       /* slot number: time / precision */
    int64_t write_ms;
    int32_t size;
    int32_t magic;
    int32_t topic_hash; /* of the real topic */
    int32_t unused;
} ts_chained;

/* A message of a loaded slot. Entries are ordered by (wake_ms, id). */
typedef struct {
    int64_t wake_ms;    /* when the entry is handled: its due time, or the time it rolls */
    int64_t id;
    int64_t due_ms;
    int64_t log_offset;
    int64_t slot;       /* the slot of its unit, which a checkpoint must keep */
    int64_t write_ms;
    int32_t size;
    int32_t flags;
    int32_t topic_hash;
    int32_t unused;
} ts_due;

/* The key that the heap moves: 24 bytes instead of a whole entry. */
typedef struct {
    int64_t wake_ms;
    int64_t id;
    int64_t at;          /* index of its entry */
} ts_heap_key;

typedef struct {
    ts_heap_key *keys;   /* [capacity], four children to a node */
    ts_due *entries;     /* [capacity]; an entry never moves */
    int64_t *unused;     /* [capacity], a stack of free indexes of entries */
    int64_t count;
    int64_t unused_count;
    int64_t capacity;
} ts_heap;

/* Entries in order of (wake_ms, id). Those before `at` were taken. */
typedef struct {
    const ts_due *entries;
    int64_t at;
    int64_t end;
} ts_run;

enum { TS_RUNS_MAX = 128 };

/* The open slot: large batches as sorted runs, single entries in a heap. */
typedef struct {
    ts_heap heap;
    ts_run runs[128]; /* TS_RUNS_MAX */
    int64_t run_count;
    int64_t is_full;     /* out: 1 if a pop stopped because the heap was full */
} ts_open;

/* timer/due.c */

/* Read the requests of queue units of the timer topic. Return how many were read. */
int32_t ts_timer_requests(ts_view *view, const uint8_t *units, int32_t count,
                          int64_t queue_offset, const ts_states *states, uint32_t store_id,
                          int64_t precision_ms, ts_request *out);
/* Read the requests that link loaded entries once more. Return how many were read. */
int32_t ts_due_requests(ts_view *view, const ts_due *due, int32_t count, const ts_states *states,
                        uint32_t store_id, int64_t precision_ms, ts_request *out);
/* Read the due entries of chained units. Return how many units were read. Entries that wait are
 * written without gaps; view->need is their number. */
int32_t ts_due_load(ts_view *view, const ts_states *states, uint32_t store_id,
                    int64_t precision_ms, int64_t read_slot, const ts_chained *chained,
                    int32_t count, ts_due *out);

/* timer/heap.c, timer/open_slot.c. The Python side holds the open slot's lock. */

/* Push entries. The caller has checked that they fit. */
void ts_heap_push(ts_heap *heap, const ts_due *in, int64_t count);
/* Sort `in` to `out`. keys has space for 2 * count. */
void ts_run_sort(const ts_due *in, int64_t count, ts_heap_key *keys, ts_due *out);
/* Merge the remaining entries of at most TS_RUNS_MAX runs to `out`. */
void ts_runs_merge(const ts_run *runs, int64_t count, ts_due *out);
/* Take the entries with wake_ms <= until_ms, in order. Return their number. */
int64_t ts_open_pop(ts_open *open, int64_t until_ms, int64_t read_slot, int64_t precision_ms,
                    ts_due *out, int64_t capacity);
/* Return the first wake_ms, or INT64_MAX if the open slot is empty. */
int64_t ts_open_wake(const ts_open *open);
