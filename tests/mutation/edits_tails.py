"""Edits where rows, lanes or packed tiles end, and of the portable arithmetic."""

from __future__ import annotations

from tests.mutation.edit import BF16, Edit

TAILS = [
    Edit("pack-inl.h", "{ return (value + unit - 1) / unit * unit; }", "{ return value / unit * unit; }"),
    Edit("pack-inl.h", "{ return (value + unit - 1) / unit * unit; }", "{ return (value + unit) / unit * unit; }"),
    Edit(
        "pack-inl.h",
        "for (; i + kLanes <= count; i += kLanes) Simd::store(dst + i, load",
        "for (; i < count; i += kLanes) Simd::store(dst + i, load",
    ),
    Edit(
        "pack-inl.h",
        "for (; i + kLanes <= count; i += kLanes) store_vector",
        "for (; i < count; i += kLanes) store_vector",
    ),
    Edit("pack-inl.h", "alignas(64) char rest[kLanes * 4] = {};", "alignas(64) char rest[kLanes * 4];"),
    Edit("pack-inl.h", "return count < m ? 0 : count - m < kLanes", "return count - m < kLanes"),
    Edit(
        "pack-inl.h",
        "for (int64_t m = count; m < padded; ++m)\n      std::memset",
        "for (int64_t m = count; m < count; ++m)\n      std::memset",
    ),
    Edit("pack-inl.h", "std::memset(row + used, 0, round_up(units(src.columns), kLanes) * 4 - used);", "", BF16),
    Edit(
        "pack-inl.h",
        "units(int64_t columns) { return (columns + 1) / 2; }",
        "units(int64_t columns) { return columns / 2; }",
        BF16,
    ),
    Edit("pack-inl.h", "if (m >= count) return S::u_set1(0);", "", BF16),
    Edit("pack-inl.h", "if (k + kLanes <= src.columns) return S::u_load16(row);", "return S::u_load16(row);", BF16),
    Edit("pack-inl.h", "if (k < units) {", "if (k + 1 < units) {"),
    Edit("pack-inl.h", "m / kPanel * kPanel * src.columns + m % kPanel", "m / kPanel * kPanel * src.columns"),
    Edit(
        "pack-inl.h",
        "std::memcpy(rest, row + k, 2 * (columns - k < kStep ? columns - k : kStep));",
        "std::memcpy(rest, row + k, 2 * kStep);",
        BF16,
    ),
    Edit("pack-inl.h", "for (; k < columns; k += kStep) {", "for (; k + kStep <= columns; k += kStep) {", BF16),
    Edit("gemm-inl.h", "if (width > kPanel - kLanes) {", "if (width > kPanel) {"),
    Edit("gemm-inl.h", "if (width > kPanel - kLanes) {", "if (width >= kPanel - kLanes) {"),
    Edit(
        "gemm-inl.h",
        "for (int64_t n = 0; n < width; n += kLanes)\n    accumulate",
        "for (int64_t n = 0; n + kLanes <= width; n += kLanes)\n    accumulate",
    ),
    Edit(
        "gemm-inl.h",
        "for (int64_t c = 0; c < count; c += kLanes)\n      S::store_bf16",
        "for (int64_t c = 0; c + kLanes < count; c += kLanes)\n      S::store_bf16",
        BF16,
    ),
    Edit(
        "target-inl.h",
        "for (int64_t i = whole; i < count; ++i) rest",
        "for (int64_t i = whole; i + 1 < count; ++i) rest",
    ),
    Edit("simd/portable.h", "if (rest >= 0x477FF000)", "if (rest >= 0x47800000)", "scalar"),
    Edit("simd/portable.h", "0xFFF + (rest >> 13 & 1)", "0xFFF", "scalar"),
    Edit("simd/portable.h", "bits + 0x7FFF + (bits >> 16 & 1)", "bits + 0x8000", "scalar"),
    Edit("simd/portable.h", ">= threshold) << 1;", "> threshold) << 1;", "scalar"),
]
