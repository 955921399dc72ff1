// Element-wise vector instructions and reductions on Unified Buffer bytes. Included once per instruction set: the
// includer defines NAME(x) to give every function its own suffix, and USE_F16C if the compiler may use it.
//
// A repeat's sources are read completely before its destination is written, repeats run in order: exactly the
// behaviour of the hardware model, also for overlapping operands. Saturation: inf -> max, NaN -> 0.

static inline uint32_t NAME(bits)(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
static inline float NAME(number)(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }

// float16 bits to float, n rounded up to a multiple of 8 (buffers are padded).
static void NAME(widen)(float *restrict out, const uint16_t *restrict in, int n) {
#if defined(USE_F16C)
    for (int i = 0; i < n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(in + i))));
#else
    for (int i = 0; i < n; ++i) {
        uint32_t half = in[i], magnitude = (half & 0x7fffu) << 13;
        uint32_t u = NAME(bits)(NAME(number)(magnitude) * 0x1p112f);
        u |= (half & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
        out[i] = NAME(number)(u | (half & 0x8000u) << 16);
    }
#endif
}

static inline float NAME(clamp)(float x, float limit) {
    x = x == x ? x : 0.0f;
    x = x > limit ? limit : x;
    return x < -limit ? -limit : x;
}

// Whether an enabled lane (`lane` NULL: any) holds a NaN or a number of the size `limit` or more.
static int NAME(exceeds)(const float *x, int n, float limit, const uint8_t *lane) {
    for (int i = 0; i < n; ++i)
        if (!(fabsf(x[i]) < limit) && (!lane || lane[i])) return 1;
    return 0;
}

// The largest magnitude as bits. For a NaN the bits are above the bits of infinity.
static inline uint32_t NAME(largest)(const float *x, int n) {
    uint32_t top = 0;
    for (int i = 0; i < n; ++i) {
        const uint32_t magnitude = NAME(bits)(x[i]) & 0x7fffffffu;
        top = magnitude > top ? magnitude : top;
    }
    return top;
}

// float to float16 bits: nearest even, saturating, NaN -> 0. Returns whether an enabled lane saturated.
static int NAME(narrow)(uint16_t *restrict out, const float *restrict in, int n, const uint8_t *lane) {
#if defined(USE_F16C)
    const __m128i infinity = _mm_set1_epi16(0x7c00);
    __m128i bad = _mm_setzero_si128();  // of all lanes, padding included: looked at again if one is found
    for (int i = 0; i < n; i += 8) {
        const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        bad = _mm_or_si128(bad, _mm_cmpeq_epi16(_mm_and_si128(half, infinity), infinity));
        _mm_storeu_si128((__m128i *)(out + i), half);
    }
    if (!_mm_movemask_epi8(bad)) return 0;
    const __m256 limit = _mm256_set1_ps(HALF_MAX), low = _mm256_set1_ps(-HALF_MAX);
    for (int i = 0; i < n; i += 8) {
        __m256 x = _mm256_loadu_ps(in + i);
        x = _mm256_and_ps(x, _mm256_cmp_ps(x, x, _CMP_ORD_Q));
        x = _mm256_max_ps(_mm256_min_ps(x, limit), low);
        _mm_storeu_si128((__m128i *)(out + i), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
    return NAME(exceeds)(in, n, HALF_OVERFLOW, lane);
#else
    for (int i = 0; i < n; ++i) {
        uint32_t u = NAME(bits)(NAME(clamp)(in[i], HALF_MAX)), sign = u >> 16 & 0x8000u;
        u &= 0x7fffffffu;
        uint32_t normal = (u + 0xfffu + (u >> 13 & 1u) - 0x38000000u) >> 13;
        uint32_t subnormal = NAME(bits)(NAME(number)(u) + 0.5f) - 0x3f000000u;  // 0.5 has the spacing 2^-24
        out[i] = (uint16_t)(sign | (u < 0x38800000u ? subnormal : normal));
    }
    return NAME(largest)(in, n) >= NAME(bits)(HALF_OVERFLOW) && NAME(exceeds)(in, n, HALF_OVERFLOW, lane);
#endif
}

// Both return whether an enabled lane saturated.
static int NAME(round_half)(float *x, int n, const uint8_t *lane) {
    uint16_t half[LANES + PAD];
    const int bad = NAME(narrow)(half, x, n, lane);
    NAME(widen)(x, half, n);
    return bad;
}

static int NAME(saturate)(float *x, int n, int kind, const uint8_t *lane) {
    if (kind == F16) return NAME(round_half)(x, n, lane);
    if (NAME(largest)(x, n) < 0x7f800000u) return 0;
    const int bad = NAME(exceeds)(x, n, FLOAT_OVERFLOW, lane);
    for (int i = 0; i < n; ++i) x[i] = NAME(clamp)(x[i], FLT_MAX);
    return bad;
}

// n elements of `size` bytes from blocks `blk` bytes apart.
static void NAME(gather)(void *restrict out, const uint8_t *restrict in, int n, int64_t blk, int size) {
    if (blk == 32) {
        memcpy(out, in, (size_t)n * size);
        return;
    }
    const int per = 32 / size;
    for (int i = 0; i < n; i += per, in += blk)
        memcpy((uint8_t *)out + (size_t)i * size, in, (size_t)(n - i < per ? n - i : per) * size);
}

// The enabled lanes of x to blocks `blk` bytes apart.
#define SCATTER(type)                                                                                              \
    static void NAME(scatter_##type)(uint8_t *out, const type *restrict x, int n, int64_t blk,                     \
                                     const uint8_t *restrict lane, int full) {                                     \
        const int per = 32 / (int)sizeof(type);                                                                    \
        if (full && blk == 32) {                                                                                   \
            memcpy(out, x, (size_t)n * sizeof(type));                                                              \
            return;                                                                                                \
        }                                                                                                          \
        for (int i = 0; i < n; i += per, out += blk)                                                               \
            for (int k = i; k < n && k < i + per; ++k)                                                             \
                if (lane[k]) memcpy(out + (size_t)(k - i) * sizeof(type), x + k, sizeof(type));                    \
    }
SCATTER(uint16_t)
SCATTER(uint32_t)
#undef SCATTER

static void NAME(load)(float *restrict x, const uint8_t *in, int n, int64_t blk, int kind) {
    if (kind == F16) {
        uint16_t half[LANES + PAD];
        NAME(gather)(half, in, n, blk, 2);
        for (int i = n; i < n + PAD; ++i) half[i] = 0;
        NAME(widen)(x, half, n);
    } else {
        NAME(gather)(x, in, n, blk, 4);
        for (int i = n; i < n + PAD; ++i) x[i] = 0.0f;
    }
}

static int NAME(store)(uint8_t *out, float *x, int n, int64_t blk, int kind, const uint8_t *lane, int full) {
    int bad;
    if (kind == F16) {
        uint16_t half[LANES + PAD];
        bad = NAME(narrow)(half, x, n, lane);
        NAME(scatter_uint16_t)(out, half, n, blk, lane, full);
    } else {
        uint32_t word[LANES + PAD];
        bad = NAME(saturate)(x, n, F32, lane);
        memcpy(word, x, (size_t)n * 4);
        NAME(scatter_uint32_t)(out, word, n, blk, lane, full);
    }
    return bad;
}

static inline float NAME(reciprocal)(float x, const float *table) {
    uint32_t u = NAME(bits)(x), magnitude = u & 0x7fffffffu;
    if (magnitude == 0 || magnitude >= 0x7f800000u) return 1.0f / x;
    int shift = 0;
    if (magnitude < 0x00800000u) {
        shift = 24;
        magnitude = NAME(bits)(NAME(number)(magnitude) * 0x1p24f);
    }
    const int exponent = (int)(magnitude >> 23) - 127 - shift;
    return copysignf(ldexpf(table[magnitude >> 15 & 255u], -exponent), x);
}

static inline float NAME(rsqrt)(float x, const float *table) {
    uint32_t magnitude = NAME(bits)(x);
    if (!(x > 0.0f) || magnitude == 0x7f800000u) return 1.0f / sqrtf(x);
    int shift = 0;
    if (magnitude < 0x00800000u) {
        shift = 24;
        magnitude = NAME(bits)(x * 0x1p24f);
    }
    const int exponent = (int)(magnitude >> 23) - 127 - shift, parity = exponent & 1;
    return ldexpf(table[parity << 7 | (int)(magnitude >> 16 & 127u)], -((exponent - parity) / 2));
}

#define EACH(expression) \
    for (int i = 0; i < n; ++i) x[i] = (expression); \
    break

static int NAME(run_float)(const tik_vector *v) {
    float x[LANES + PAD], y[LANES + PAD], z[LANES + PAD];
    const int n = v->lanes;
    const float s = (float)v->scalar;
    const float *table = v->table;
    int bad = 0;
    for (int r = 0; r < v->repeats; ++r) {
        NAME(load)(x, v->a + r * v->a_rep, n, v->a_blk, v->src_kind);
        if (v->b) NAME(load)(y, v->b + r * v->b_rep, n, v->b_blk, v->src_kind);
        uint8_t *out = v->dst + r * v->dst_rep;
        if (v->reads_dst) NAME(load)(z, out, n, v->dst_blk, v->dst_kind);
        switch (v->op) {
            case ADD: EACH(x[i] + y[i]);
            case SUB: EACH(x[i] - y[i]);
            case MUL: EACH(x[i] * y[i]);
            case DIV: EACH(x[i] / y[i]);
            case MAX: EACH(x[i] >= y[i] || x[i] != x[i] ? x[i] : y[i]);
            case MIN: EACH(x[i] <= y[i] || x[i] != x[i] ? x[i] : y[i]);
            case ADDS: EACH(x[i] + s);
            case MULS: EACH(x[i] * s);
            case ABS: EACH(fabsf(x[i]));
            case RELU: EACH(x[i] >= 0.0f || x[i] != x[i] ? x[i] : 0.0f);
            case SQRT: EACH(sqrtf(x[i]));
            case REC: EACH(NAME(reciprocal)(x[i], table));
            case RSQRT: EACH(NAME(rsqrt)(x[i], table));
            case CONV: break;
            case AXPY:  // the product is rounded to the destination's type, then the sum (no fused multiply-add)
                for (int i = 0; i < n; ++i) x[i] = x[i] * s;
                bad |= NAME(saturate)(x, n, v->dst_kind, v->lane);
                EACH(x[i] + z[i]);
            case MLA:
                for (int i = 0; i < n; ++i) x[i] = x[i] * y[i];
                bad |= NAME(saturate)(x, n, v->dst_kind, v->lane);
                EACH(x[i] + z[i]);
            case MADD:
                for (int i = 0; i < n; ++i) x[i] = x[i] * z[i];
                bad |= NAME(saturate)(x, n, v->dst_kind, v->lane);
                EACH(x[i] + y[i]);
        }
        bad |= NAME(store)(out, x, n, v->dst_blk, v->dst_kind, v->lane, v->full);
    }
    return bad;
}

static void NAME(run_int32)(const tik_vector *v) {
    uint32_t x[LANES + PAD], y[LANES + PAD];
    const int n = v->lanes;
    const uint32_t s = (uint32_t)(int64_t)v->scalar;
    for (int r = 0; r < v->repeats; ++r) {
        NAME(gather)(x, v->a + r * v->a_rep, n, v->a_blk, 4);
        if (v->b) NAME(gather)(y, v->b + r * v->b_rep, n, v->b_blk, 4);
        switch (v->op) {  // unsigned arithmetic wraps
            case ADD: EACH(x[i] + y[i]);
            case SUB: EACH(x[i] - y[i]);
            case MUL: EACH(x[i] * y[i]);
            case MAX: EACH((int32_t)x[i] >= (int32_t)y[i] ? x[i] : y[i]);
            case MIN: EACH((int32_t)x[i] <= (int32_t)y[i] ? x[i] : y[i]);
            case ADDS: EACH(x[i] + s);
            case MULS: EACH(x[i] * s);
        }
        NAME(scatter_uint32_t)(v->dst + r * v->dst_rep, x, n, v->dst_blk, v->lane, v->full);
    }
}

// 16-bit operations, among them every function of one float16 argument: a table of 65536 results. Bit 16 is set if the
// result saturated.
static int NAME(run_bits16)(const tik_vector *v) {
    uint16_t x[LANES + PAD], y[LANES + PAD];
    const int n = v->lanes;
    const uint32_t *table = v->table;
    int bad = 0;
    for (int r = 0; r < v->repeats; ++r) {
        NAME(gather)(x, v->a + r * v->a_rep, n, v->a_blk, 2);
        if (v->b) NAME(gather)(y, v->b + r * v->b_rep, n, v->b_blk, 2);
        switch (v->op) {
            case AND: EACH(x[i] & y[i]);
            case OR: EACH(x[i] | y[i]);
            case NOT: EACH((uint16_t)~x[i]);
            case TABLE: {
                uint32_t all = 0;
                for (int i = 0; i < n; ++i) {
                    const uint32_t entry = table[x[i]];
                    all |= entry;
                    y[i] = (uint16_t)entry;
                }
                if (all >> 16)
                    for (int i = 0; i < n; ++i) bad |= v->lane[i] && table[x[i]] >> 16;
                memcpy(x, y, (size_t)n * 2);
                break;
            }
        }
        NAME(scatter_uint16_t)(v->dst + r * v->dst_rep, x, n, v->dst_blk, v->lane, v->full);
    }
    return bad;
}

static int NAME(run_to_int32)(const tik_vector *v) {
    float x[LANES + PAD];
    uint32_t word[LANES + PAD];
    const int n = v->lanes;
    int bad = 0;
    for (int r = 0; r < v->repeats; ++r) {
        NAME(load)(x, v->a + r * v->a_rep, n, v->a_blk, v->src_kind);
        switch (v->op) {
            case ROUND: EACH(rintf(x[i]));
            case FLOOR: EACH(floorf(x[i]));
            case CEIL: EACH(ceilf(x[i]));
            case AWAY: EACH(roundf(x[i]));
            case TRUNCATE: EACH(truncf(x[i]));
        }
        for (int i = 0; i < n; ++i)
            word[i] = x[i] != x[i] ? 0u : x[i] >= 0x1p31f ? 0x7fffffffu : x[i] < -0x1p31f ? 0x80000000u
                                                                              : (uint32_t)(int32_t)x[i];
        if (NAME(largest)(x, n) >= NAME(bits)(0x1p31f))  // -2^31 itself is representable
            for (int i = 0; i < n; ++i) bad |= v->lane[i] && !(x[i] >= -0x1p31f && x[i] < 0x1p31f);
        NAME(scatter_uint32_t)(v->dst + r * v->dst_rep, word, n, v->dst_blk, v->lane, v->full);
    }
    return bad;
}

static void NAME(run_from_int32)(const tik_vector *v) {
    int32_t word[LANES + PAD];
    float x[LANES + PAD];
    const int n = v->lanes;
    for (int r = 0; r < v->repeats; ++r) {
        NAME(gather)(word, v->a + r * v->a_rep, n, v->a_blk, 4);
        for (int i = 0; i < n; ++i) x[i] = (float)word[i];
        NAME(store)(v->dst + r * v->dst_rep, x, n, v->dst_blk, F32, v->lane, v->full);
    }
}

// Adjacent-pair tree over the lanes of a repeat; the rest of the lanes counts as 0. `scalar` holds the levels, and
// `lane` enables lanes. The outputs follow one another. Outputs without any enabled lane are not written.
static int NAME(run_sum)(const tik_vector *v) {
    float x[LANES + PAD];
    const int par = v->src_kind == F16 ? 128 : 64, levels = (int)v->scalar, outputs = par >> levels;
    const int size = v->dst_kind == F16 ? 2 : 4;
    uint8_t written[LANES] = {0};
    int bad = 0;
    for (int i = 0; i < v->lanes; ++i) written[i >> levels] |= v->lane[i];
    for (int r = 0; r < v->repeats; ++r) {
        NAME(load)(x, v->a + r * v->a_rep, v->lanes, v->a_blk, v->src_kind);
        for (int i = 0; i < v->lanes; ++i)
            if (!v->lane[i]) x[i] = 0.0f;
        for (int i = v->lanes; i < par; ++i) x[i] = 0.0f;
        for (int level = 0, n = par / 2; level < levels; ++level, n /= 2) {
            for (int i = 0; i < n; ++i) x[i] = x[2 * i] + x[2 * i + 1];
            bad |= NAME(saturate)(x, n, v->src_kind, NULL);
        }
        uint16_t half[LANES + PAD];
        if (size == 2) NAME(narrow)(half, x, outputs, NULL);
        for (int i = 0; i < outputs; ++i)
            if (written[i]) memcpy(v->dst + r * v->dst_rep + i * size, size == 2 ? (void *)(half + i) : (void *)(x + i), size);
    }
    return bad;
}

// float16 maximum (op MAX) or minimum over groups of 2^scalar lanes, lowest lane on ties, a NaN counts as 0. `reads_dst`
// asks for value-index pairs.
static int NAME(run_extreme)(const tik_vector *v) {
    float x[LANES + PAD];
    uint16_t half[LANES + PAD];
    const int levels = (int)v->scalar, group = 1 << levels;
    int bad = 0;
    for (int r = 0; r < v->repeats; ++r) {
        NAME(gather)(half, v->a + r * v->a_rep, v->lanes, v->a_blk, 2);
        for (int i = v->lanes; i < v->lanes + PAD; ++i) half[i] = 0;
        NAME(widen)(x, half, v->lanes);
        uint8_t *out = v->dst + r * v->dst_rep;
        for (int first = 0; first < v->lanes; first += group) {
            int best = -1;
            for (int i = first; i < first + group && i < v->lanes; ++i) {
                if (!v->lane[i]) continue;
                if (x[i] != x[i]) x[i] = 0.0f, half[i] = 0, bad = 1;
                if (best < 0 || (v->op == MAX ? x[i] > x[best] : x[i] < x[best])) best = i;
            }
            if (best < 0) continue;
            const uint16_t limited = (half[best] & 0x7fffu) > 0x7bffu ? (half[best] & 0x8000u) | 0x7bffu : half[best];
            const uint16_t index = (uint16_t)best;
            bad |= limited != half[best];
            memcpy(out + (first >> levels) * (v->reads_dst ? 4 : 2), &limited, 2);
            if (v->reads_dst) memcpy(out + (first >> levels) * 4 + 2, &index, 2);
        }
    }
    return bad;
}

static void NAME(run_compare)(const tik_vector *v) {
    float x[LANES + PAD], y[LANES + PAD];
    uint8_t flag[LANES + PAD];
    const int n = v->lanes;
    for (int r = 0; r < v->repeats; ++r) {
        NAME(load)(x, v->a + r * v->a_rep, n, v->a_blk, v->src_kind);
        NAME(load)(y, v->b + r * v->b_rep, n, v->b_blk, v->src_kind);
        switch (v->op) {
            case LT: for (int i = 0; i < n; ++i) flag[i] = x[i] < y[i]; break;
            case GT: for (int i = 0; i < n; ++i) flag[i] = x[i] > y[i]; break;
            case LE: for (int i = 0; i < n; ++i) flag[i] = x[i] <= y[i]; break;
            case GE: for (int i = 0; i < n; ++i) flag[i] = x[i] >= y[i]; break;
            case EQ: for (int i = 0; i < n; ++i) flag[i] = x[i] == y[i]; break;
            case NE: for (int i = 0; i < n; ++i) flag[i] = x[i] != y[i]; break;
        }
        for (int i = 0; i < n; i += 8) {
            uint8_t byte = 0;
            for (int k = 0; k < 8; ++k) byte |= (uint8_t)(flag[i + k] << k);
            v->dst[r * v->dst_rep + i / 8] = byte;
        }
    }
}
#undef EACH

void NAME(tik_run)(tik_vector *v) {
    int bad = 0;
    switch (v->family) {
        case FLOAT: bad = NAME(run_float)(v); break;
        case INT32: NAME(run_int32)(v); break;
        case BITS16: bad = NAME(run_bits16)(v); break;
        case TO_INT32: bad = NAME(run_to_int32)(v); break;
        case FROM_INT32: NAME(run_from_int32)(v); break;
        case SUM: bad = NAME(run_sum)(v); break;
        case EXTREME: bad = NAME(run_extreme)(v); break;
        case COMPARE: NAME(run_compare)(v); break;
    }
    v->overflow += bad;
}
