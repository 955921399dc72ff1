// Optional accelerator of tikemu's strict mode: the marks of the bytes that hold written data (1) or not (0).
#include <stdint.h>
#include <string.h>

// A part of a region: n0 rows s0 bytes apart, each of n1 pieces s1 bytes apart, each `width` bytes long (isa/region.py).
typedef struct {
    uint8_t *first;
    int64_t n0, s0, n1, s1, width;
} tik_piece;

// The pieces that one operation reads, then the pieces that it writes; mirrored by `marks` in __init__.py.
typedef struct {
    int64_t reads, writes;
    tik_piece piece[];
} tik_marks;

// Whether every byte read is marked.
int tik_defined(const tik_marks *m) {
    for (const tik_piece *p = m->piece; p < m->piece + m->reads; ++p)
        for (int64_t i = 0; i < p->n0; ++i)
            for (int64_t k = 0; k < p->n1; ++k)
                if (memchr(p->first + i * p->s0 + k * p->s1, 0, (size_t)p->width)) return 0;
    return 1;
}

// Marks every byte written.
int tik_mark(const tik_marks *m) {
    const tik_piece *first = m->piece + m->reads;
    for (const tik_piece *p = first; p < first + m->writes; ++p)
        for (int64_t i = 0; i < p->n0; ++i)
            for (int64_t k = 0; k < p->n1; ++k) memset(p->first + i * p->s0 + k * p->s1, 1, (size_t)p->width);
    return 1;
}
