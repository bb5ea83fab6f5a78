/* Routes: the queues of topics, as the engine knows them. */

enum ts_route_kind { TS_ROUTE_REAL = 0, TS_ROUTE_TIMER = 1, TS_ROUTE_LEVELS = 2 };

/* One queue of one topic. next_offset, pending and level_pending: under the append lock. */
typedef struct {
    int64_t next_offset;   /* queue offset of the next record of this queue */
    int64_t pending;       /* timers that wait for this topic and queue */
    int64_t level_pending; /* the same for messages of fixed levels; counted by the appender */
    int32_t index;         /* of this route, dense from 0 */
    int32_t kind;          /* enum ts_route_kind */
    int32_t queue_id;
    int32_t topic_hash;    /* Java's hashCode of the topic */
    uint32_t key_prefix;   /* Java hash of `topic#` and the common start of all ids; 0: not set */
    int32_t topic_number;  /* dense from 1, the same for all queues of a topic */
    int32_t topic_size;
    int32_t real_size;
    uint8_t topic[256];
    uint8_t real[320];     /* REAL_TOPIC and REAL_QID as property text */
} ts_route;

/* A hash table with open addressing. Only Python writes it, and it never removes an entry. */
typedef struct {
    ts_route **slots;
    uint64_t mask;
} ts_routes;
