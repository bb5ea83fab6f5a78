/* The door of the C part: every name that Python may call or read, and nothing else.
 *
 * Read twice: by the C compiler (through timerstore.h) and by cffi, hence no #include and no #if.
 * C works on memory it is handed: it keeps nothing (but guard.c), allocates nothing, opens nothing. Each call
 * lets go of the GIL; what may run beside what is said at each name. "Under the append lock" and
 * "under the timer lock" name locks of the Python side (log/commit_log.py, timer/wheel.py).
 *
 * Answers: >= 0 is a count or an offset; negative is one of enum ts_status.
 */

enum ts_status {
    TS_OK = 0,
    TS_CORRUPT = -1,      /* bytes from disk break their format; .fault_offset tells where */
    TS_FULL = -2,         /* no space on disk */
    TS_VERSION = -3,      /* a known file of an unknown version */
    TS_INVALID = -4,      /* the caller's argument */
    TS_NEED_SEGMENT = -10, /* .need: number of a segment that must be mapped first */
    TS_NEED_ROUTE = -11,   /* .need: log offset of a record whose topic and queue have no route */
    TS_NEED_SPACE = -12,    /* .need: bytes that do not fit the reserved part or the staging half */
    TS_NEED_STATES = -13,  /* .need: timer id that has no block in the state table */
    TS_NEED_IDS = -15,     /* .need: message ids for which the newest table has no room */
    TS_REENTRANT = -16,         /* the append lock is this thread's already */
    TS_BLOCKED = -14       /* every slot that could take the request still waits to be read */
};

/* What a timer id is. Two bits, monotone: 0 or 1 to 2 or 3. */
enum ts_state { TS_NONE = 0, TS_WAITING = 1, TS_DELIVERED = 2, TS_CANCELLED = 3 };

/* What one scanned record means to the fold (timerstore/_engine/log/fold.py). */
enum ts_kind {
    TS_KIND_ORDINARY = 0,
    TS_KIND_TIMER = 1,
    TS_KIND_DELETE = 2,
    TS_KIND_DELIVERED = 3,
    TS_KIND_LEVEL = 4,
    TS_KIND_LEVEL_DELIVERED = 5,
    TS_KIND_UNUSABLE = 6,
    TS_KIND_LEVEL_UNUSABLE = 7
};

enum ts_route_kind { TS_ROUTE_REAL = 0, TS_ROUTE_TIMER = 1, TS_ROUTE_LEVELS = 2 };

/* Flags of requests and due entries. */
enum ts_flag {
    TS_FLAG_DELETE = 1, TS_FLAG_UNUSABLE = 2, TS_FLAG_ROLL = 4,
    TS_FLAG_MOVE = 8, /* to the log's end, as it is: its segment is to go */
    TS_FLAG_GONE = 16, /* out: its segment is gone, and a copy of it was moved */
    TS_FLAG_AGAIN = 32 /* had a unit before: gets none where it has no slot, unless UNUSABLE */
};

/* Fixed-size segments of one append-only space, as far as they are mapped. One view a caller. */
typedef struct {
    const uint8_t **segments; /* [number - first_segment]; NULL: not mapped */
    int64_t first_segment;
    int64_t segment_count;
    int64_t segment_bytes;
    int64_t begin;            /* offsets below are gone: retention removed them */
    int64_t end;              /* offsets from here on are not in the files */
    int64_t need;             /* out, with TS_NEED_* */
    int64_t fault_offset;     /* out, with TS_CORRUPT */
    int32_t fault;            /* out, with TS_CORRUPT: enum ts_fault */
    int64_t group_start;      /* of ts_scan: the group (format/group.h) that the last record read */
    int64_t group_end;        /* belongs to; where this lies beyond that record, it is not whole */
} ts_view;

enum ts_fault {
    TS_FAULT_NONE = 0,
    TS_FAULT_END = 1,           /* zeros: the log ends here */
    TS_FAULT_SHORT = 2,         /* a length reaches beyond the segment */
    TS_FAULT_MAGIC = 3,
    TS_FAULT_LENGTHS = 4,       /* lengths inside the record do not add up */
    TS_FAULT_POSITION = 5,      /* PHYSICALOFFSET is not the record's position */
    TS_FAULT_BODY_CRC = 6,
    TS_FAULT_PROPERTY_CRC = 7,
    TS_FAULT_TOPIC = 8,         /* the record belongs to another topic or queue */
    TS_FAULT_PROPERTIES = 9,    /* a property that must be there is not, or does not parse */
    TS_FAULT_CHAIN = 10,        /* a timer unit that its slot cannot hold */
    TS_FAULT_GONE = 11          /* below the view's begin: no damage */
};

/* One queue of one topic. next_offset, pending, level_pending: under the append lock. */
typedef struct {
    int64_t next_offset;  /* queue offset that the next record of this queue gets */
    int64_t pending;      /* timers that wait for this topic and queue */
    int64_t level_pending; /* messages of fixed levels that do; who appends them counts them */
    int32_t index;        /* of this route, dense from 0 */
    int32_t kind;         /* enum ts_route_kind */
    int32_t queue_id;
    int32_t topic_hash;   /* Java's hashCode of the topic */
    uint32_t key_prefix;  /* the same of topic#, and what all ids begin with; 0: not known yet */
    int32_t topic_number; /* dense from 1, the same for all queues of a topic */
    int32_t topic_size;
    int32_t real_size;
    uint8_t topic[256];
    uint8_t real[320];    /* REAL_TOPIC and REAL_QID as property text */
} ts_route;

/* Open addressing; written by Python only, entries are never removed. */
typedef struct {
    ts_route **slots;
    uint64_t mask;
} ts_routes;

/* Two bits per timer id, in chunks as they lie on disk. */
typedef struct {
    uint8_t **blocks;     /* 128 chunks of 480 bytes (1920 ids) each, then 128 dirty flags; NULL:
                             none of them waits, and no record of theirs is in the log */
    int64_t end;          /* ids below have a block */
    int64_t waiting;      /* how many ids wait */
} ts_states;

/* How many messages wait, by topic and time: timer/calendar.h. Under the append lock. */
typedef struct {
    uint64_t key;         /* 0: empty */
    int64_t count;
} ts_calendar_cell;

typedef struct {
    ts_calendar_cell *cells; /* [mask + 1], a power of two */
    uint64_t mask;
    int64_t used;         /* cells that have a key */
    int64_t limit;        /* of used */
    ts_states *left;      /* while it is being filled: what still has to be; else NULL */
} ts_calendar;

/* What is looked for in a record that was just appended: log/append_hints.h. */
typedef struct {
    int64_t log_offset;
    int64_t queue_offset;
    int64_t store_ms;
    int64_t due_ms;           /* of a timer */
    const ts_route *route;    /* its queue */
    const ts_route *real;     /* of a timer: where it goes when it is due; else NULL */
    int32_t size;
    int32_t tags;             /* the tag's hash, 0 where there is none */
    int32_t key_hash;         /* of its id, as in the index */
    int32_t has_tags;
} ts_append_hint;

typedef struct {
    ts_append_hint *at;              /* [capacity], a power of two */
    int64_t capacity;
    int64_t tail;             /* notes that were made; under the append lock */
    int64_t apart[8];         /* two who write do not share a line */
    int64_t head;             /* notes that were taken; who dispatches */
} ts_append_hints;

/* The commit log's end. Everything here: under the append lock. */
typedef struct {
    void *lock;               /* a pthread_mutex_t, the append lock; NULL: nobody else appends */
    uint8_t *staging;         /* the active half */
    int64_t *filled_mark;     /* in the staging's header: bytes of the half a recovery may trust */
    int64_t staging_bytes;    /* a half is written out beyond; one record and a blank always fit */
    int64_t base;             /* log offset of staging[0] */
    int64_t filled;           /* bytes of the half in use */
    int64_t append_limit;         /* log offset up to which records may reach */
    int64_t segment_bytes;
    int64_t need;             /* out, with TS_NEED_* */
    int64_t precision_ms;
    int64_t last_store_ms;    /* out: store time of the newest record */
    int64_t near_ms;          /* what is put due later waits for dispatch until it comes by itself */
    int64_t soon_ms;          /* what is put due later, for it to come within milliseconds */
    int64_t near_end;         /* out: log offset behind the last record that is due before near_ms */
    int64_t soon_end;         /* out: the same, before soon_ms */
    int64_t out[2];           /* of a single put: queue offset or timer id, unique counter; of a
                                 cancel or a reschedule: queue offset or timer id, log end */
    int64_t unique_counter;   /* low 48 bits of the next UNIQ_KEY */
    int64_t put_count;        /* messages put since opening */
    int64_t cancel_count;     /* messages cancelled since opening */
    int64_t reschedule_count; /* messages given another time since opening */
    ts_route *timer_route;
    ts_states *states;
    ts_calendar *calendar;    /* NULL: nobody counts; too full: TS_NEED_STATES, too */
    ts_append_hints *hints;          /* NULL: nobody reads them */
    uint8_t *templates;            /* forms of single puts: log/template_cache.h, ts_template_cache_bytes; NULL: none are */
    int32_t dispatch_scheduled;   /* dispatch looks within milliseconds by itself: soon_ms */
    int32_t flush_armed;      /* flush or dispatch look by themselves within the flush interval: who
                                 puts what is due later need not wake them */
    uint32_t store_id;
    int32_t property_crc;     /* whether records carry __CRC32# */
    uint8_t host[8];          /* store host and born host: IPv4 and port */
    uint8_t unique_prefix[20];
} ts_log;

/* A text that may be left out: then it has no bytes. */
typedef struct {
    const uint8_t *at;
    int32_t size;
} ts_slice;

/* Messages to put, as columns. Row k of a text is texts[offsets[k] .. offsets[k + 1]). */
typedef struct {
    const ts_slice *parts;        /* NULL, or each body where it lies, in place of the next two */
    const uint8_t *bodies;
    const int64_t *body_offsets;
    const int64_t *due_ms;        /* NULL: now, as is a time that has passed */
    const uint8_t *properties;    /* property text, the same for all */
    const uint8_t *extra;         /* NULL, or property text of each */
    const int64_t *extra_offsets;
    const uint8_t *tags;          /* NULL, or values of TAGS; an empty one is left out */
    const int64_t *tag_offsets;
    const uint8_t *keys;          /* the same of KEYS */
    const int64_t *key_offsets;
    const uint8_t *ids;           /* the same of UNIQ_KEY; the store makes what is left out */
    const int64_t *id_offsets;
    int64_t first_unique;         /* row k takes this + k for an id that the store makes */
    int32_t properties_size;
    int32_t count;
} ts_column_batch;

enum ts_outcome { TS_DUPLICATE = -2 }; /* for a queue offset */

/* A message id that a caller gave: hash of topic and id, and when the message was first put. */
typedef struct {
    uint64_t hash;
    int64_t log_offset;
    int64_t store_ms;
} ts_id;

/* Ids in the order of the log. */
typedef struct {
    ts_id *entries;       /* [capacity], a power of two */
    uint32_t *slots;      /* [2 * capacity]: place in entries + 1, or 0 */
    int64_t capacity;
    int64_t limit;        /* of count; at most the capacity */
    int64_t count;
    int64_t newest_ms;
} ts_id_table;

/* All ids that may still be in the window, and some that are not. Under the append lock. */
typedef struct {
    ts_id_table tables[32]; /* oldest first; the last takes what comes */
    int32_t table_count;
    int64_t window_ms;
} ts_ids;

/* The message that was put first with an id. */
typedef struct {
    int64_t log_offset;   /* in */
    int64_t store_ms;
    int64_t due_ms;       /* of a timer, else store_ms */
    int64_t timer_id;     /* -1: did not wait, or for a level */
    int64_t queue_offset; /* -1: waited */
    int32_t queue_id;
    int32_t level;        /* 0: none */
    int32_t is_same;      /* it has this topic and id: no other with the same hash */
    int32_t is_cancelled;
} ts_first_message;

/* One timer-topic message on its way to the wheel. */
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

/* Requests of one call. */
typedef struct {
    ts_request *at;
    int32_t count;        /* out */
    uint32_t store_id;
    int64_t precision_ms;
    const ts_states *states;
} ts_requests;

/* A timer unit read from a slot's chain. */
typedef struct {
    int64_t log_offset;
    int64_t slot;       /* slot number: time / precision */
    int64_t write_ms;
    int32_t size;
    int32_t magic;
    int32_t topic_hash; /* of the topic that it goes to */
    int32_t unused;
} ts_chained;

/* A message of a loaded slot, ordered by (wake_ms, id). */
typedef struct {
    int64_t wake_ms;    /* when something is to be done: due, or roll */
    int64_t id;
    int64_t due_ms;
    int64_t log_offset;
    int64_t slot;       /* the slot its unit is linked in: what a checkpoint must keep */
    int64_t write_ms;
    int32_t size;
    int32_t flags;
    int32_t topic_hash;
    int32_t unused;
} ts_due;

/* A record as it was planned before the append lock is taken. */
typedef struct {
    int64_t id;
    int64_t at;         /* offset of its text in the scratch buffer; -1: built from its source */
    int64_t slot;
    int64_t due_ms;
    int64_t write_ms;   /* of its unit */
    int64_t placed;     /* out: log offset, or -1 where the id no longer waited */
    ts_route *route;    /* where it goes */
    ts_route *real;     /* whose pending count it changes */
    const uint8_t *source; /* the record it is built from; mapped as long as the view is held */
    int32_t body_size;
    int32_t plain_size; /* bytes of the source's properties that are carried over */
    int32_t size;       /* 0: no record can hold it */
    int32_t flags;
    int32_t has_hint;   /* its note is known: these */
    int32_t tags;
    int32_t has_tags;
    int32_t key_hash;
} ts_draft;

/* What became of drafts; added to. The slots of those that need no record any more stand as runs of
 * equal neighbours; the caller has room for one a draft. */
typedef struct {
    int64_t delivered;
    int64_t rolled;
    int64_t skipped;       /* did not wait any more */
    int64_t unroutable;       /* size 0, and not gone */
    int64_t gone;          /* removed from the log: a moved copy stands for it */
    int64_t moved;
    int64_t rolled_due_ms; /* the earliest of the rolled ones */
    int64_t runs;
    int64_t *slots;        /* [runs] */
    int64_t *counts;       /* [runs] */
} ts_tally;

/* A hand-over amid its work. Zeros before the first call, but for its buffers. */
typedef struct {
    uint8_t *scratch;
    int64_t scratch_bytes;
    ts_draft *drafts;
    int32_t draft_count;   /* planned at a time, then placed in one hold of the append lock */
    int32_t planned;       /* drafts [placed, planned) have still to be placed */
    int32_t first;         /* drafts [first, placed) were placed last */
    int32_t placed;
    int32_t is_placing;    /* out, with a status: it is placing's, and what it needs is `need` */
    int64_t need;
    int64_t now_ms;        /* of what was planned */
    int64_t *late_ms;      /* of those handed over; the caller has room for one a due entry */
    int64_t late_count;
} ts_delivery;

typedef struct {
    uint8_t *slots;        /* 32 bytes each */
    uint8_t *dirty_pages;  /* one byte per 4096 bytes of slots */
    int64_t slot_count;
    int64_t precision_ms;
} ts_wheel;

/* A timer unit as it is to be written again, by rechain.c. */
typedef struct {
    int64_t pos;
    int32_t is_dead;      /* no chain holds it any more */
    uint8_t unit[52];
} ts_patch;

/* How far a slot's chain was walked, and what stays of it; zeros before the first call. */
typedef struct {
    int32_t has_begun;
    int32_t kept;            /* units that stay */
    int64_t pos;             /* of the unit that comes next; -1: none */
    int64_t last_pos;        /* of the newest unit that stays; -1 */
    int64_t first_pos;       /* of the oldest so far */
    int64_t patches;         /* how many were written */
    uint8_t first[52];       /* the unit at first_pos */
} ts_chain_walk;

/* A unit of the far wheel: native/format/far_unit.h. */
typedef struct {
    int64_t number;          /* counted from the far log's first */
    int64_t previous;        /* number of its slot's unit before it; -1 */
    int64_t id;
    int64_t log_offset;
    int64_t due_ms;
    int64_t slot;            /* of the far wheel */
    int32_t size;
    int32_t topic_hash;
} ts_far_unit;

/* How the enqueue side may place; filled anew for each call. */
typedef struct {
    int64_t pos;             /* in, out: timer log position of the next unit */
    int64_t segment_bytes;   /* of the timer log */
    int64_t write_slot;      /* slot number of the present */
    int64_t read_slot;        /* slots below are loaded: what would go there is late */
    int64_t reuse_below;     /* what a slot still holds of a lap before may be overwritten below */
    int64_t read_below;      /* and below this, but for the slots in `kept` */
    const int64_t *kept;     /* ascending */
    int32_t kept_count;
    int32_t overflows;           /* 1: what finds no slot waits in the open slot and the far wheel */
    int64_t overflow_slot;          /* in this slot of it */
    int64_t roll_slots;
    int64_t bytes;           /* out: bytes written to the unit buffer */
    int64_t first_slot;      /* out: lowest slot still to be read that took a unit; INT64_MAX */
    int32_t late_count;      /* out */
    int32_t cut;             /* out: 1 where the timer-log segment was finished with a blank */
    int64_t near_slots;      /* so far beyond the roll window nothing rolls: it gets its own slot */
    int64_t far_width;       /* wheel slots to a far slot; 0: what is beyond the window rolls */
    int64_t far_last;        /* the highest far slot there may be: what is beyond waits there */
    int64_t spread_slots;    /* what rolls is spread over so many slots; 0: as a broker does */
    int64_t spread_at;       /* in, out: how many were */
    ts_far_unit *far;        /* out: what goes to the far wheel; as much room as for requests */
    int32_t far_count;       /* out */
} ts_link;

/* What the heap moves about: 24 bytes instead of a whole entry. */
typedef struct {
    int64_t wake_ms;
    int64_t id;
    int64_t at;          /* of its entry */
} ts_heap_key;

typedef struct {
    ts_heap_key *keys;   /* [capacity], four children to a node */
    ts_due *entries;     /* [capacity], each stays where it was put */
    int64_t *unused;     /* [capacity], a stack of places in entries */
    int64_t count;
    int64_t unused_count;
    int64_t capacity;
} ts_heap;

/* Entries in order of (wake_ms, id), of which the first are gone already. */
typedef struct {
    const ts_due *entries;
    int64_t at;
    int64_t end;
} ts_run;

enum { TS_RUNS_MAX = 128 };

/* The open slot: what came in large batches as runs, what came in small ones as a heap. */
typedef struct {
    ts_heap heap;
    ts_run runs[128]; /* TS_RUNS_MAX */
    int64_t run_count;
    int64_t is_full;     /* out: 1 where a pop stopped as the heap had no room */
} ts_open;

/* A due message of a fixed level. place: queue of the level topic << 48 | queue offset. */
typedef struct {
    int64_t place;
    int64_t log_offset;
    int64_t due_ms;
    int32_t size;
    int32_t run;        /* the caller's: which run of which level */
} ts_level_due;

/* Its copy, encoded before the append lock is taken. */
typedef struct {
    int64_t at;         /* offset in the scratch buffer */
    int64_t placed;     /* out: log offset, or -1 */
    int64_t due_ms;
    ts_route *route;    /* where it goes */
    int32_t size;       /* 0: there is no copy */
    int32_t unusable;   /* it can never be delivered */
} ts_level_draft;

/* What a handle names: its topic and key stand one behind the other in a buffer of names. The place is
 * that of the message whose timer id the handle hints at, as far as is known: it is looked at, not
 * trusted; -1: there is none. size: 0 where it is not known. */
typedef struct {
    int64_t timer_id;
    int64_t out_ms;
    int64_t log_offset;
    int64_t name_at;
    int32_t size;
    int32_t topic_size;
    int32_t key_size;
    int32_t unused;
} ts_handle;

/* One of many cancels. */
typedef struct {
    ts_route *real;     /* NULL: the hint did not settle it, nothing was done */
    int64_t timer_id;
    int64_t due_ms;
    int64_t log_offset; /* out: of the delete record, where it waited */
    int64_t text_at;    /* of the delete record's properties */
    int32_t text_size;
    int32_t state;      /* out: enum ts_state, what it was */
} ts_cancel_draft;

/* One record as the fold sees it. timer_id, store_id: of a delivery for a level its place, and the
 * store that delivered it. */
typedef struct {
    int64_t log_offset;
    int64_t queue_offset;
    int64_t store_ms;
    int64_t due_ms;
    int64_t out_ms;
    int64_t timer_id;
    uint64_t identity;
    uint64_t bare_identity;
    int32_t size;
    int32_t kind;
    uint32_t store_id;
    int32_t roll_times;
    int32_t delay_level;
    int32_t queue_id;
    int32_t topic_hash;
    int32_t route;
    int32_t vouches;      /* a copy that rolled or was moved, and lies where it says: its
                             store id is an own one */
} ts_scanned;

/* Bytes of a log as they were read from its files: whole segments or any part of one. */
typedef struct {
    const uint8_t *bytes;
    int64_t size;
    int64_t offset;        /* log offset of bytes[0]; they lie in one segment */
    int64_t end;           /* log offset that nothing reaches beyond */
    int64_t segment_bytes;
    int64_t need;          /* out, with TS_NEED_SPACE: bytes from `next` on that one item takes */
    int64_t fault_offset;  /* out, with TS_CORRUPT */
    int32_t fault;         /* out, with TS_CORRUPT: enum ts_fault */
    int32_t verify;        /* whether CRCs are computed */
} ts_window;

/* Texts of a record, by number in ts_table_row. */
enum ts_span {
    TS_SPAN_BODY = 0,
    TS_SPAN_TOPIC = 1,
    TS_SPAN_ID = 2,        /* UNIQ_KEY */
    TS_SPAN_KEYS = 3,
    TS_SPAN_TAGS = 4,
    TS_SPAN_REAL_TOPIC = 5,
    TS_SPAN_PROPERTIES = 6,
    TS_SPAN_COUNT = 7
};

/* What a caller of ts_table_scan wants to know beside the record's head; a bit each. */
enum ts_table_want { TS_WANT_MARKS = 1, TS_WANT_NAMES = 2, TS_WANT_PAIRS = 4 };

/* One record as a row of a table. */
typedef struct {
    int64_t log_offset;
    int64_t queue_offset;
    int64_t born_ms;
    int64_t store_ms;
    int64_t due_ms;        /* 0: not known */
    int64_t timer_id;      /* -1: none */
    int32_t at[7];         /* enum ts_span: place in the window; -1: not there */
    int32_t sizes[7];
    int32_t queue_id;
    int32_t flag;
    int32_t sys_flag;
    int32_t body_crc;
    int32_t kind;          /* enum ts_kind */
    int32_t roll_times;
    int32_t delay_level;
    int32_t pair_count;    /* of properties, each name once */
    int32_t names_size;
    int32_t values_size;
} ts_table_row;

/* Which records become rows. Times: from, and below; where one is bounded, a record without that
 * time is none. */
typedef struct {
    int64_t due_from_ms;
    int64_t due_to_ms;
    int64_t store_from_ms;
    int64_t store_to_ms;
    const uint8_t *topics;
    const int32_t *topic_offsets; /* [topic_count + 1] */
    int32_t topic_count;          /* 0: any */
    int32_t kinds;                /* bit 1 << enum ts_kind; 0: any, and none is told */
    int32_t has_due;              /* whether the due times are bounded */
    int32_t has_store;
} ts_table_filter;

/* A timer unit as a row. */
typedef struct {
    int64_t timer_pos;
    int64_t prev_pos;
    int64_t slot_ms;
    int64_t write_ms;
    int64_t log_offset;
    int32_t size;
    int32_t magic;
    int32_t topic_hash;
    int32_t reserved;
} ts_unit_row;

/* A used slot as a row. */
typedef struct {
    int64_t time;          /* in slots since the epoch */
    int64_t first_pos;
    int64_t last_pos;
    int32_t slot;          /* its place on the wheel */
    int32_t count;
} ts_slot_row;

/* One record as a pull gives it. Bodies and properties go to buffers of the caller. */
typedef struct {
    int64_t queue_offset;
    int64_t log_offset;
    int64_t born_ms;
    int64_t store_ms;
    int64_t due_ms;
    int64_t delivered_ms;
    int64_t body_at;
    int64_t properties_at;
    int32_t body_size;
    int32_t properties_size;
    int32_t size;
    int32_t queue_id;
    int32_t flag;
    int32_t sys_flag;
    int32_t reconsume_times;
    int32_t body_crc;
    uint8_t born_host[20];
    uint8_t store_host[20];
    int32_t born_host_size;
    int32_t store_host_size;
} ts_pulled;

/* What a tag filter lets through; text k is texts[text_offsets[k] .. text_offsets[k + 1]). */
typedef struct {
    const int32_t *hashes;       /* ascending */
    const uint8_t *texts;        /* in the order of their hashes */
    const int64_t *text_offsets; /* [count + 1] */
    int32_t count;
} ts_tags;
/* One key of one message, on its way to the index. */
typedef struct {
    int64_t log_offset;
    int64_t store_ms;
    int32_t hash;       /* of topic#key, not negative */
    int32_t slot;       /* scratch of ts_index_append */
} ts_key;

/* Keys of the records that a call walks over. One message has at most 16,385. */
typedef struct {
    ts_key *at;         /* [capacity] */
    int64_t capacity;
    int64_t count;      /* in, out */
    int64_t begin;      /* records below this log offset add none */
    int64_t has_tags;   /* whether a message's tags are a key, too, as 5.4 has it: T#tags */
} ts_keys;

/* The index file that takes entries, but for the entries. Everything: under the index's lock. */
typedef struct {
    uint8_t *slots;        /* 4 bytes each */
    uint8_t *dirty_pages;  /* one byte per 4096 bytes of slots */
    int64_t slot_count;
    int64_t entry_count;
    int64_t next_entry;    /* 1 to entry_count: then it is full */
    int64_t slots_used;
    int64_t begin_ms;      /* these four of the last entry of the file before, until there is one */
    int64_t end_ms;
    int64_t begin_offset;
    int64_t end_offset;
} ts_index;

/* What a query looks for: messages that lie in one topic and have a key. */
typedef struct {
    const uint8_t *topic;
    const uint8_t *key;      /* NULL: any */
    const uint8_t *real;     /* NULL, or the topic that a message must be on its way to */
    const ts_states *states; /* NULL, or: timers that wait */
    const int64_t *also;     /* ascending: timer ids that count as waiting, too */
    int64_t also_count;
    int64_t begin_ms;        /* store times: from, and below; INT64_MAX: all */
    int64_t end_ms;
    int32_t topic_size;
    int32_t key_size;
    int32_t real_size;
    uint32_t store_id;
} ts_query;

/* A message that fits. */
typedef struct {
    int64_t log_offset;
    int64_t timer_id;     /* -1 where it is of no timer of this store */
    int64_t queue_offset;
    int32_t queue_id;
    int32_t size;
} ts_found;

/* checksum.c */
uint32_t ts_crc32(uint32_t crc, const uint8_t *data, int64_t size);

/* hash.c: pure */
int32_t ts_topic_hash(const uint8_t *utf8, int32_t size);
uint64_t ts_identity(const uint8_t *data, int64_t size);
uint64_t ts_route_key(const uint8_t *topic, int32_t topic_size, int32_t queue_id);

/* shards.c: pure. Row k is data[offsets[k]..offsets[k + 1]); TS_INVALID where that does not lie
 * within size bytes. A row's CRC-32 modulo shard_count, -1 where it is empty; and each row's
 * CRC-32 as it goes on from what crcs holds. */
int ts_shards_of_rows(const uint8_t *data, int64_t size, const int64_t *offsets, int64_t count,
                      int32_t shard_count, int32_t *shards);
int ts_crc32_rows(const uint8_t *data, int64_t size, const int64_t *offsets, int64_t count,
                  uint32_t *crcs);

/* spans.c: pure. The largest of count spans between count + 1 offsets, -1 where they do not rise within
 * [0, bytes]. settle: what is not after now_ms becomes 0; the first that is after latest_ms, or -1. */
int64_t ts_spans_largest(const int64_t *offsets, int64_t count, int64_t bytes);
int64_t ts_due_settle(int64_t *due_ms, int64_t count, int64_t now_ms, int64_t latest_ms);

/* append.c: all under the append lock. due_ms at or before now_ms: to the real topic at once. A log
 * has so many bytes, zeros at first, for the forms it keeps. */
int64_t ts_template_cache_bytes(void);
int64_t ts_put_one(ts_log *log, ts_route *route, const uint8_t *body, int32_t body_size,
                   int64_t due_ms, const uint8_t *properties, int32_t properties_size,
                   int64_t now_ms);
/* The same to a level's queue, for who is to have it at wanted_ms. */
int64_t ts_put_level(ts_log *log, ts_route *route, const uint8_t *body, int32_t body_size,
                     const uint8_t *properties, int32_t properties_size, int64_t now_ms,
                     int64_t wanted_ms);
/* What the id was (enum ts_state): where it waited, it does so no more. out[1] is the log's end,
 * below which what decided that state lies. */
int32_t ts_cancel(ts_log *log, ts_route *real, int64_t id, const uint8_t *properties,
                  int32_t properties_size, int64_t now_ms);
/* Room that a delete record's properties need beside their topic and key, each of them twice. */
enum { TS_DELETE_TEXT_BYTES = 192 };

/* cancels.c. delete_text: a delete record's properties, but for our own, as a broker writes them; how
 * many bytes, or TS_NEED_SPACE. find needs no lock: how many were looked at, as far as the texts' room
 * goes. place runs under the append lock: how many of [from, count) are done. */
int32_t ts_delete_text(uint8_t *out, int32_t out_bytes, const uint8_t *topic, int32_t topic_size,
                       const uint8_t *key, int32_t key_size, int32_t queue_id, int64_t out_ms);
int32_t ts_cancels_find(ts_view *view, const ts_routes *routes, int64_t precision_ms,
                        const ts_handle *named, const uint8_t *names, int32_t count,
                        uint8_t *texts, int32_t texts_bytes, ts_cancel_draft *drafts);
int32_t ts_cancels_place(ts_log *log, const uint8_t *texts, ts_cancel_draft *drafts, int32_t from,
                         int32_t count, int64_t now_ms);
/* The same, and a message in its place: a group of two. record: as ts_reschedule_encode wrote it,
 * for target: the timer route, or real where the message is due. */
int32_t ts_reschedule(ts_log *log, ts_route *real, int64_t id, const uint8_t *properties,
                      int32_t properties_size, ts_route *target, const uint8_t *record,
                      int32_t record_size, int64_t now_ms);
int32_t ts_blank(ts_log *log);
/* The record of the vectors: any header, one property text, as a plain writer would write it. */
int32_t ts_encode(uint8_t *out, int32_t out_bytes, const uint8_t *topic, int32_t topic_size,
                  int32_t queue_id, int64_t queue_offset, int64_t log_offset, int32_t flag,
                  int32_t sys_flag, int64_t born_ms, const uint8_t *born_host, int64_t store_ms,
                  const uint8_t *store_host, const uint8_t *body, int32_t body_size,
                  const uint8_t *properties, int32_t properties_size, int32_t property_crc);

/* rows.c. put_many, put_group: under the append lock; the others need no lock.
 * put_many: how many rows of [from, to) were appended. measure: how many rows from `from` on, `most`
 * at most, have together at most `limit` bytes in a group; *bytes: theirs, *timers: how many wait.
 * put_group: a head, where there is one, and [from, from + count), all or none; out[0] is the head's
 * queue offset, out[1] the log's end. bytes, timers: what measure said with the same now_ms.
 * log_offsets, queue_offsets: by row, NULL where nobody asks. digest: of rows in their order,
 * however they are cut into calls; due times count as they are given.
 * put_many_held: put_many in holds of the append lock, which it takes itself: how many; why no more
 * is *status, with *need.
 * put_many_fits, under the lock, too: 1 where put_many surely appends all rows, which differ in
 * nothing but body and time; body_bytes: of all. */
int32_t ts_put_many(ts_log *log, ts_route *route, const ts_column_batch *rows, int32_t from, int32_t to,
                    int64_t now_ms, int64_t *log_offsets, int64_t *queue_offsets);
int32_t ts_put_many_locking(ts_log *log, ts_route *route, const ts_column_batch *rows, int32_t from,
                            int32_t to, int32_t hold, int64_t now_ms, int64_t *log_offsets,
                            int64_t *queue_offsets, int32_t *status, int64_t *need);
int32_t ts_put_many_fits(const ts_log *log, const ts_route *route, const ts_column_batch *rows,
                         int32_t body_bytes, int64_t now_ms);
int32_t ts_batch_measure(const ts_log *log, const ts_route *route, const ts_column_batch *rows,
                         int32_t from, int32_t most, int64_t limit, int64_t now_ms, int64_t *bytes,
                         int32_t *timers);
int32_t ts_put_group(ts_log *log, ts_route *head_route, const uint8_t *head, int32_t head_size,
                     ts_route *route, const ts_column_batch *rows, int32_t from, int32_t count,
                     int64_t bytes, int32_t timers, int64_t now_ms, int64_t *log_offsets,
                     int64_t *queue_offsets);
int64_t ts_group_head_bytes(const ts_log *log, const ts_route *route, int32_t head_size);
uint64_t ts_batch_digest(const ts_column_batch *rows, const uint8_t *topic, int32_t topic_size,
                         int32_t from, int32_t to, uint64_t digest);

/* rows.c, under the append lock: as ts_put_many, but a row whose id was put before, at an offset below
 * below[row], is not appended: its log offset is that one's, its queue offset TS_DUPLICATE.
 * topic_hash: ts_identity of the real topic. once_ms: for TS_ONCE and the table. */
int32_t ts_put_once(ts_log *log, ts_ids *ids, uint64_t topic_hash, ts_route *route,
                    const ts_column_batch *rows, int32_t from, int32_t to, const int64_t *below,
                    int64_t once_ms, int64_t now_ms, int64_t *log_offsets, int64_t *queue_offsets);

/* ids.c. look, add, load, move: under the append lock. look: how many rows are known, and where (-1:
 * not). add, load: how many there was room for. move: a message has another record. scan: ids in the
 * log; needs no lock. firsts: reads them where they lie; states as ts_state_get. */
int64_t ts_ids_look(const ts_ids *ids, uint64_t topic_hash, const ts_column_batch *rows, int32_t from,
                    int32_t to, const int64_t *below, int64_t now_ms, int64_t *log_offsets);
int32_t ts_ids_add(ts_ids *ids, uint64_t topic_hash, const ts_column_batch *rows, int32_t from, int32_t to,
                   const int64_t *log_offsets, int64_t store_ms);
int32_t ts_ids_load(ts_ids *ids, const ts_id *entries, int32_t count);
int32_t ts_ids_move(ts_ids *ids, const uint8_t *topic, int32_t topic_size, const uint8_t *id,
                    int32_t size, int64_t log_offset, int64_t now_ms);
int32_t ts_ids_scan(ts_view *view, uint32_t store_id, int64_t from, int64_t *next, int32_t capacity,
                    ts_id *entries);
int32_t ts_first_messages(ts_view *view, const ts_states *states, uint32_t store_id, int64_t precision_ms,
                          const uint8_t *topic, int32_t topic_size, const ts_column_batch *rows,
                          const int32_t *which, int32_t count, ts_first_message *firsts);

/* deliver.c: plan needs no lock, place runs under the append lock, with the view of plan held. */
int32_t ts_deliver_plan(ts_view *view, const ts_routes *routes, const ts_log *log,
                        ts_route *timer_route, int64_t read_slot, const ts_due *due, int32_t count,
                        int64_t now_ms, uint8_t *scratch, int64_t scratch_bytes,
                        ts_draft *drafts);
int32_t ts_deliver_place(ts_log *log, const uint8_t *scratch, ts_draft *drafts, int32_t from,
                         int32_t count, int64_t now_ms, ts_tally *tally);
/* Both for as many as there are, taking the append lock itself, some at a time: how many are done. A
 * status where the first cannot be. Ends early behind drafts that no record can hold. */
int32_t ts_deliver_many(ts_view *view, const ts_routes *routes, ts_log *log, ts_route *timer_route,
                        int64_t read_slot, const ts_due *due, int32_t count, int64_t now_ms,
                        ts_delivery *delivery, ts_tally *tally);

/* reschedule.c: no lock. Bytes of the record at log_offset under another route and with these
 * properties; what only its place can tell is left open. */
int32_t ts_reschedule_encode(ts_view *view, const ts_log *log, int64_t log_offset,
                             const ts_route *target, const uint8_t *properties,
                             int32_t properties_size, uint8_t *out, int32_t out_bytes);
/* The same of a new message, which takes the place of one that waits. */
int32_t ts_replace_encode(const ts_log *log, const ts_route *target, const uint8_t *body,
                          int32_t body_size, const uint8_t *properties, int32_t properties_size,
                          int64_t now_ms, uint8_t *out, int32_t out_bytes);
/* The first of chained[*at, count) whose message has this topic, key and slot time: 1 with *at and
 * *id, 0 where there is none. */
int32_t ts_chained_find(ts_view *view, const ts_chained *chained, int32_t count,
                        const uint8_t *topic, int32_t topic_size, const uint8_t *key,
                        int32_t key_size, int64_t out_ms, const ts_states *states,
                        uint32_t store_id, int32_t *at, int64_t *id);

/* levels.c: encode needs no lock, place runs under the append lock. */
int32_t ts_level_encode(ts_view *view, const ts_routes *routes, const ts_log *log,
                        const ts_level_due *due, int32_t count, int64_t now_ms, uint8_t *scratch,
                        int64_t scratch_bytes, ts_level_draft *drafts);
int32_t ts_level_place(ts_log *log, const uint8_t *scratch, ts_level_draft *drafts, int32_t from,
                       int32_t count, int64_t now_ms);

/* dispatch.c: reads the log between from and view->end. keys: NULL where there is no index. notes: NULL,
 * or those of the log: a record that has one is not read. requests: NULL, or one for each of the
 * timer topic's records. */
int32_t ts_dispatch(ts_view *view, const ts_routes *routes, const int64_t *level_delay_ms,
                    int32_t level_count, int64_t from, int64_t *next, int32_t capacity,
                    uint8_t *units, int32_t *route_indexes, int64_t *queue_offsets,
                    ts_keys *keys, ts_append_hints *hints, ts_requests *requests);

/* index.c. keys: of the records between from and view->end. append: how many keys the file took;
 * entries has room for all. relink: slots anew from entries, TS_CORRUPT where those do not fit.
 * find: log offsets of a chain from entry *number on, which goes on where it stopped, 0 at its end;
 * entries: of the file, all below `limit` written. check: of these log offsets the records that fit
 * the query; how many were looked at, *matched how many fitted. */
int64_t ts_index_keys(ts_view *view, int64_t from, int64_t *next, int64_t capacity,
                      ts_keys *keys);
int64_t ts_index_append(ts_index *index, ts_key *keys, int64_t count, uint8_t *entries);
int32_t ts_index_relink(ts_index *index, const uint8_t *entries, int64_t count);
int32_t ts_index_hash(const uint8_t *topic, int32_t topic_size, const uint8_t *key,
                      int32_t key_size);
int32_t ts_index_slot(const uint8_t *slots, int64_t slot_count, int32_t hash);
int32_t ts_index_find(const uint8_t *entries, int64_t slot_count, int64_t limit, int32_t hash,
                      int64_t file_begin_ms, int64_t begin_ms, int64_t end_ms, int64_t *number,
                      int64_t *log_offsets, int32_t capacity);
int32_t ts_index_check(ts_view *view, const ts_query *query, const int64_t *log_offsets,
                       int32_t count, ts_found *found, int32_t *matched);
void ts_index_header_put(const ts_index *index, uint8_t *out);
int32_t ts_index_header_get(ts_index *index, const uint8_t *at);

/* scan.c: as a recovery reads. ts_scan stops at the first record that is none (view->fault). */
int32_t ts_scan(ts_view *view, const ts_routes *routes, int64_t precision_ms, int64_t from,
                int64_t *next, int32_t capacity, ts_scanned *out);
int32_t ts_record_at(ts_view *view, int64_t log_offset, int64_t *topic_at, int32_t *topic_size,
                     int64_t *properties_at, int32_t *properties_size, int32_t *queue_id,
                     int32_t *size);
int32_t ts_record_store_ms(ts_view *view, int64_t log_offset, int64_t *store_ms);

/* states.c. set, fold and copy under the append lock. */
int32_t ts_state_get(const ts_states *states, int64_t id);
int32_t ts_state_set(ts_states *states, int64_t id, int32_t state);
void ts_states_set_many(ts_states *states, const int64_t *ids, int64_t count, int32_t state);
/* Of each of these ids whether it waits: 1 or 0. */
void ts_states_wait(const ts_states *states, const int64_t *ids, int64_t count, uint8_t *waits);
int32_t ts_states_fold(ts_states *states, ts_route **routes, const ts_scanned *scanned,
                       int32_t count, uint32_t store_id, int64_t *need);
int64_t ts_states_copy_dirty(ts_states *states, int64_t *chunks, uint8_t *payloads,
                             int64_t capacity);
int64_t ts_states_waiting(const ts_states *states, int64_t from, int64_t *ids, int64_t capacity,
                          int64_t *next);

/* A copy, into blocks that are there for each of the table. */
void ts_states_copy(const ts_states *states, uint8_t **blocks, ts_states *out);

/* calendar.c: under the append lock, but for real_routes and properties_due. count: where it fits
 * (ts_calendar_fits), `by` messages of a level more wait, or fewer. leave: a timer waits no more.
 * fill: how many there was room for. read: unit_s is 1, 60, 3600 or 86400. real_routes: by the
 * properties of records of the timer topic, or the levels'; -1 where one can never be delivered. */
int32_t ts_calendar_fits(const ts_log *log, int64_t messages);
void ts_calendar_count(ts_log *log, const ts_route *real, int64_t due_ms, int64_t by);
void ts_calendar_leave(ts_log *log, const ts_route *real, int64_t id, int64_t due_ms);
int32_t ts_calendar_fill(ts_calendar *calendar, ts_route **routes, const ts_due *due,
                         const int32_t *of, int32_t count);
int64_t ts_calendar_move(ts_calendar *to, const ts_calendar *from);
void ts_calendar_read(const ts_calendar *calendar, int64_t topic, int64_t unit_s, int64_t first,
                      int64_t count, int64_t *out);
int32_t ts_real_routes(ts_view *view, const ts_routes *routes, const int64_t *log_offsets,
                       const int32_t *sizes, int32_t count, int32_t is_level, int32_t *out);
int64_t ts_properties_due(const uint8_t *properties, int32_t size, int64_t precision_ms);

/* due.c, wheel.c, link.c. link and load under the timer lock. */
int32_t ts_timer_requests(ts_view *view, const uint8_t *units, int32_t count,
                          int64_t queue_offset, const ts_states *states, uint32_t store_id,
                          int64_t precision_ms, ts_request *out);
/* Entries of records that were loaded: the requests that link them once more. */
int32_t ts_due_requests(ts_view *view, const ts_due *due, int32_t count, const ts_states *states,
                        uint32_t store_id, int64_t precision_ms, ts_request *out);
int32_t ts_timer_link(ts_wheel *wheel, ts_link *link, const ts_states *states,
                      const ts_request *requests, int32_t count, uint8_t *units,
                      int64_t units_bytes, ts_due *late);
int64_t ts_wheel_next(const ts_wheel *wheel, int64_t from, int64_t to);
/* The same for as many as there is room for, and how many units each says it holds: how many. */
int32_t ts_wheel_next_many(const ts_wheel *wheel, int64_t from, int64_t to, int64_t *slots,
                           int64_t *units, int32_t capacity);
int64_t ts_wheel_burst(const ts_wheel *wheel, int64_t from, int64_t to, int32_t count_min,
                       int32_t *count);
int32_t ts_wheel_load(ts_view *timer_log, const ts_wheel *wheel, int64_t slot, int64_t *pos,
                      int32_t capacity, ts_chained *out);
/* The same for several slots at a time, a unit of each in turn, so that their cache misses overlap.
 * positions: -2 not begun, -1 finished, else where the next call goes on. */
int32_t ts_wheel_load_many(ts_view *timer_log, const ts_wheel *wheel, const int64_t *slots,
                           int64_t *positions, int32_t slot_count, int32_t capacity,
                           ts_chained *out);
/* Adds up the units of all chains of slots in [*from, to). A status < 0: call again, it goes on at
 * *from and *pos, which is -1 at first. */
int32_t ts_wheel_count(ts_view *timer_log, const ts_wheel *wheel, int64_t *from, int64_t *pos,
                       int64_t to, int64_t *units);
int64_t ts_wheel_copy_dirty(ts_wheel *wheel, int64_t *pages, uint8_t *out, int64_t capacity);
/* Empties the slots in [begin, end) but those in `kept`, which ascend. How many changed. */
int64_t ts_wheel_empty(ts_wheel *wheel, int64_t begin, int64_t end, const int64_t *kept,
                       int64_t kept_count);
int64_t ts_wheel_cut(ts_view *timer_log, ts_wheel *wheel, int64_t timer_log_end);
int32_t ts_wheel_slot(const ts_wheel *wheel, int64_t slot, int64_t *first_pos, int64_t *last_pos,
                      int32_t *count);
int32_t ts_due_load(ts_view *view, const ts_states *states, uint32_t store_id,
                    int64_t precision_ms, int64_t read_slot, const ts_chained *chained,
                    int32_t count, ts_due *out);

/* far.c: link under the timer lock. Numbers, previous numbers and bytes of units that follow each
 * other; places: of each unit's slot among the heads, which are the last numbers, and move. */
void ts_far_link(ts_far_unit *units, const int32_t *places, int32_t count, int64_t number,
                 int64_t *heads, uint8_t *out);
/* A slot's chain from *number on, newest first; *number moves on, to -1 behind the oldest. */
int32_t ts_far_walk(ts_view *view, int64_t slot, int64_t *number, int32_t capacity,
                    ts_far_unit *out);
/* Units that follow each other; how many could be read. */
int32_t ts_far_scan(ts_view *view, int64_t number, int32_t count, ts_far_unit *out);
/* Drops those whose id waits no more, and those whose record was moved; how many are left. */
int32_t ts_far_waiting(const ts_states *states, int64_t log_begin, ts_far_unit *units,
                       int32_t count);

/* rechain.c: nothing else runs. living: log offsets, ascending; is_kept: of which a unit was kept
 * already, one of each is. One slot's chain is cut down to the units of living messages that
 * deliver; recount: a slot's first position and count as its chain says; held: positions of its
 * chain that are not below `from`, descending, as long as walk->pos is not; loose: units of
 * [from, end) that no chain holds, which are all but `held`, ascending, or (NULL, where all chains
 * were just relinked) as the units say. After TS_NEED_SEGMENT call again with the same walk: a
 * chain may lie in more files than are mapped at a time. */
int64_t ts_wheel_compact_chain(ts_view *timer_log, ts_wheel *wheel, int64_t slot, int64_t read_slot,
                               const int64_t *living, uint8_t *is_kept, int64_t living_count,
                               ts_patch *patches, int64_t capacity, ts_chain_walk *walk);
int32_t ts_wheel_recount(ts_view *timer_log, ts_wheel *wheel, int64_t slot, ts_chain_walk *walk);
int64_t ts_wheel_chain_positions(ts_view *timer_log, ts_wheel *wheel, int64_t slot, int64_t from,
                                 int64_t *positions, int64_t capacity, ts_chain_walk *walk);
int64_t ts_timer_log_unchained(ts_view *timer_log, const ts_wheel *wheel, int64_t from, int64_t *next,
                               int64_t read_slot, const int64_t *held, int64_t held_count,
                               ts_patch *patches, int64_t capacity);
/* seal.c: pure. Of count units side by side from the position on, which are valid. */
void ts_units_check(const uint8_t *units, int64_t count, int64_t pos, uint8_t *is_sound);

/* heap.c, open_slot.c: the Python side holds its lock. */
/* The caller has seen that count more fit. */
void ts_heap_push(ts_heap *heap, const ts_due *in, int64_t count);
/* in, sorted to out. keys: room for 2 * count. */
void ts_run_sort(const ts_due *in, int64_t count, ts_heap_key *keys, ts_due *out);
/* What is left of them, at most TS_RUNS_MAX, to out. */
void ts_runs_merge(const ts_run *runs, int64_t count, ts_due *out);
int64_t ts_open_pop(ts_open *open, int64_t until_ms, int64_t read_slot, int64_t precision_ms,
                    ts_due *out, int64_t capacity);
/* The first wake_ms, INT64_MAX where there is nothing. */
int64_t ts_open_wake(const ts_open *open);

/* pull.c. positions: which of the units from queue_offset on, ascending; NULL: the first count. */
int32_t ts_pull(ts_view *view, const ts_route *route, const uint8_t *units,
                const int32_t *positions, int32_t count, int64_t queue_offset,
                int64_t visible_end, int64_t precision_ms, ts_pulled *out,
                uint8_t *bodies, int64_t bodies_bytes, uint8_t *properties,
                int64_t properties_bytes);
int64_t ts_units_below(const uint8_t *units, int64_t count, int64_t log_end);
/* One message, wherever it lies. TS_NEED_SPACE with view->need where the buffers are too small. */
int32_t ts_pull_one(ts_view *view, int64_t log_offset, int64_t precision_ms, ts_pulled *out,
                    uint8_t *body, int64_t body_bytes, uint8_t *properties,
                    int64_t properties_bytes, uint8_t *topic);

/* old_units.c: units of [queue_offset, + count) against the log. check: how many say of tags what their
 * records do, from the first on; TS_CORRUPT where that one does not, with TS_FAULT_NONE where its
 * record is whole. mend: a level's times, in place; an earlier time that the table may have given
 * stays. How many were looked at. store_ms: when each record was stored; how many were read, from the
 * first on, or a status where the first does not read. */
int32_t ts_old_units_check(ts_view *view, const ts_route *route, const uint8_t *units,
                           int32_t count, int64_t queue_offset);
int32_t ts_old_units_repair(ts_view *view, const ts_route *route, uint8_t *units, int32_t count,
                            int64_t queue_offset, const int64_t *level_delay_ms, int32_t level_count);
int32_t ts_units_store_ms(ts_view *view, const ts_route *route, const uint8_t *units, int32_t count,
                          int64_t queue_offset, int64_t *store_ms);

/* filter.c: pure. Each answers how many it lets through. Not for units of the levels' topic, whose
 * tags code is a due time. keep: 0 or 1 a message; the rows that stay move together. */
int32_t ts_units_tagged(const uint8_t *units, int32_t count, const ts_tags *tags,
                        int32_t *positions);
int32_t ts_texts_tagged(const uint8_t *texts, const int64_t *offsets, int32_t count,
                        const ts_tags *tags, uint8_t *keep);
int32_t ts_pulled_keep(ts_pulled *pulled, int32_t count, const uint8_t *keep, uint8_t *bodies,
                       uint8_t *properties);

/* columns.c: pure, on bytes that nobody writes to meanwhile. Each scan begins at log offset `from`, goes
 * over the blank that ends a segment, and stops at the window's end, at capacity, or where the sums
 * of what was taken reach bytes_max; *next is where the following call goes on. 0 rows and *next
 * unmoved: TS_NEED_SPACE (more bytes of this segment), TS_CORRUPT, or nothing below window->end.
 * sums: of each span's bytes, then of pairs, names and values. */
int32_t ts_table_scan(ts_window *window, int64_t precision_ms, const ts_table_filter *filter,
                      int32_t wants, int64_t from, int64_t *next, int64_t bytes_max,
                      int32_t capacity, ts_table_row *rows, int64_t *sums);
/* One span of all rows as a column: offsets [count + 1], data as long as its sum, a bit a row that
 * has it. ts_table_pairs: the properties as a column of lists of (name, value). */
void ts_table_text(const ts_window *window, const ts_table_row *rows, int32_t count, int32_t span,
                   int32_t *offsets, uint8_t *data, uint8_t *validity);
void ts_table_pairs(const ts_window *window, const ts_table_row *rows, int32_t count, int32_t *offsets,
                    int32_t *name_offsets, uint8_t *names, int32_t *value_offsets,
                    uint8_t *values);
/* As ts_scan, but of a window, and without routes: `route` is -1. */
int32_t ts_window_scan(ts_window *window, int64_t precision_ms, int64_t from, int64_t *next,
                       int32_t capacity, ts_scanned *out);
/* How many records, at most `limit`, lie below *next, which is found. */
int64_t ts_window_count(ts_window *window, int64_t from, int64_t *next, int64_t limit);
int32_t ts_units_scan(ts_window *window, int64_t from, int64_t *next, int32_t capacity,
                      ts_unit_row *rows);
/* slots: `count` of the wheel's, the first of them number `first`. */
int32_t ts_slots_scan(const uint8_t *slots, int64_t first, int64_t count, int64_t slot_count,
                      ts_slot_row *rows);

/* sync.c: the only file that calls the OS, reached through storage/disk.py alone. */
int32_t ts_zero_range(int32_t fd, int64_t offset, int64_t size);
int32_t ts_start_writing(int32_t fd, int64_t offset, int64_t size);
int32_t ts_write_each(int32_t fd, const uint8_t *data, int32_t size, int32_t count,
                      const int64_t *offsets);
int32_t ts_punch(int32_t fd, int64_t offset, int64_t size);

/* guard.c: maps whose file may be cut. install, add, remove: under one lock of the caller's; hits, how
 * many faults there were, and is_hit at any time. add: a number, or TS_FULL where there are too many:
 * then a fault there ends the process, as it would without. Remove before unmapping. */
int32_t ts_guard_install(void);
const int32_t *ts_guard_hits(void);
int32_t ts_guard_add(const uint8_t *at, int64_t size);
int32_t ts_guard_is_hit(int32_t number);
void ts_guard_remove(int32_t number);

/* small.c: fixed little files, as arrays of their fields in order (format/timer_check.h,
 * format/store_checkpoint.h, format/queue_unit.h, format/timer_unit.h). */
void ts_timer_check_pack(const int64_t *fields, uint8_t *out);
int32_t ts_timer_check_unpack(const uint8_t *at, int64_t available, int64_t *fields);
void ts_store_checkpoint_pack(const int64_t *fields, uint8_t *out);
