/* Status codes, and the bytes that a call reads: views of segment files.
 *
 * The headers of this folder declare every name that Python may call or read. They are read twice:
 * by the C compiler (through timerstore.h, which fixes their order) and by cffi, which knows
 * neither #include nor #if. So none of them has an include guard.
 *
 * C works on memory that the caller passes in. It keeps no state between calls (except
 * os/map_guard.c), allocates nothing and opens no file. Every call releases the GIL. Each
 * function's comment names the lock that the caller must hold. "The append lock" and "the timer
 * lock" are locks of the Python side (log/commit_log.py, timer/wheel.py). A function that names no
 * lock may run concurrently with any other.
 *
 * A result >= 0 is a count or an offset. A negative result is one of enum ts_status.
 */

enum ts_status {
    TS_OK = 0,
    TS_CORRUPT = -1,      /* bytes from disk violate their format; .fault_offset is their offset */
    TS_FULL = -2,         /* no space on disk */
    TS_VERSION = -3,      /* a known file of an unknown version */
    TS_INVALID = -4,      /* an argument is not valid */
    TS_NEED_SEGMENT = -10, /* .need: number of a segment that must be mapped first */
    TS_NEED_ROUTE = -11,   /* .need: log offset of a record whose topic and queue have no route */
    TS_NEED_SPACE = -12,   /* .need: bytes that do not fit the reserved space or the staging half */
    TS_NEED_STATES = -13,  /* .need: timer id that has no block in the state table */
    TS_BLOCKED = -14,      /* every slot that could take the request is still to be read */
    TS_NEED_IDS = -15,     /* .need: message ids that do not fit the newest table */
    TS_REENTRANT = -16     /* the calling thread already holds the append lock */
};

enum ts_fault {
    TS_FAULT_NONE = 0,
    TS_FAULT_END = 1,           /* zeros: the log ends here */
    TS_FAULT_SHORT = 2,         /* a length reaches past the segment */
    TS_FAULT_MAGIC = 3,
    TS_FAULT_LENGTHS = 4,       /* lengths inside the record do not add up */
    TS_FAULT_POSITION = 5,      /* the log offset in the record is not its position */
    TS_FAULT_BODY_CRC = 6,
    TS_FAULT_PROPERTY_CRC = 7,
    TS_FAULT_TOPIC = 8,         /* the record belongs to another topic or queue */
    TS_FAULT_PROPERTIES = 9,    /* a required property is missing or does not parse */
    TS_FAULT_CHAIN = 10,        /* a timer unit that its slot cannot hold */
    TS_FAULT_GONE = 11          /* below the view's begin: removed by retention, not damaged */
};

/* The mapped part of one append-only space, in segments of equal size. Each caller has its own
 * view. */
typedef struct {
    const uint8_t **segments; /* [number - first_segment]; NULL: not mapped */
    int64_t first_segment;
    int64_t segment_count;
    int64_t segment_bytes;
    int64_t begin;            /* retention removed all lower offsets */
    int64_t end;              /* the files hold no offset from here on */
    int64_t need;             /* out, with TS_NEED_* */
    int64_t fault_offset;     /* out, with TS_CORRUPT */
    int32_t fault;            /* out, with TS_CORRUPT: enum ts_fault */
    int64_t group_start;      /* of ts_scan: the group (format/group.h) of the last record read; */
    int64_t group_end;        /* an end past that record means that the group is incomplete */
} ts_view;

/* Bytes of a log that were read from its files: whole segments or any part of one. */
typedef struct {
    const uint8_t *bytes;
    int64_t size;
    int64_t offset;        /* log offset of bytes[0]; all bytes are of one segment */
    int64_t end;           /* log offset that no item may reach past */
    int64_t segment_bytes;
    int64_t need;          /* out, with TS_NEED_SPACE: bytes that the item at `next` takes */
    int64_t fault_offset;  /* out, with TS_CORRUPT */
    int32_t fault;         /* out, with TS_CORRUPT: enum ts_fault */
    int32_t verify;        /* whether CRCs are checked */
} ts_window;

/* Bytes of the caller, or no bytes. */
typedef struct {
    const uint8_t *at;
    int32_t size;
} ts_slice;
