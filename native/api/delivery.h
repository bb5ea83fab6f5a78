/* Delivery: due messages become records of their real topic, or roll. */

/* A record that was planned before the append lock is taken. */
typedef struct {
    int64_t id;
    int64_t at;         /* offset of its text in the scratch buffer; -1: built from its source */
    int64_t slot;
    int64_t due_ms;
    int64_t write_ms;   /* of its unit */
    int64_t placed;     /* out: log offset, or -1 if the id no longer waited */
    ts_route *route;    /* the queue of the record */
    ts_route *real;     /* the queue whose pending count it changes */
    const uint8_t *source; /* the record it is built from; mapped for as long as the view is held */
    int32_t body_size;
    int32_t plain_size; /* bytes of the source's properties, without group and CRC */
    int32_t size;       /* 0: no record can hold it */
    int32_t flags;
    int32_t has_hint;   /* the next three are known, and make its append hint */
    int32_t tags;
    int32_t has_tags;
    int32_t key_hash;
} ts_draft;

/* Counts of what became of drafts. Each call adds to them. Slots whose messages need no record any
 * more are counted in runs of equal neighbours; the caller has space for one run a draft. */
typedef struct {
    int64_t delivered;
    int64_t rolled;
    int64_t skipped;       /* did not wait any more */
    int64_t unroutable;    /* no record can hold the message (size 0) */
    int64_t gone;          /* removed from the log; a moved copy is delivered instead */
    int64_t moved;
    int64_t rolled_due_ms; /* the earliest due time of the rolled ones */
    int64_t runs;
    int64_t *slots;        /* [runs] */
    int64_t *counts;       /* [runs] */
} ts_tally;

/* The progress of a delivery. All zeros before the first call, except the buffers. */
typedef struct {
    uint8_t *scratch;
    int64_t scratch_bytes;
    ts_draft *drafts;
    int32_t draft_count;   /* drafts planned at a time, then placed in one critical section */
    int32_t planned;       /* drafts [placed, planned) are still to be placed */
    int32_t first;         /* drafts [first, placed) were placed last */
    int32_t placed;
    int32_t is_placing;    /* out, with a status: it is from placing, and `need` belongs to it */
    int64_t need;
    int64_t now_ms;        /* the time that the drafts were planned with */
    int64_t *late_ms;      /* delay of each delivered message; space for one a due entry */
    int64_t late_count;
} ts_delivery;

/* timer/deliver_plan.c. Read and check the sources of due entries, and write one draft for each.
 * Return how many were planned. Needs no lock. */
int32_t ts_deliver_plan(ts_view *view, const ts_routes *routes, const ts_log *log,
                        ts_route *timer_route, int64_t read_slot, const ts_due *due, int32_t count,
                        int64_t now_ms, uint8_t *scratch, int64_t scratch_bytes,
                        ts_draft *drafts);
/* timer/deliver_place.c. Append the records of the drafts [from, count), and change the states of
 * their ids. Return how many drafts are done. Needs the append lock, and the view of the plan. */
int32_t ts_deliver_place(ts_log *log, const uint8_t *scratch, ts_draft *drafts, int32_t from,
                         int32_t count, int64_t now_ms, ts_tally *tally);
/* Plan and place all entries, taking the append lock for some drafts at a time. Return how many are
 * done, or a status if the first cannot be done. Stops early after drafts that no record can hold.
 */
int32_t ts_deliver_many(ts_view *view, const ts_routes *routes, ts_log *log, ts_route *timer_route,
                        int64_t read_slot, const ts_due *due, int32_t count, int64_t now_ms,
                        ts_delivery *delivery, ts_tally *tally);

/* A due message of a fixed level. place: queue of the level topic << 48 | queue offset. */
typedef struct {
    int64_t place;
    int64_t log_offset;
    int64_t due_ms;
    int32_t size;
    int32_t run;        /* for the caller: which run of which level */
} ts_level_due;

/* The copy of a level's message, encoded before the append lock is taken. */
typedef struct {
    int64_t at;         /* offset in the scratch buffer */
    int64_t placed;     /* out: log offset, or -1 */
    int64_t due_ms;
    ts_route *route;    /* the queue of the copy */
    int32_t size;       /* 0: there is no copy */
    int32_t unusable;   /* it can never be delivered */
} ts_level_draft;

/* timer/levels.c. ts_level_encode needs no lock, ts_level_place the append lock. */
int32_t ts_level_encode(ts_view *view, const ts_routes *routes, const ts_log *log,
                        const ts_level_due *due, int32_t count, int64_t now_ms, uint8_t *scratch,
                        int64_t scratch_bytes, ts_level_draft *drafts);
int32_t ts_level_place(ts_log *log, const uint8_t *scratch, ts_level_draft *drafts, int32_t from,
                       int32_t count, int64_t now_ms);
