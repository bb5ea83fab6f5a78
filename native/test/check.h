/* Shared by the C tests: a check that ends the program, hex text, and buffers that end with their
 * data. */
#ifndef TS_TEST_CHECK_H
#define TS_TEST_CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A macro, to get the line and the text of the condition; check_that does the work. */
#define CHECK(condition) check_that((condition) ? 1 : 0, #condition, __FILE__, __LINE__)

static inline void check_that(int holds, const char *what, const char *file, int line)
{
    if (holds)
        return;
    fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, what);
    exit(1);
}

/* Return a copy on the heap of exactly `size` bytes, so that AddressSanitizer detects a read past
 * its end. */
static inline uint8_t *check_copy(const uint8_t *from, size_t size)
{
    uint8_t *copy = malloc(size);

    CHECK(copy != NULL || size == 0);
    if (size > 0)
        memcpy(copy, from, size);
    return copy;
}

static inline int check_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return -1;
}

/* Decode hex text, skipping spaces. Return the size. */
static inline size_t check_hex(const char *text, uint8_t *out, size_t capacity)
{
    size_t count = 0;
    int high = -1;

    for (; *text != '\0'; text++) {
        int digit = check_digit(*text);

        if (digit < 0)
            continue;
        if (high < 0) {
            high = digit;
            continue;
        }
        CHECK(count < capacity);
        out[count++] = (uint8_t)(high << 4 | digit);
        high = -1;
    }
    CHECK(high < 0);
    return count;
}

/* Return whether the bytes are those of a hex text. */
static inline int check_is_hex(const uint8_t *got, size_t size, const char *text)
{
    uint8_t wanted[512];

    return check_hex(text, wanted, sizeof wanted) == size && memcmp(got, wanted, size) == 0;
}

/* Return the next random number, the same in every run (a linear congruential generator; its upper
 * half is used). */
static inline uint32_t check_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 32);
}

/* Return a random number from 0 to limit - 1. */
static inline int32_t check_below(uint64_t *state, int32_t limit)
{
    return (int32_t)(check_random(state) % (uint32_t)limit);
}

#endif
