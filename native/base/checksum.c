/* CRC-32 of IEEE 802.3, as zlib computes it. There are three implementations with the same result.
 *
 * x86-64 with PCLMULQDQ: folding, as described below. With VPCLMULQDQ and AVX-512, inputs of 256
 * bytes or more use four wide registers of four such registers each: 2048 bits a step. AArch64 with
 * the CRC extension: its instructions. All other processors, and inputs of less than 16 bytes:
 * sixteen tables, sixteen bytes a step.
 *
 * Folding. A message is a polynomial M, and its CRC is M x^32 mod P. A register of 128 bits holds
 * the next 16 bytes of M, first bit highest. To fold a register R into the register that lies n
 * bits further on, add R x^n to it. Modulo P that is
 *
 *     R x^n = (low 64 bits of R) x^(n+64) + (high 64 bits of R) x^n
 *          -> low * (x^(n+64) mod P)      + high * (x^n mod P)        two carry-less products
 *
 * Each product has at most 96 bits, so one XOR adds it. Four registers advance by 512 bits a step,
 * so that four pairs of products are computed in parallel. At the end they fold into one register,
 * over distances of 128 and 256 bits. Then the loop advances 16 bytes a step. A tail of n < 16
 * bytes is combined with the bytes before it into one register of exactly the last 16 bytes, and
 * the first n bytes of R fold into that register.
 *
 * The end. R x^32 mod P, for R = low x^64 + high, is reduced in steps. T = low (x^96 mod P) + high
 * x^32 has 96 bits and the same remainder. The quotient q of T by P is exactly the top of (upper 64
 * bits of T) * (quotient of x^95 by P). T + q P has only its 32 low powers left.
 *
 * native/crc_table.py computes the constants by division. Where it says "one power short", the
 * reason is the order of the bits.
 */
#include "base/checksum.h"

#include <stddef.h>
#include <string.h>

#include "format/crc32_table.h"

#if defined(__x86_64__)
#define TS_CRC32_FOLDS 1
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__linux__) && \
    __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define TS_CRC32_INSTRUCTIONS 1
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

/* In these three functions, crc is the register: the CRC with all bits inverted. */

static uint32_t crc_bytes(uint32_t crc, const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < size; i++)
        crc = crc >> 8 ^ ts_crc32_tables[0][(crc ^ data[i]) & 255];
    return crc;
}

static uint32_t crc_slices(uint32_t crc, const uint8_t *data, size_t size)
{
    for (; size >= 16; size -= 16, data += 16) {
        uint32_t next = ts_crc32_tables[15][data[0] ^ (crc & 255)] ^
                        ts_crc32_tables[14][data[1] ^ (crc >> 8 & 255)] ^
                        ts_crc32_tables[13][data[2] ^ (crc >> 16 & 255)] ^
                        ts_crc32_tables[12][data[3] ^ crc >> 24];

        for (int i = 4; i < 16; i++) /* independent look-ups, which the compiler unrolls */
            next ^= ts_crc32_tables[15 - i][data[i]];
        crc = next;
    }
    return crc_bytes(crc, data, size);
}

#if defined(TS_CRC32_FOLDS)

#define TS_FOLD_TARGET __attribute__((target("pclmul,sse4.1")))

TS_FOLD_TARGET static inline __m128i load(const uint8_t *at)
{
    return _mm_loadu_si128((const __m128i *)(const void *)at);
}

/* Fold x into `onto`, over the distance of the factors. */
TS_FOLD_TARGET static inline __m128i fold(__m128i x, __m128i factors, __m128i onto)
{
    __m128i low = _mm_clmulepi64_si128(x, factors, 0x00);
    __m128i high = _mm_clmulepi64_si128(x, factors, 0x11);

    return _mm_xor_si128(_mm_xor_si128(low, high), onto);
}

/* Fold x and the last size < 16 bytes before `end` into one register. At least 16 bytes precede
 * end. */
TS_FOLD_TARGET static inline __m128i fold_tail(__m128i x, __m128i factors, const uint8_t *end,
                                               size_t size)
{
    /* Loaded at `size`, these indexes move a register's bytes up by 16 - size and fill with zeros.
     * Loaded at 16 + size, they move the bytes down by size, and set the top bit of the unused
     * ones. */
    static const uint8_t moves[48] = {
        128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
        0,   1,   2,   3,   4,   5,   6,   7,   8,   9,   10,  11,  12,  13,  14,  15,
        128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
    };
    __m128i up = load(moves + size), down = load(moves + 16 + size);
    __m128i last = _mm_blendv_epi8(_mm_shuffle_epi8(x, down), load(end - 16), down);

    return fold(_mm_shuffle_epi8(x, up), factors, last);
}

/* Reduce 128 bits to the CRC's 32. */
TS_FOLD_TARGET static inline uint32_t reduce(__m128i x)
{
    const __m128i to_96 = _mm_set_epi64x(0, (int64_t)TS_CRC32_REDUCE_96);
    const __m128i divide = _mm_set_epi64x((int64_t)TS_CRC32_POLYNOMIAL_33,
                                          (int64_t)TS_CRC32_QUOTIENT_95);
    __m128i rest = _mm_xor_si128(_mm_clmulepi64_si128(x, to_96, 0x00), _mm_srli_si128(x, 8));
    __m128i quotient = _mm_clmulepi64_si128(rest, divide, 0x00);
    __m128i whole = _mm_clmulepi64_si128(quotient, divide, 0x10);

    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(rest, whole), 2);
}

/* Fold the remaining bytes into x, and reduce it. */
TS_FOLD_TARGET static inline uint32_t finish(__m128i x, const uint8_t *data, const uint8_t *end)
{
    const __m128i by_128 = _mm_set_epi64x((int64_t)TS_CRC32_FOLD_128_HIGH,
                                          (int64_t)TS_CRC32_FOLD_128_LOW);

    for (; end - data >= 16; data += 16)
        x = fold(x, by_128, load(data));
    if (data < end)
        x = fold_tail(x, by_128, end, (size_t)(end - data));
    return reduce(x);
}

/* Fold four adjacent registers into one. */
TS_FOLD_TARGET static inline __m128i join(__m128i x, __m128i x1, __m128i x2, __m128i x3)
{
    const __m128i by_128 = _mm_set_epi64x((int64_t)TS_CRC32_FOLD_128_HIGH,
                                          (int64_t)TS_CRC32_FOLD_128_LOW);
    const __m128i by_256 = _mm_set_epi64x((int64_t)TS_CRC32_FOLD_256_HIGH,
                                          (int64_t)TS_CRC32_FOLD_256_LOW);

    return fold(fold(x, by_128, x1), by_256, fold(x2, by_128, x3));
}

/* Requires size >= 16. */
TS_FOLD_TARGET static uint32_t crc_fold(uint32_t crc, const uint8_t *data, size_t size)
{
    const uint8_t *end = data + size;
    __m128i x = _mm_xor_si128(load(data), _mm_cvtsi32_si128((int32_t)crc));

    data += 16;
    if (size >= 64) {
        const __m128i by_512 = _mm_set_epi64x((int64_t)TS_CRC32_FOLD_512_HIGH,
                                              (int64_t)TS_CRC32_FOLD_512_LOW);
        __m128i x1 = load(data), x2 = load(data + 16), x3 = load(data + 32);

        for (data += 48; end - data >= 64; data += 64) {
            x = fold(x, by_512, load(data));
            x1 = fold(x1, by_512, load(data + 16));
            x2 = fold(x2, by_512, load(data + 32));
            x3 = fold(x3, by_512, load(data + 48));
        }
        x = join(x, x1, x2, x3);
    }
    return finish(x, data, end);
}

#define TS_WIDE_TARGET __attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.1")))

TS_WIDE_TARGET static inline __m512i wide_load(const uint8_t *at)
{
    return _mm512_loadu_si512((const void *)at);
}

TS_WIDE_TARGET static inline __m512i wide_factors(uint64_t high, uint64_t low)
{
    return _mm512_broadcast_i32x4(_mm_set_epi64x((int64_t)high, (int64_t)low));
}

TS_WIDE_TARGET static inline __m512i wide_fold(__m512i x, __m512i factors, __m512i onto)
{
    __m512i low = _mm512_clmulepi64_epi128(x, factors, 0x00);
    __m512i high = _mm512_clmulepi64_epi128(x, factors, 0x11);

    return _mm512_ternarylogic_epi64(low, high, onto, 0x96 /* XOR of all three */);
}

enum { WIDE_BYTES_MIN = 256 };

/* Requires size >= WIDE_BYTES_MIN. */
TS_WIDE_TARGET static uint32_t crc_fold_wide(uint32_t crc, const uint8_t *data, size_t size)
{
    const __m512i by_512 = wide_factors(TS_CRC32_FOLD_512_HIGH, TS_CRC32_FOLD_512_LOW);
    const __m512i by_1024 = wide_factors(TS_CRC32_FOLD_1024_HIGH, TS_CRC32_FOLD_1024_LOW);
    const __m512i by_2048 = wide_factors(TS_CRC32_FOLD_2048_HIGH, TS_CRC32_FOLD_2048_LOW);
    const uint8_t *end = data + size;
    __m512i x = _mm512_xor_si512(wide_load(data),
                                 _mm512_zextsi128_si512(_mm_cvtsi32_si128((int32_t)crc)));
    __m512i x1 = wide_load(data + 64), x2 = wide_load(data + 128), x3 = wide_load(data + 192);

    for (data += 256; end - data >= 256; data += 256) {
        x = wide_fold(x, by_2048, wide_load(data));
        x1 = wide_fold(x1, by_2048, wide_load(data + 64));
        x2 = wide_fold(x2, by_2048, wide_load(data + 128));
        x3 = wide_fold(x3, by_2048, wide_load(data + 192));
    }
    x = wide_fold(wide_fold(x, by_512, x1), by_1024, wide_fold(x2, by_512, x3));
    for (; end - data >= 64; data += 64)
        x = wide_fold(x, by_512, wide_load(data));
    return finish(join(_mm512_castsi512_si128(x), _mm512_extracti32x4_epi32(x, 1),
                       _mm512_extracti32x4_epi32(x, 2), _mm512_extracti32x4_epi32(x, 3)),
                  data, end);
}

static int can_fold, can_fold_wide;

/* Not __builtin_cpu_supports: zig takes that from its own runtime, whose memcpy, slower than the C
 * library's, would then be linked too. Here so that no thread of the store runs it: a virtual
 * machine needs microseconds for each CPUID. */
__attribute__((constructor, target("xsave"))) static void detect_instructions(void)
{
    enum { WIDE_REGISTERS = 0xe6 }; /* XCR0: the system saves those of SSE, AVX and AVX-512 */
    unsigned int a, b, c, d;

    if (!__get_cpuid(1, &a, &b, &c, &d))
        return;
    can_fold = (c & bit_PCLMUL) && (c & bit_SSE4_1);
    if (can_fold && (c & bit_OSXSAVE) && (_xgetbv(0) & WIDE_REGISTERS) == WIDE_REGISTERS &&
        __get_cpuid_count(7, 0, &a, &b, &c, &d))
        can_fold_wide = (b & bit_AVX512F) && (c & bit_VPCLMULQDQ);
}

#elif defined(TS_CRC32_INSTRUCTIONS)

#if defined(__clang__)
#define TS_CRC_TARGET __attribute__((target("crc")))
#else
#define TS_CRC_TARGET __attribute__((target("+crc")))
#endif

enum { HWCAP_HAS_CRC32 = 1 << 7 }; /* a bit of AT_HWCAP, fixed by the kernel's interface */

TS_CRC_TARGET static uint32_t crc_instructions(uint32_t crc, const uint8_t *data, size_t size)
{
    uint64_t word;

    for (; size >= 8; size -= 8, data += 8) {
        memcpy(&word, data, 8);
        crc = __crc32d(crc, word);
    }
    for (; size > 0; size--, data++)
        crc = __crc32b(crc, *data);
    return crc;
}

#endif

uint32_t ts_crc32(uint32_t crc, const uint8_t *data, int64_t size)
{
    if (size <= 0)
        return crc;
#if defined(TS_CRC32_FOLDS)
    if (size >= WIDE_BYTES_MIN && can_fold_wide)
        return ~crc_fold_wide(~crc, data, (size_t)size);
    if (size >= 16 && can_fold)
        return ~crc_fold(~crc, data, (size_t)size);
#elif defined(TS_CRC32_INSTRUCTIONS)
    if ((getauxval(AT_HWCAP) & HWCAP_HAS_CRC32) != 0)
        return ~crc_instructions(~crc, data, (size_t)size);
#endif
    return ~crc_slices(~crc, data, (size_t)size);
}
