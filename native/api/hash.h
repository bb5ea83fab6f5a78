/* Hashes and checksums. All functions are pure. */

/* base/checksum.c. Return the CRC-32 of the data, continued from `crc` (0 to begin). */
uint32_t ts_crc32(uint32_t crc, const uint8_t *data, int64_t size);

/* base/hash.c. Return Java's hashCode of a topic, the 64-bit identity of a text, and the key of a
 * topic and queue in ts_routes. */
int32_t ts_topic_hash(const uint8_t *utf8, int32_t size);
uint64_t ts_identity(const uint8_t *data, int64_t size);
uint64_t ts_route_key(const uint8_t *topic, int32_t topic_size, int32_t queue_id);

/* base/shards.c. Row k is data[offsets[k] .. offsets[k + 1]). Return TS_INVALID if a row does not
 * lie within the `size` bytes. */

/* Set each shard to the row's CRC-32 modulo shard_count, or to -1 if the row is empty. */
int ts_shards_of_rows(const uint8_t *data, int64_t size, const int64_t *offsets, int64_t count,
                      int32_t shard_count, int32_t *shards);
/* Continue each of crcs with the bytes of its row. */
int ts_crc32_rows(const uint8_t *data, int64_t size, const int64_t *offsets, int64_t count,
                  uint32_t *crcs);
