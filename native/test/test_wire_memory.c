/* The memory of msgpack messages: each kind of value, nesting, and messages cut anywhere. */
#include "check.h"

#include "timerstore.h"

static int64_t memory_of(const char *text, size_t size)
{
    uint8_t *data = check_copy((const uint8_t *)text, size);
    int64_t memory = ts_wire_memory(data, (int64_t)size);

    free(data);
    return memory;
}

#define MEMORY(text) memory_of(text, sizeof text - 1)

static void each_kind_of_value_is_read(void)
{
    static const struct {
        const char *text;
        size_t size;
        int64_t memory;
    } values[] = {
        {"\x05", 1, 8}, {"\xff", 1, 8}, {"\xfb", 1, 8}, {"\xfa", 1, 48}, {"\xe0", 1, 48},
        {"\xc0", 1, 8}, {"\xc2", 1, 8}, {"\xc3", 1, 8},
        {"\xcc\xff", 2, 48}, {"\xcd\1\2", 3, 48}, {"\xce\1\2\3\4", 5, 48},
        {"\xcf\1\2\3\4\5\6\7\1", 9, 48}, {"\xd0\xff", 2, 48}, {"\xd1\1\2", 3, 48},
        {"\xd2\1\2\3\4", 5, 48}, {"\xd3\1\2\3\4\5\6\7\1", 9, 48}, {"\xca\1\2\3\4", 5, 48},
        {"\xcb\1\2\3\4\5\6\7\1", 9, 48},
        {"\xa0", 1, 88}, {"\xa2hi", 3, 90}, {"\xd9\2hi", 4, 90}, {"\xda\0\2hi", 5, 90},
        {"\xdb\0\0\0\2hi", 7, 90}, {"\xa3\xc3\xbfi", 4, 91}, {"\xa3\xc4\x80i", 4, 94},
        {"\xa5\xf0\x9f\x98\x80i", 6, 108},
        {"\xc4\2hi", 4, 50}, {"\xc5\0\2hi", 5, 50}, {"\xc6\0\0\0\2hi", 7, 50},
        {"\xd4\1a", 3, 4098}, {"\xd5\1ab", 4, 4100}, {"\xd6\1abcd", 6, 4104},
        {"\xd7\1abcdefgh", 10, 4112}, {"\xd8\1abcdefghabcdefgh", 18, 4128},
        {"\xc7\3\1abc", 6, 4102}, {"\xc8\0\3\1abc", 7, 4102}, {"\xc9\0\0\0\3\1abc", 9, 4102},
        {"\xd6\xff\1\2\3\4", 6, 72}, {"\xc7\x0c\xff\1\2\3\4\1\2\3\4\1\2\3\4", 15, 72},
        {"\x90", 1, 72}, {"\x92\1\2", 3, 88}, {"\xdc\0\1\1", 4, 80}, {"\xdd\0\0\0\1\1", 6, 80},
        {"\x80", 1, 88}, {"\x81\1\2", 3, 208}, {"\xde\0\1\1\2", 5, 208},
        {"\xdf\0\0\0\1\1\2", 7, 208}, {"\x92\x91\1\x81\1\x90", 6, 72 + 80 + 272},
    };

    for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
        CHECK(memory_of(values[k].text, values[k].size) == values[k].memory);
        for (size_t size = 0; size < values[k].size; size++) /* cut anywhere */
            CHECK(memory_of(values[k].text, size) == TS_INVALID);
    }
}

static void other_bytes_are_invalid(void)
{
    CHECK(MEMORY("\xc1") == TS_INVALID);
    CHECK(MEMORY("\1\1") == TS_INVALID); /* two values */
    CHECK(MEMORY("\x91\xc1") == TS_INVALID);
    CHECK(MEMORY("\xdd\xff\xff\xff\xff\1") == TS_INVALID);
    CHECK(MEMORY("\xdf\xff\xff\xff\xff\1") == TS_INVALID);
    CHECK(MEMORY("\xdb\xff\xff\xff\xffhi") == TS_INVALID);
    CHECK(MEMORY("\xc6\xff\xff\xff\xffhi") == TS_INVALID);
    CHECK(MEMORY("\xc9\xff\xff\xff\xff\1hi") == TS_INVALID);
}

static void depth_is_limited(void)
{
    char text[TS_WIRE_DEPTH_MAX + 2];

    memset(text, 0x91, sizeof text);
    text[TS_WIRE_DEPTH_MAX] = 1;
    CHECK(memory_of(text, TS_WIRE_DEPTH_MAX + 1) == 72 * TS_WIRE_DEPTH_MAX + 8);
    text[TS_WIRE_DEPTH_MAX] = (char)0x91;
    text[TS_WIRE_DEPTH_MAX + 1] = 1;
    CHECK(memory_of(text, TS_WIRE_DEPTH_MAX + 2) == INT64_MAX);
    text[TS_WIRE_DEPTH_MAX] = (char)0x90; /* an empty list has no further level */
    CHECK(memory_of(text, TS_WIRE_DEPTH_MAX + 1) == 72 * TS_WIRE_DEPTH_MAX + 72);
}

int main(void)
{
    each_kind_of_value_is_read();
    other_bytes_are_invalid();
    depth_is_limited();
    return 0;
}
