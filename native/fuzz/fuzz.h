/* Shared by the fuzz targets: an input is read as choices, then as bytes; buffers have exactly
 * their size.
 *
 * A target is a file fuzz_<family>.c with LLVMFuzzerTestOneInput, which libFuzzer or replay.c
 * calls.
 */
#ifndef TS_FUZZ_H
#define TS_FUZZ_H

#include "test/check.h"

#include "timerstore.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The rest of the input. Past its end there are zeros. */
typedef struct {
    const uint8_t *at;
    size_t left;
} fuzz_input;

static inline uint8_t fuzz_byte(fuzz_input *in)
{
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->at++;
}

static inline int32_t fuzz_below(fuzz_input *in, int32_t limit)
{
    return fuzz_byte(in) % limit;
}

static inline uint64_t fuzz_u64(fuzz_input *in)
{
    uint64_t value = 0;

    for (int32_t i = 0; i < 8; i++)
        value = value << 8 | fuzz_byte(in);
    return value;
}

static inline int64_t fuzz_i64(fuzz_input *in)
{
    return (int64_t)fuzz_u64(in);
}

/* Read a number that is small most of the time: the first byte limits the bits of the following
 * ones. */
static inline int64_t fuzz_number(fuzz_input *in)
{
    int32_t bits = fuzz_below(in, 64);
    uint64_t value = bits < 8 ? fuzz_byte(in) : bits < 32 ? fuzz_u64(in) >> 40 : fuzz_u64(in);

    return (int64_t)(value >> 1);
}

/* Read at most `size` bytes into a heap buffer of exactly that size, to be freed by the caller. */
static inline uint8_t *fuzz_take(fuzz_input *in, size_t size, size_t *took)
{
    uint8_t *copy;

    *took = size < in->left ? size : in->left;
    copy = check_copy(in->at, *took);
    in->at += *took;
    in->left -= *took;
    return copy;
}

static inline void *fuzz_zeros(int64_t count, size_t size)
{
    void *at = calloc((size_t)count, size);

    CHECK(at != NULL || count == 0);
    return at;
}

#endif
