/* The timing wheel, the chains of its slots, and the far wheel. */

typedef struct {
    uint8_t *slots;        /* 32 bytes each */
    uint8_t *dirty_pages;  /* one byte per 4096 bytes of slots */
    int64_t slot_count;
    int64_t precision_ms;
    uint64_t *used;        /* NULL, or a bit per slot: clear if the slot is empty, or for a time
                              below used_from */
    int64_t used_from;     /* set all bits before it is lowered */
} ts_wheel;

/* A unit of the far wheel (format/far_unit.h). */
typedef struct {
    int64_t number;          /* counted from the first unit of the far log */
    int64_t previous;        /* number of the previous unit of its slot; -1 */
    int64_t id;
    int64_t log_offset;
    int64_t due_ms;
    int64_t slot;            /* of the far wheel */
    int32_t size;
    int32_t topic_hash;
} ts_far_unit;

/* The rules of one ts_timer_link call, and its results. */
typedef struct {
    int64_t pos;             /* in, out: timer log position of the next unit */
    int64_t segment_bytes;   /* of the timer log */
    int64_t write_slot;      /* slot number of the current time */
    int64_t read_slot;       /* lower slots were loaded: a message for one of them is late */
    int64_t reuse_below;     /* a lower slot's contents of an earlier lap may be overwritten */
    int64_t read_below;      /* the same for lower slots that are not in `kept` */
    const int64_t *kept;     /* ascending */
    int32_t kept_count;
    int32_t overflows;       /* 1: a message without a slot waits in the open slot and far wheel */
    int64_t overflow_slot;   /* the slot of the far wheel for such messages */
    int64_t roll_slots;
    int64_t bytes;           /* out: bytes written to the unit buffer */
    int64_t first_slot;      /* out: lowest unread slot that got a unit; INT64_MAX if none */
    int32_t late_count;      /* out */
    int32_t cut;             /* out: 1 if the timer-log segment was ended with a blank */
    int64_t near_slots;      /* a message this close past the roll window gets its own slot */
    int64_t far_width;       /* wheel slots per far slot; 0: messages past the window roll */
    int64_t far_last;        /* the highest far slot; it takes all later messages */
    int64_t spread_slots;    /* rolls are spread over this many slots; 0: as a broker does */
    int64_t spread_at;       /* in, out: how many were spread */
    ts_far_unit *far;        /* out: units for the far wheel; space for one a request */
    int32_t far_count;       /* out */
} ts_link;

/* A timer unit to be written again by timer/chain_compaction.c. */
typedef struct {
    int64_t pos;
    int32_t is_dead;      /* no chain holds it any more */
    uint8_t unit[52];
} ts_patch;

/* Progress along a slot's chain. All zeros before the first call. */
typedef struct {
    int32_t has_begun;
    int32_t kept;            /* units that stay */
    int64_t pos;             /* of the next unit; -1: at the end */
    int64_t last_pos;        /* of the newest unit that stays; -1 */
    int64_t first_pos;       /* of the oldest unit that stays, so far */
    int64_t patches;         /* how many were written */
    uint8_t first[52];       /* the unit at first_pos */
} ts_chain_walk;

/* timer/link.c. Give each request a slot and a unit. Return how many were linked, or TS_BLOCKED.
 * `late` gets the messages that belong into the open slot at once. Needs the timer lock. */
int32_t ts_timer_link(ts_wheel *wheel, ts_link *link, const ts_states *states,
                      const ts_request *requests, int32_t count, uint8_t *units,
                      int64_t units_bytes, ts_due *late);

/* timer/wheel.c. All functions run under the timer lock. */

/* Return the first used slot of [from, to), or -1. */
int64_t ts_wheel_next(const ts_wheel *wheel, int64_t from, int64_t to);
/* Write the first used slots, and how many units each of them counts. Return their number. */
int32_t ts_wheel_next_many(const ts_wheel *wheel, int64_t from, int64_t to, int64_t *slots,
                           int64_t *units, int32_t capacity);
/* Return the first slot of [from, to), at most a lap, that counts at least count_min units, or -1.
 */
int64_t ts_wheel_burst(const ts_wheel *wheel, int64_t from, int64_t to, int32_t count_min,
                       int32_t *count);
/* Read the units of a slot's chain from *pos on. Return their number. */
int32_t ts_wheel_load(ts_view *timer_log, const ts_wheel *wheel, int64_t slot, int64_t *pos,
                      int32_t capacity, ts_chained *out);
/* Read several chains, one unit of each in turn, so that their cache misses overlap. A position is
 * -2 before the first call, -1 at the end of the chain, else where the next call continues. */
int32_t ts_wheel_load_many(ts_view *timer_log, const ts_wheel *wheel, const int64_t *slots,
                           int64_t *positions, int32_t slot_count, int32_t capacity,
                           ts_chained *out);
/* Add up the units of all chains of the slots [*from, to). After a status < 0 call again: it
 * continues at *from and *pos. *pos is -1 at first. */
int32_t ts_wheel_count(ts_view *timer_log, const ts_wheel *wheel, int64_t *from, int64_t *pos,
                       int64_t to, int64_t *units);
/* Copy the pages that changed since the last call, and clear their flags. Return their number. */
int64_t ts_wheel_copy_dirty(ts_wheel *wheel, int64_t *pages, uint8_t *out, int64_t capacity);
/* Empty the slots of [begin, end) that are not in `kept`, which ascends. Return how many changed.
 */
int64_t ts_wheel_empty(ts_wheel *wheel, int64_t begin, int64_t end, const int64_t *kept,
                       int64_t kept_count);
/* Cut each chain down to the units below timer_log_end. Return how many slots changed, or a status.
 */
int64_t ts_wheel_cut(ts_view *timer_log, ts_wheel *wheel, int64_t timer_log_end);
/* Read a slot. Return whether it is used. */
int32_t ts_wheel_slot(const ts_wheel *wheel, int64_t slot, int64_t *first_pos, int64_t *last_pos,
                      int32_t *count);

/* timer/far.c. ts_far_link runs under the timer lock. */

/* Number consecutive units from `number` on, chain them, and encode them. places[k] is the index of
 * unit k's slot in heads. heads has the last number of each slot, and is updated. */
void ts_far_link(ts_far_unit *units, const int32_t *places, int32_t count, int64_t number,
                 int64_t *heads, uint8_t *out);
/* Read a slot's chain from *number on, newest unit first. *number becomes -1 after the oldest. */
int32_t ts_far_walk(ts_view *view, int64_t slot, int64_t *number, int32_t capacity,
                    ts_far_unit *out);
/* Read consecutive units. Return how many were valid. */
int32_t ts_far_scan(ts_view *view, int64_t number, int32_t count, ts_far_unit *out);
/* Drop the units that wait no more, and those whose record was moved. Return how many are left. */
int32_t ts_far_pending(const ts_states *states, int64_t log_begin, ts_far_unit *units,
                       int32_t count);

/* timer/chain_compaction.c. No other call may run concurrently. After TS_NEED_SEGMENT call again
 * with the same walk: a chain may lie in more files than are mapped at a time. */

/* Cut a slot's chain down to the units that deliver a living message. living: log offsets,
 * ascending. is_kept: whether a unit of the message was kept already; each message keeps one unit.
 */
int64_t ts_wheel_compact_chain(ts_view *timer_log, ts_wheel *wheel, int64_t slot, int64_t read_slot,
                               const int64_t *living, uint8_t *is_kept, int64_t living_count,
                               ts_patch *patches, int64_t capacity, ts_chain_walk *walk);
/* Set a slot's first position and count from its chain. */
int32_t ts_wheel_recount(ts_view *timer_log, ts_wheel *wheel, int64_t slot, ts_chain_walk *walk);
/* Write the positions of a slot's chain that are not lower than `from`, descending. */
int64_t ts_wheel_chain_positions(ts_view *timer_log, ts_wheel *wheel, int64_t slot, int64_t from,
                                 int64_t *positions, int64_t capacity, ts_chain_walk *walk);
/* Make patches for the units of [from, end) that no chain holds. `held` has the positions that a
 * chain holds, ascending. If it is NULL, the units themselves tell; this is valid right after all
 * chains were linked again. */
int64_t ts_timer_log_unchained(ts_view *timer_log, const ts_wheel *wheel, int64_t from,
                               int64_t *next, int64_t read_slot, const int64_t *held,
                               int64_t held_count, ts_patch *patches, int64_t capacity);

/* timer/unit_checksum.c: pure. Set is_sound[k] to whether unit k is valid. The units are
 * consecutive from position `pos` on. */
void ts_units_check(const uint8_t *units, int64_t count, int64_t pos, uint8_t *is_sound);
