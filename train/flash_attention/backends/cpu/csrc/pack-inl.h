// Rows of user memory to tiles and back: conversion, zero padding, transposition. User memory is touched only inside its
// rows; tiles are padded, so everything behind them works in whole vectors.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "gemm-inl.h"
#include "kernels.h"
#include "problem.h"

namespace flash_attention {
namespace {

constexpr int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// A row stride, in floats, of an odd number of 64-byte cache lines: columns then spread over all cache sets.
constexpr int64_t tile_stride(int64_t columns) { return (round_up(columns, 16) / 16 | 1) * 16; }

template <DType kType>
FA_INLINE F load_vector(const void* p) {
  if (kType == DType::kFloat32) return Simd::load(static_cast<const float*>(p));
  if (kType == DType::kFloat16) return Simd::load_f16(static_cast<const uint16_t*>(p));
  return Simd::load_bf16(static_cast<const uint16_t*>(p));
}

template <DType kType>
FA_INLINE void store_vector(void* p, F v) {
  if (kType == DType::kFloat32) return Simd::store(static_cast<float*>(p), v);
  if (kType == DType::kFloat16) return Simd::store_f16(static_cast<uint16_t*>(p), v);
  Simd::store_bf16(static_cast<uint16_t*>(p), v);
}

template <DType kType>
inline void load_row_as(const char* src, int64_t count, float* dst) {
  const int64_t size = kType == DType::kFloat32 ? 4 : 2;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Simd::store(dst + i, load_vector<kType>(src + i * size));
  if (i < count) {
    alignas(64) char rest[kLanes * 4] = {};
    std::memcpy(rest, src + i * size, (count - i) * size);
    Simd::store(dst + i, load_vector<kType>(rest));
  }
}

template <DType kType>
inline void store_row_as(const float* src, float factor, int64_t count, char* dst) {
  const int64_t size = kType == DType::kFloat32 ? 4 : 2;
  const F f = Simd::set1(factor);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store_vector<kType>(dst + i * size, Simd::mul(Simd::load(src + i), f));
  if (i < count) {
    alignas(64) char rest[kLanes * 4];
    store_vector<kType>(rest, Simd::mul(Simd::load(src + i), f));
    std::memcpy(dst + i * size, rest, (count - i) * size);
  }
}

// Calls use(type), type.value being the dtype.
template <class Use>
FA_INLINE void with_type(DType dtype, const Use& use) {
  switch (dtype) {
    case DType::kFloat32: return use(std::integral_constant<DType, DType::kFloat32>{});
    case DType::kFloat16: return use(std::integral_constant<DType, DType::kFloat16>{});
    default: return use(std::integral_constant<DType, DType::kBFloat16>{});
  }
}

// Converts `count` values to float32 and fills up with zeros to a whole vector.
inline void load_row(DType dtype, const void* src, int64_t count, float* dst) {
  with_type(dtype, [&](auto type) { load_row_as<type.value>(static_cast<const char*>(src), count, dst); });
}

// Writes `count` values of src * factor; src is readable to a whole vector.
inline void store_row(DType dtype, const float* src, float factor, int64_t count, void* dst) {
  with_type(dtype, [&](auto type) { store_row_as<type.value>(src, factor, count, static_cast<char*>(dst)); });
}

// Rows of one head in user memory: `columns` values each, `stride` bytes from one to the next.
struct Rows {
  DType dtype;
  const char* data;
  int64_t stride;
  int64_t columns;

  const char* row(int64_t index) const { return data + index * stride; }
  // The same rows without the first m, and how many of `count` are among the next kLanes of them.
  Rows from(int64_t m) const { return {dtype, row(m), stride, columns}; }
  static int64_t left(int64_t count, int64_t m) { return count < m ? 0 : count - m < kLanes ? count - m : kLanes; }
};

// The rows of a tensor from row `row` of a head on.
inline Rows rows_at(DType dtype, const void* tensor, const Layout& layout, int64_t columns, int64_t batch, int64_t head,
                    int64_t row) {
  const int64_t size = size_of(dtype);
  return {dtype, static_cast<const char*>(tensor) + layout.at(batch, head, row) * size, layout.row_stride * size, columns};
}
inline Rows query_rows(const Problem& p, const void* tensor, int64_t batch, int64_t head, int64_t row) {
  return rows_at(p.dtype, tensor, p.query_layout, p.head_dim, batch, head, row);
}
// Of the output or its gradient.
inline Rows output_rows(const Problem& p, const void* tensor, int64_t batch, int64_t head, int64_t row) {
  return rows_at(p.dtype, tensor, p.output_layout, p.value_dim, batch, head, row);
}
inline Rows key_rows(const Problem& p, const void* tensor, int64_t batch, int64_t kv_head, int64_t row) {
  return rows_at(p.dtype, tensor, p.key_layout, p.head_dim, batch, kv_head, row);
}
inline Rows value_rows(const Problem& p, const void* tensor, int64_t batch, int64_t kv_head, int64_t row) {
  return rows_at(p.dtype, tensor, p.value_layout, p.value_dim, batch, kv_head, row);
}

// Numbers below this make products that the bfloat16 instructions may flush to zero: a careful pass takes their tiles.
constexpr uint16_t kTinyBf16 = (127 - 60) << 7;  // 2^-60

// Whether any of `count` rows of bfloat16 holds such a number, on targets with these instructions.
template <class S, bool kBf16 = S::kBf16>
struct Tiny {
  static bool any(const Rows&, int64_t) { return false; }
};
template <class S>
struct Tiny<S, true> {
  static bool any(const Rows& rows, int64_t count) {
    if (rows.dtype != DType::kBFloat16) return false;
    constexpr int64_t kStep = 2 * kLanes;
    int64_t columns = rows.columns;
    if (rows.stride == 2 * columns) {  // one long row
      columns *= count;
      count = 1;
    }
    typename S::U least = S::u_set1(~0u), other = least;
    for (int64_t m = 0; m < count; ++m) {
      const uint16_t* row = reinterpret_cast<const uint16_t*>(rows.row(m));
      const auto load = [&](int64_t k) { return S::u_load(reinterpret_cast<const uint32_t*>(row + k)); };
      int64_t k = 0;
      for (; k + 2 * kStep <= columns; k += 2 * kStep) {
        least = S::bf16_smallest(load(k), least);
        other = S::bf16_smallest(load(k + kStep), other);
      }
      for (; k < columns; k += kStep) {
        uint32_t rest[kLanes] = {};
        std::memcpy(rest, row + k, 2 * (columns - k < kStep ? columns - k : kStep));
        least = S::bf16_smallest(S::u_load(rest), least);
      }
    }
    return S::bf16_any_below(least, kTinyBf16 - 1) || S::bf16_any_below(other, kTinyBf16 - 1);
  }
};

// Whether all float32 numbers that it was shown are finite. Padding to whole vectors is looked at too.
class Finite {
 public:
  FA_INLINE void add(const float* row, int64_t count) {
    for (int64_t d = 0; d < count; d += kLanes) add(Simd::load(row + d));
  }
  FA_INLINE void add(F numbers) { sum_ = Simd::fma(numbers, Simd::zero(), sum_); }
  bool all() const { return Simd::sum(sum_) == 0.0f; }

 private:
  F sum_ = Simd::zero();
};

FA_INLINE bool is_finite(float x) { return x * 0.0f == 0.0f; }

// Rows of a tensor of user memory that are needed soon. Cells of the current tile ask for them bit by bit: packing them
// then does not wait for memory.
class UpcomingRows {
 public:
  void set(const Rows& rows, int64_t count, int64_t cells) {
    row_bytes_ = rows.columns * size_of(rows.dtype);
    stride_ = rows.stride;
    rows_left_ = count > 0 ? count : 0;
    if (stride_ == row_bytes_) {  // one long row
      row_bytes_ *= rows_left_;
      rows_left_ = rows_left_ ? 1 : 0;
    }
    row_ = rows.data;
    start_row();
    // A row may touch one line more than it fills.
    lines_ = (rows_left_ * (row_bytes_ / kLine + 2) + cells - 1) / cells;
  }
  FA_INLINE void fetch() {
    for (int64_t i = 0; i < lines_ && rows_left_; ++i) {
      Simd::prefetch_far(line_);
      line_ += kLine;
      if (line_ < row_ + row_bytes_) continue;
      --rows_left_;
      row_ += stride_;
      start_row();
    }
  }

 private:
  static constexpr int64_t kLine = 64;

  FA_INLINE void start_row() { line_ = row_ - reinterpret_cast<uintptr_t>(row_) % kLine; }

  const char* row_ = nullptr;
  const char* line_ = nullptr;  // the next one
  int64_t row_bytes_ = 0;
  int64_t stride_ = 0;
  int64_t rows_left_ = 0;
  int64_t lines_ = 0;  // at a time
};

// The same of two tensors.
class Upcoming {
 public:
  void set(const Rows& first, const Rows& second, int64_t count, int64_t cells) {
    first_.set(first, count, cells);
    second_.set(second, count, cells);
  }
  FA_INLINE void fetch() {
    first_.fetch();
    second_.fetch();
  }

 private:
  UpcomingRows first_, second_;
};

// Rows that lie further apart share few sets of the cache: they are copied before they are transposed.
constexpr int64_t kNear = 1024;  // bytes

// Operand layouts of a tile of rows, in units of Math:
//   rows        unit k of row m holds columns k * kPerUnit ...           left operand, summed over columns
//   transposed  panels of kPanel rows: [panel][unit k][row in panel]     right operand, summed over columns
//   stacked     unit (m, j) holds column j of rows m * kPerUnit ...      right operand, summed over rows
// Where a number has several parts, a row, a panel and a stacked row hold all first parts, then all second ones ...
// `padded` rows are written; those from `count` on are zero.
template <class Math>
struct Pack;

template <>
struct Pack<Float32Math> {
  static int64_t units(int64_t columns) { return columns; }
  static int64_t row_stride(int64_t columns) { return tile_stride(columns); }
  static int64_t stacked_stride(int64_t columns) { return tile_stride(columns); }

  static void rows(const Rows& src, int64_t count, int64_t padded, float* dst) {
    const int64_t stride = row_stride(src.columns);
    for (int64_t m = 0; m < count; ++m) load_row(src.dtype, src.row(m), src.columns, dst + m * stride);
    for (int64_t m = count; m < padded; ++m)
      std::memset(dst + m * stride, 0, round_up(src.columns, kLanes) * sizeof(float));
  }
  static void stacked(const Rows& src, int64_t count, int64_t padded, float* dst) { rows(src, count, padded, dst); }
  static void clear_stacked(float* tile, int64_t stride, int64_t row, int64_t column) {
    tile[row * stride + column] = 0.0f;
  }
  static void transposed(const Rows& src, int64_t count, int64_t padded, float* scratch, float* dst) {
    const bool whole = src.dtype == DType::kFloat32 && src.columns % kLanes == 0 && src.stride <= kNear;
    for (int64_t m = 0; m < padded; m += kLanes) {
      uint32_t* panel = reinterpret_cast<uint32_t*>(dst + m / kPanel * kPanel * src.columns + m % kPanel);
      if (whole && m + kLanes <= count) {
        transpose_block(reinterpret_cast<const uint32_t*>(src.row(m)), src.stride / 4, src.columns, panel);
        continue;
      }
      rows(src.from(m), src.left(count, m), kLanes, scratch);
      transpose_block(reinterpret_cast<const uint32_t*>(scratch), row_stride(src.columns), src.columns, panel);
    }
  }
  // kLanes rows of `units` units into a panel; the source is padded to whole vectors, the panel is not.
  static void transpose_block(const uint32_t* src, int64_t stride, int64_t units, uint32_t* panel) {
    int64_t k = 0;
    for (; k + kLanes <= units; k += kLanes) Simd::transpose(src + k, stride, panel + k * kPanel, kPanel);
    if (k < units) {
      uint32_t rest[kLanes * kLanes];
      Simd::transpose(src + k, stride, rest, kLanes);
      for (int64_t j = 0; k + j < units; ++j)
        std::memcpy(panel + (k + j) * kPanel, rest + j * kLanes, kLanes * sizeof(uint32_t));
    }
  }
};

// Units of two bfloat16; a row is filled up to whole multiples of kWhole units with zeros.
template <class S, int64_t kWhole>
struct PackPairs {
  static int64_t units(int64_t columns) { return round_up(columns, 2 * kWhole) / 2; }
  static int64_t row_stride(int64_t columns) { return tile_stride(units(columns)); }
  static int64_t stacked_stride(int64_t columns) { return tile_stride(columns); }

  static void rows(const Rows& src, int64_t count, int64_t padded, uint32_t* dst) {
    const int64_t stride = row_stride(src.columns), bytes = src.columns * 2;
    for (int64_t m = 0; m < padded; ++m) {
      char* row = reinterpret_cast<char*>(dst + m * stride);
      const int64_t used = m < count ? bytes : 0;
      if (used) std::memcpy(row, src.row(m), used);
      std::memset(row + used, 0, round_up(units(src.columns), kLanes) * 4 - used);
    }
  }
  // Columns up to a whole multiple of kWhole, too.
  static void stacked(const Rows& src, int64_t count, int64_t padded, uint32_t* dst) {
    const int64_t stride = stacked_stride(src.columns);
    for (int64_t m = 0; m < padded; m += 2) {
      uint32_t* row = dst + m / 2 * stride;
      for (int64_t k = 0; k < round_up(src.columns, kWhole); k += kLanes) {
        const typename S::U low = load(src, m, count, k), high = load(src, m + 1, count, k);
        S::u_store(row + k, S::u_or(low, S::template u_shift_left<16>(high)));
      }
    }
  }
  static void both(const Rows& src, int64_t count, int64_t padded, uint32_t* in_rows, uint32_t* in_stack) {
    rows(src, count, padded, in_rows);
    stacked(src, count, padded, in_stack);
  }
  static void clear_stacked(uint32_t* tile, int64_t stride, int64_t row, int64_t column) {
    reinterpret_cast<uint16_t*>(tile + row / 2 * stride + column)[row % 2] = 0;
  }
  static void transposed(const Rows& src, int64_t count, int64_t padded, uint32_t* scratch, uint32_t* dst) {
    const int64_t steps = units(src.columns);
    const bool whole = src.columns == 2 * steps && steps % kLanes == 0 && src.stride % 4 == 0 && src.stride <= kNear;
    for (int64_t m = 0; m < padded; m += kLanes) {
      uint32_t* panel = dst + m / kPanel * kPanel * steps + m % kPanel;
      if (whole && m + kLanes <= count) {
        Pack<Float32Math>::transpose_block(reinterpret_cast<const uint32_t*>(src.row(m)), src.stride / 4, steps, panel);
        continue;
      }
      rows(src.from(m), src.left(count, m), kLanes, scratch);
      Pack<Float32Math>::transpose_block(scratch, row_stride(src.columns), steps, panel);
    }
  }

 private:
  static typename S::U load(const Rows& src, int64_t m, int64_t count, int64_t k) {
    if (m >= count || k >= src.columns) return S::u_set1(0);
    const uint16_t* row = reinterpret_cast<const uint16_t*>(src.row(m)) + k;
    if (k + kLanes <= src.columns) return S::u_load16(row);
    uint16_t rest[kLanes] = {};
    std::memcpy(rest, row, (src.columns - k) * 2);
    return S::u_load16(rest);
  }
};

template <class S>
struct Pack<Bf16MathOf<S>> : PackPairs<S, 1> {};

// Rows of a stacked tile that hold NaN or infinities. A product takes 0 * NaN for NaN, so that they would reach sums to
// which they contribute nothing: careful passes put zeros in their place and then add what contributes.
struct NonFinite {
  Rows source;
  int64_t count;
  float* row;  // scratch of one row
  bool found[kMostTile];

  template <class Math>
  void clear(const Rows& rows, int64_t rows_count, typename Math::Unit* tile, float* scratch) {
    source = rows;
    count = rows_count;
    row = scratch;
    const int64_t stride = Pack<Math>::stacked_stride(rows.columns);
    for (int64_t m = 0; m < count; ++m) {
      load_row(source.dtype, source.row(m), source.columns, row);
      found[m] = false;
      for (int64_t d = 0; d < source.columns; ++d) {
        if (is_finite(row[d])) continue;
        found[m] = true;
        Pack<Math>::clear_stacked(tile, stride, m, d);
      }
    }
  }
  // For each such row m: visit(m, add), where add(weight, sum) adds weight * row m to `sum`.
  template <class Visit>
  void each(const Visit& visit) const {
    for (int64_t m = 0; m < count; ++m) {
      if (!found[m]) continue;
      load_row(source.dtype, source.row(m), source.columns, row);
      visit(m, [&](float weight, float* sum) {
        for (int64_t d = 0; d < source.columns; ++d)
          if (!is_finite(row[d])) sum[d] += weight * row[d];
      });
    }
  }
};

}  // namespace
}  // namespace flash_attention
