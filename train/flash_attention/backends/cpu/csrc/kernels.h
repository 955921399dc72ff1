// What a target offers to the target-independent part: tasks that threads may run in any order (forward) or in the given
// order (backward), each with a scratch memory of its own.
#pragma once

#include <cstdint>
#include <cstring>

#include "problem.h"

namespace flash_attention {

constexpr int64_t kMostLanes = 16;  // of the widest vectors

// Query rows per task of the forward pass, at most. They share the packing of a key tile.
constexpr int64_t kForwardRows = 1024;

// How far a key tile that tasks share is packed.
enum PackState : int32_t { kUnpacked, kBeingPacked, kPacked, kPackedTiny };  // the last holds tiny numbers

struct ForwardPlan {
  Problem problem;
  ForwardOutputs outputs;
  int64_t rows;   // query rows per task; results do not depend on it
  int64_t tiles;  // per head
  // Rows with a block mask visit few key tiles of many. Tasks of few rows then share what the first of them has packed: all
  // key tiles of each key/value head from first_group on. Null where each task packs its own.
  char* packed = nullptr;
  int64_t packed_bytes = 0;     // of a key tile
  int32_t* packing = nullptr;   // (key/value heads of the wave, key tiles): a PackState of each
  int64_t first_group = 0;      // of batch * kv_heads
};

// The query rows [tile * plan.rows, ...) of one head.
struct ForwardTask {
  const ForwardPlan* plan;
  int64_t batch_head;
  int64_t tile;
};

// Finds the task that the thread goes on with, for its first rows to be fetched. False when there is none left.
template <class Task>
struct NextTask {
  bool (*find)(const void* state, Task& task);
  const void* state;
};

// Rows of a head that backward_rows takes at a time.
constexpr int64_t kSliceRows = 256;

constexpr int64_t kMostTile = 128;  // query rows, or keys, of the largest tile of any target

// One task: one key tile of one key/value head, over all query tiles that see it. Tasks of the same head add to the same
// rows of d_query: the turn of each query tile is the one behind the key tile that added to it last, and they do so in order.
struct BackwardPlan {
  Problem problem;
  BackwardInputs inputs;
  BackwardOutputs outputs;
  int64_t tile;  // Kernels::tile
  int64_t query_tiles;  // per head
  int64_t key_tiles;
  int64_t first_group;  // the current wave: key/value heads [first_group, first_group + groups) of batch * kv_heads
  int64_t groups;
  float score_gradient_scale;  // factor of the stored score gradients; d_key takes `factor_left` at the end
  float factor_left;
  float* shift;           // (batch, heads, seq_q): minus the logsumexp, in the domain of the scores
  float* rest;            // (batch, heads, seq_q): what `shift` lacks, an exponent of 2
  float* delta;           // (batch, heads, seq_q): (rowsum(d_output * output) - d_logsumexp) * score_gradient_scale
  double* d_sinks;        // (batch, heads, slices of rows): shares of the gradient of a sink, or null
  float* d_query;         // float32 sums of the wave, in rows of d_query_width
  int64_t d_query_width;  // head_dim in whole vectors
  Layout d_query_layout;
  int64_t d_query_first;  // element of d_query_layout that d_query points to
  float* d_bias;          // float32 sums of a bias with a row axis, or null
  float* d_bias_columns;  // (batch, heads, seq_k) sums over rows of a bias without one, or null
  // Waits until it is the turn `turn` at place `index` of (heads of the wave, query_tiles), 0 at first; false when another
  // thread failed.
  bool (*wait)(const BackwardPlan& plan, int64_t index, int32_t turn);
  void (*set_turn)(const BackwardPlan& plan, int64_t index, int32_t turn);
  void* state;  // of wait
  // The pass is done again with care, at its cost, when a task asks for it: NaN and infinities then do not reach rows and
  // keys out of whose sight they lie, and numbers that bfloat16 instructions flush are kept. Otherwise the same bits.
  bool careful;
  int32_t* care;  // set by ask_for_care

  // Whether the block mask leaves something to a pair of a query tile and a key tile, which has as many keys as that rows.
  FA_INLINE bool visits(int64_t batch, int64_t head, int64_t query_tile, int64_t key_tile) const {
    const int64_t row = query_tile * tile, key = key_tile * tile;
    return problem.blocks.sees_some(batch, head, row, Band::min(row + tile, problem.seq_q), key,
                                    Band::min(key + tile, problem.seq_k));
  }
  // Behind the last of the key tiles [first, end) that it leaves to a query tile; `first` where there is none.
  FA_INLINE int64_t visits_end(int64_t batch, int64_t head, int64_t query_tile, int64_t first, int64_t end) const {
    while (end > first && !visits(batch, head, query_tile, end - 1)) --end;
    return end;
  }
  // Whether it leaves none of them.
  FA_INLINE bool visits_none(int64_t batch, int64_t head, int64_t query_tile, int64_t first, int64_t end) const {
    while (first < end && !visits(batch, head, query_tile, first)) ++first;
    return first >= end;
  }
  FA_INLINE void ask_for_care() const { __atomic_store_n(care, 1, __ATOMIC_RELAXED); }
  // Sums of a row of query head `head`.
  FA_INLINE float* d_query_row(int64_t batch, int64_t head, int64_t row) const {
    return d_query + (d_query_layout.at(batch, head, row) - d_query_first);
  }
  FA_INLINE void clear_d_query(int64_t batch, int64_t head, int64_t first, int64_t count) const {
    for (int64_t row = first; row < first + count; ++row)
      std::memset(d_query_row(batch, head, row), 0, d_query_width * sizeof(float));
  }
};

// Keys of a chunk of the decoding pass; the grid starts at key 0. Results depend on it (order of the sums), so it is the
// same everywhere.
constexpr int64_t kDecodeKeys = 512;

// The keys that the queries of one batch element see.
struct DecodeCache {
  Band band;
  int64_t first_key;      // the keys before it are hidden
  const int32_t* blocks;  // the block of each block_size keys; null where all keys follow each other
  int64_t first_chunk;
  int64_t last_chunk;  // the first one that is not seen
  int64_t first_part;  // of the batch element, see DecodePlan::part

  FA_INLINE int64_t lo(int64_t row) const { return Band::max(band.lo(row), first_key); }
};

// Few queries against many keys. One task: all query heads of a key/value head against one chunk. Its partial results
// are merged in the order of the keys when all are there.
struct DecodePlan {
  Problem problem;  // seq_k and the band are those of the caches
  ForwardOutputs outputs;
  const DecodeCache* caches;  // (batch)
  int64_t block_size;
  int64_t key_block;    // elements from one block of keys to the next
  int64_t value_block;
  float* parts;         // for each row value_dim in whole cache lines: sums; then the running maximum, and the total
  int64_t part_width;

  FA_INLINE float* part(int64_t batch, int64_t kv_head, int64_t chunk) const {
    const DecodeCache& cache = caches[batch];
    const int64_t index = cache.first_part + (chunk - cache.first_chunk) * problem.kv_heads + kv_head;
    return parts + index * problem.group() * problem.seq_q * part_width;
  }
};

// A key tile of key/value head `group` of batch * kv_heads.
struct BackwardTask {
  const BackwardPlan* plan;
  int64_t group;
  int64_t key_tile;
};

struct Kernels {
  const char* isa;
  // Query rows and keys per tile of the backward pass. Results depend on it (order of the sums), not on the number of threads.
  int64_t tile;
  int64_t (*forward_scratch)(const ForwardPlan& plan);
  // Bytes of a packed key tile, a multiple of 64.
  int64_t (*packed_bytes)(const ForwardPlan& plan);
  void (*forward_task)(const ForwardTask& task, const NextTask<ForwardTask>& next, char* scratch);
  int64_t (*backward_scratch)(const BackwardPlan& plan);
  // Fills shift, delta and d_sinks for a slice: `count` rows from row `first` of batch_head on.
  void (*backward_rows)(const BackwardPlan& plan, int64_t batch_head, int64_t first, int64_t count, char* scratch);
  void (*backward_task)(const BackwardTask& task, const NextTask<BackwardTask>& next, char* scratch);
  // Converts `count` rows of the wave's d_query sums from row `first` of batch_head on. backward_task does it for rows that
  // see a key.
  void (*finish_d_query)(const BackwardPlan& plan, int64_t batch_head, int64_t first, int64_t count);
  int64_t (*decode_scratch)(const DecodePlan& plan);
  void (*decode_task)(const DecodePlan& plan, int64_t batch, int64_t kv_head, int64_t chunk, char* scratch);
  void (*decode_merge)(const DecodePlan& plan, int64_t batch, int64_t head);
  // Converts `count` values to float32, and fills up whole vectors, of at most kMostLanes, with zeros.
  void (*widen)(DType dtype, const void* src, int64_t count, float* dst);
  // Converts `count` float32 values.
  void (*convert)(const float* src, float factor, int64_t count, DType dtype, void* dst);
  // So many multiplications and additions as products of tensors of that dtype do them, but in registers alone.
  void (*multiply_adds)(DType dtype, int64_t operations);
};

extern const Kernels* const kAmxKernels;  // null where not compiled in
extern const Kernels* const kAvx512Bf16Kernels;
extern const Kernels* const kAvx512Kernels;
extern const Kernels* const kAvx2Kernels;
extern const Kernels* const kNeonKernels;
extern const Kernels* const kScalarKernels;

}  // namespace flash_attention
