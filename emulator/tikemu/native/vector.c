// Optional accelerator of tikemu: vector instructions of the emulated chip, bit-equal to the NumPy implementation in
// numerics.py. No dependency on CPython; loaded through ctypes by native/__init__.py, built by `python -m tikemu.build_native`.
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define HALF_MAX 65504.0f
#define HALF_OVERFLOW 65520.0f  // rounds to infinity
#define FLOAT_OVERFLOW INFINITY
#define LANES 128
#define PAD 8

enum { F16, F32 };
enum { FLOAT, INT32, BITS16, TO_INT32, FROM_INT32, SUM, EXTREME, COMPARE };
enum { ADD, SUB, MUL, DIV, MAX, MIN, ADDS, MULS, ABS, RELU, SQRT, REC, RSQRT, CONV, AXPY, MLA, MADD };
enum { AND, OR, NOT, TABLE };
enum { ROUND, FLOOR, CEIL, AWAY, TRUNCATE };
enum { LT, GT, LE, GE, EQ, NE };

// One vector instruction; mirrored by VectorCall in __init__.py. Strides in bytes.
typedef struct {
    int32_t family, op, dst_kind, src_kind, repeats, lanes, full, reads_dst;
    int64_t dst_rep, dst_blk, a_rep, a_blk, b_rep, b_blk;
    uint8_t *dst;
    const uint8_t *a, *b;
    const uint8_t *lane;  // one byte per lane, 1 = enabled
    const void *table;
    double scalar;
    int64_t overflow;  // executions in which an enabled lane saturated: counted here, reset by the caller
} tik_vector;

#define NAME(x) x##_generic
#include "vector.h"
#undef NAME

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif
#define USE_F16C
#define NAME(x) x##_avx2
#include "vector.h"
#undef NAME
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

// The fastest version for this processor; generic != 0 asks for the portable one.
typedef void (*tik_runner)(tik_vector *);
tik_runner tik_select(int generic) {
#if defined(__x86_64__)
    if (!generic && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return tik_run_avx2;
#endif
    (void)generic;
    return tik_run_generic;
}
