/* Messages of the network protocol (docs/protocol.md). */

/* base/wire_memory.c. Return how many bytes of memory the decoded values of a msgpack message take
 * in Python, at most and about; INT64_MAX if they are nested deeper than TS_WIRE_DEPTH_MAX.
 * Return TS_INVALID if `data` is not one whole value. Pure; a few nanoseconds for each value. */
enum { TS_WIRE_DEPTH_MAX = 32 };

int64_t ts_wire_memory(const uint8_t *data, int64_t size);
