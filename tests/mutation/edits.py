"""Edits of the native kernel, each a mistake that its tests should notice: see native.py."""

from __future__ import annotations

from tests.mutation.edit import BF16, Edit
from tests.mutation.edits_tails import TAILS

_BAND = [
    Edit("problem.h", "position >= 0 ? position / block", "position > 0 ? position / block"),
    Edit("problem.h", "-((-position + block - 1) / block)", "-((-position + block) / block)"),
    Edit("problem.h", "-((-position + block - 1) / block)", "-(-position / block)"),
    Edit("problem.h", "result = prev_blocks >= kAllBlocks", "result = prev_blocks > kAllBlocks"),
    Edit("problem.h", "(block_of(position) - prev_blocks) * block", "(block_of(position) - prev_blocks + 1) * block"),
    Edit("problem.h", "max(0, (block_of", "max(1, (block_of"),
    Edit("problem.h", "if (left >= 0) result", "if (left > 0) result"),
    Edit("problem.h", "max(result, position - left)", "max(result, position - left + 1)"),
    Edit("problem.h", "max(result, position - left)", "position - left"),
    Edit("problem.h", "return min(result, seq_k);", "return result;"),
    Edit("problem.h", "next_blocks < kAllBlocks", "next_blocks <= kAllBlocks"),
    Edit("problem.h", "+ next_blocks + 1) * block", "+ next_blocks) * block"),
    Edit("problem.h", "min(result, position + 1)", "min(result, position)"),
    Edit("problem.h", "if (right >= 0) result", "if (right > 0) result"),
    Edit("problem.h", "position + right + 1", "position + right"),
    Edit("problem.h", "return max(result, prefix);", "return result;"),
    Edit("problem.h", "constexpr int64_t kAllBlocks = 65536", "constexpr int64_t kAllBlocks = 65537"),
]

_VISIBILITY = [
    Edit("scores-inl.h", "(m < rows ? m : rows - 1)", "m"),
    Edit("scores-inl.h", "return hi[padded - 1]", "return hi[count - 1]"),
    Edit("scores-inl.h", "key - first > count ? count", "key - first > kKeyTile ? kKeyTile"),
    Edit("scores-inl.h", "key < first ? 0 :", "key <= first ? 0 :"),
    Edit("scores-inl.h", "if (key < q.lo[m] || key >= q.hi[m])", "if (key >= q.hi[m])"),
    Edit("scores-inl.h", "if (key < q.lo[m] || key >= q.hi[m])", "if (key < q.lo[m])"),
    Edit("scores-inl.h", "return !sides.masked ||", "return sides.masked ||"),
    Edit("scores-inl.h", ">> (column % 32) & 1)", ">> (column % 31) & 1)"),
    Edit("scores-inl.h", "if (first >= q.hi[end] ||", "if (first > q.hi[end] ||"),
    Edit("scores-inl.h", "if (first >= q.hi[end] ||", "if (first + 1 >= q.hi[end] ||"),
    Edit("scores-inl.h", "|| last <= q.lo[strip])", "|| last < q.lo[strip])"),
    Edit("scores-inl.h", "|| last <= q.lo[strip])", "|| last <= q.lo[end])"),
    Edit("scores-inl.h", "inside = end < q.count &&", "inside ="),
    Edit("scores-inl.h", "first >= q.lo[end] && last <= q.hi[strip]", "first >= q.lo[strip] && last <= q.hi[strip]"),
    Edit("scores-inl.h", "first >= q.lo[end] && last <= q.hi[strip]", "first >= q.lo[end] && last <= q.hi[end]"),
    Edit("scores-inl.h", "first >= q.lo[end] && last <= q.hi[strip]", "first > q.lo[end] && last < q.hi[strip]"),
    Edit("scores-inl.h", "if (inside && !sides.masked)", "if (inside)"),
    Edit("scores-inl.h", "if (strip + m >= q.count) continue;", "", BF16),
    Edit("scores-inl.h", "if (hi <= 0 || lo >= kPanel || hi <= lo)", "if (hi < 0 || lo >= kPanel || hi <= lo)"),
    Edit("scores-inl.h", "if (hi <= 0 || lo >= kPanel || hi <= lo)", "if (hi <= 0 || lo > kPanel || hi <= lo)"),
    Edit("scores-inl.h", "if (hi <= 0 || lo >= kPanel || hi <= lo)", "if (hi <= 0 || lo >= kPanel)"),
    Edit("scores-inl.h", "      all = 0;\n      continue;", "      continue;"),
    Edit("scores-inl.h", "if (lo > 0) bits[m] &= kAll << lo;", "if (lo > 1) bits[m] &= kAll << lo;"),
    Edit("scores-inl.h", "kAll << lo;", "kAll << (lo + 1);"),
    Edit("scores-inl.h", "if (hi < kPanel) bits", "if (hi < kPanel - 1) bits"),
    Edit("scores-inl.h", "~(~uint32_t{0} << hi)", "~(~uint32_t{1} << hi)"),
    Edit("scores-inl.h", "+ panel / 32] >> (panel % 32);", "+ panel / 32];"),
    Edit("scores-inl.h", "all &= bits[m];", ""),
    Edit("scores-inl.h", "all == kAll ? Visibility::kFull : Visibility::kPartial", "Visibility::kPartial"),
]

_SIDES = [
    Edit(
        "scores-inl.h",
        "for (int64_t m = 0; m < q.count; ++m) {\n      const uint8_t* row = base",
        "for (int64_t m = 0; m + 1 < q.count; ++m) {\n      const uint8_t* row = base",
    ),
    Edit("scores-inl.h", "p.mask.at(batch, head, q.first + m) + k.first", "p.mask.at(batch, head, q.first + m)"),
    Edit("scores-inl.h", "any != 0;\n  }\n\n  void load_rest", "true;\n  }\n\n  void load_rest"),
    Edit("scores-inl.h", "any |= words[w] = masked", "any = words[w] = masked"),
    Edit("scores-inl.h", "if (from + 32 <= count)", "if (from + 32 < count)"),
    Edit("scores-inl.h", "if (from + 32 <= count)", "if (from <= count)"),
    Edit("scores-inl.h", "if (from >= count) return 0;", "if (from >= count) return ~0u;"),
    Edit("scores-inl.h", "std::memset(rest, 1, sizeof(rest));", "std::memset(rest, 0, sizeof(rest));"),
    Edit("scores-inl.h", "std::memcpy(rest, row + from, count - from);", "std::memcpy(rest, row + from, 32);"),
    Edit("scores-inl.h", "position = q.first + p.band.offset;", "position = q.first;"),
    Edit("scores-inl.h", "words = (k.count + 31) / 32", "words = k.count / 32"),
    Edit("scores-inl.h", "philox_keep_words(d, k.first / 32,", "philox_keep_words(d, k.index * 3,"),
    Edit("scores-inl.h", "static_cast<uint32_t>(q.first + m),", "static_cast<uint32_t>(m),"),
    Edit("scores-inl.h", "d.head_offset + static_cast<uint32_t>(head)", "d.head_offset"),
    Edit("scores-inl.h", "d.batch_offset + static_cast<uint32_t>(batch)", "static_cast<uint32_t>(batch)"),
    Edit("scores-inl.h", "bytes = (p.seq_k + 7) / 8", "bytes = p.seq_k / 8"),
    Edit("scores-inl.h", "* bytes + k.first / 8;", "* bytes;"),
    Edit("scores-inl.h", "i < 4 && 32 * w + 8 * i < k.count", "i < 4"),
    Edit("scores-inl.h", "i < 4 && 32 * w + 8 * i < k.count", "i < 4 && 32 * w + 8 * i + 8 <= k.count"),
    Edit("scores-inl.h", "for (int64_t w = words; w < kWords; ++w) row[w] = 0;", ""),
    Edit("scores-inl.h", "std::memset(keep + q.count * kWords, 0", "std::memset(keep + q.padded * kWords, 0"),
    Edit("scores-inl.h", "bias_stride = same ? 0 : kBiasStride;", "bias_stride = kBiasStride;"),
    Edit(
        "scores-inl.h",
        "p.bias.at(batch, head, q.first + m) + k.first) * size",
        "p.bias.at(batch, head, q.first + m)) * size",
    ),
    Edit("scores-inl.h", "std::memset(row + filled, 0, (kKeyTile - filled) * sizeof(float));", ""),
    Edit("scores-inl.h", "static_cast<float>(n * kLanes - m)", "static_cast<float>(n * kLanes + m)"),
    Edit("scores-inl.h", "biased ? p.scale : p.scale / kLn2", "p.scale / kLn2"),
    Edit("scores-inl.h", "factor == 0.0f ? kLn2 :", ""),
    Edit("philox-inl.h", "4 * first_word + call", "4 * first_word"),
    Edit("philox-inl.h", "call + lane < 4 * count; lane += 4", "call + lane < 4 * count + 4; lane += 4"),
    Edit("philox-inl.h", "round < 10", "round < 9"),
    Edit("target-inl.h", "p.dtype == DType::kBFloat16 && !bias_gradient", "p.dtype == DType::kBFloat16", BF16),
]

_FORWARD = [
    Edit("forward-inl.h", "kHeadroom = 10.0f", "kHeadroom = 200.0f"),
    Edit(
        "forward-inl.h",
        "lo >= hi || lo >= k.first + k.count || hi <= k.first",
        "lo >= k.first + k.count || hi <= k.first",
    ),
    Edit(
        "forward-inl.h",
        "lo >= k.first + k.count || hi <= k.first) continue",
        "lo > k.first + k.count || hi <= k.first) continue",
    ),
    Edit(
        "forward-inl.h",
        "lo >= k.first + k.count || hi <= k.first) continue",
        "lo >= k.first + k.count || hi <= k.first + 1) continue",
    ),
    Edit(
        "forward-inl.h",
        "start = k.column(tile.band.lo(first)) / kPanel * kPanel;",
        "start = k.column(tile.band.lo(first + count - 1)) / kPanel * kPanel;",
    ),
    Edit(
        "forward-inl.h",
        "seen = k.column(tile.band.hi(first + count - 1)) - start",
        "seen = k.column(tile.band.hi(first)) - start",
    ),
    Edit("forward-inl.h", "tile.value + start / Math::kPerUnit * tile.value_stride);", "tile.value);"),
    Edit(
        "forward-inl.h", "k.column(tile.q->union_lo()) / kPanel * kPanel; panel", "k.column(tile.q->union_lo()); panel"
    ),
    Edit(
        "forward-inl.h",
        "k.column(tile.q->lo[strip]) / Math::kPerUnit",
        "k.column(tile.q->lo[strip + kRows - 1]) / Math::kPerUnit",
    ),
    Edit(
        "forward-inl.h",
        "k.column(tile.q->hi[strip + kRows - 1]) + Math::kPerUnit - 1)",
        "k.column(tile.q->hi[strip]) + Math::kPerUnit - 1)",
    ),
    Edit("forward-inl.h", "+ Math::kPerUnit - 1) / Math::kPerUnit - from", ") / Math::kPerUnit - from", BF16),
    Edit("forward-inl.h", "case Visibility::kHidden: cell.clear(); break;", "case Visibility::kHidden: break;"),
    Edit("forward-inl.h", "if (excess > kHeadroom)", "if (excess > 0)"),
    Edit("forward-inl.h", "Math::scale(tile.probabilities(row, 0), panel, factor);", ""),
    Edit("forward-inl.h", "m < count ? FLT_MAX : 0.0f", "m < count ? FLT_MAX : -FLT_MAX"),
    Edit("forward-inl.h", "unset() || !run_below<true>", "!run_below<true>"),
    Edit("forward-inl.h", "== FLT_MAX || tile.careful", "== FLT_MAX"),
    Edit("forward-inl.h", "t * kKeyTile < hi; ++t)", "(t + 1) * kKeyTile < hi; ++t)"),
    Edit("forward-inl.h", "int64_t t = lo / kKeyTile; lo < hi && t", "int64_t t = lo / kKeyTile; t"),
    Edit("forward-inl.h", "float factor = total == 0.0f ? 0.0f :", "float factor ="),
    Edit("forward-inl.h", "total == 0.0f ? -kInfinity : natural", "natural"),
    Edit("forward-inl.h", "count - from < kQueryRows ? count - from : kQueryRows", "kQueryRows"),
    Edit("forward-inl.h", "return finite.all();", "return true;"),
    Edit("forward-inl.h", "Tiny<Simd>::any(keys, seen) ||", "", BF16),
    Edit("forward-inl.h", "tile.wild_first = start;", "tile.wild_first = 0;"),
    Edit(
        "forward-inl.h",
        (
            "if (kKeep) t[m][n] = Simd::zero_unless(keep[m * kWords] >> (keep_from + n * kLanes), "
            "t[m][n]);\n      }\n      Simd::store(sums + m * kLanes, sum);"
        ),
        (
            "if (kKeep) t[m][n] = Simd::zero_unless(keep[m * kWords] >> (keep_from + n * kLanes), "
            "t[m][n]);\n        if (kKeep) sum = Simd::add(sum, Simd::zero_unless(~(keep[m * kWords] >> "
            "(keep_from + n * kLanes)), t[m][n]));\n      }\n      Simd::store(sums + m * kLanes, sum);"
        ),
    ),
    Edit("forward-inl.h", "head / p.group();\n  bool packed", "head % p.kv_heads;\n  bool packed"),
]

_BACKWARD = [
    Edit("backward-inl.h", "if (first == last) first = last = 0;", "", BF16),
    Edit("backward-inl.h", "if (first == last) first = last = 0;", ""),
    Edit("backward-inl.h", "q.hi[first] <= from", "q.hi[first] < from"),
    Edit("backward-inl.h", "q.hi[first] <= from", "q.hi[first] <= from + 1"),
    Edit("backward-inl.h", "q.hi[first] <= from", "q.hi[first] <= to"),
    Edit("backward-inl.h", "q.lo[last - 1] >= to)", "q.lo[last - 1] > to)"),
    Edit("backward-inl.h", "q.lo[last - 1] >= to)", "q.lo[last - 1] >= from)"),
    Edit("backward-inl.h", "first / Math::kPerUnit * Math::kPerUnit;", "first;", BF16),
    Edit("backward-inl.h", "= round_up(last, Math::kPerUnit);", "= last;", BF16),
    Edit("backward-inl.h", "from + kRows < k.first + k.count ? from + kRows : k.first + k.count", "from + kRows"),
    Edit("backward-inl.h", "int64_t first = 0, last = q.count;", "int64_t first = 0, last = q.padded;"),
    Edit(
        "backward-inl.h",
        "k.column(q.lo[strip]) / Math::kPerUnit;",
        "k.column(q.lo[strip + kRows - 1]) / Math::kPerUnit;",
    ),
    Edit(
        "backward-inl.h",
        "round_up(k.column(q.hi[strip + kRows - 1]), Math::kPerUnit)",
        "round_up(k.column(q.hi[strip]), Math::kPerUnit)",
    ),
    Edit(
        "backward-inl.h",
        "round_up(k.column(q.hi[strip + kRows - 1]), Math::kPerUnit)",
        "k.column(q.hi[strip + kRows - 1])",
        BF16,
    ),
    Edit("backward-inl.h", "const bool inside = strip < whole;", "const bool inside = strip <= whole;"),
    Edit(
        "backward-inl.h",
        "const int64_t whole = q.count / kRows * kRows;",
        "const int64_t whole = (q.count - 1) / kRows * kRows;",
    ),
    Edit("backward-inl.h", "if (whole < q.padded) std::memset(tile.edge", "if (false) std::memset(tile.edge"),
    Edit("backward-inl.h", "d_query[m * stride + d] += edge[d];", "d_query[m * stride + d] = edge[d];"),
    Edit(
        "backward-inl.h",
        "case Visibility::kHidden: tile.clear(strip, panel); break;",
        "case Visibility::kHidden: break;",
    ),
    Edit(
        "backward-inl.h",
        "case Visibility::kHidden: tile.clear(strip, panel); break;",
        "case Visibility::kHidden: break;",
        BF16,
    ),
    Edit("backward-inl.h", "if (kKeep) Simd::store(probability + at, p[m][n]);", ""),
    Edit(
        "backward-inl.h",
        (
            "        if (kBits) t = Simd::select(bits[m] >> (n * kLanes), t, Simd::set1(-kInfinity));\n        "
            "Simd::store(waiting"
        ),
        "        Simd::store(waiting",
    ),
    Edit(
        "backward-inl.h",
        "// Zero times NaN would be NaN.\n        if (kBits)",
        "if (false)",
    ),
    Edit("backward-inl.h", "gradient = Simd::zero_unless(keep, gradient);", ""),
    Edit("backward-inl.h", "p[m][n] = Simd::zero_unless(keep, p[m][n]);", ""),
    Edit("backward-inl.h", "(panel % 32 + n * kLanes);\n          gradient", "(n * kLanes);\n          gradient"),
    Edit(
        "backward-inl.h", "m < q.count ? plan.shift[row + m] : -kInfinity", "m < q.count ? plan.shift[row + m] : 0.0f"
    ),
    Edit("backward-inl.h", "m < q.count ? plan.delta[row + m] : 0.0f", "plan.delta[row + m]"),
    Edit("backward-inl.h", "(q.union_lo() - k.first) / kPanel * kPanel);", "(q.union_lo() - k.first));"),
    Edit(
        "backward-inl.h",
        "const int64_t last = k.column(q.union_hi());\n  const bool",
        "const int64_t last = k.column(q.hi[0]);\n  const bool",
    ),
    Edit("backward-inl.h", "if (lo >= k.first + k.count) break;", "if (lo + 1 >= k.first + k.count) break;"),
    Edit("backward-inl.h", "if (lo >= k.first + k.count) break;", "if (lo >= k.first + k.count) continue;"),
    Edit("backward-inl.h", "if (hi <= k.first || lo >= hi) continue;", "if (hi <= k.first + 1 || lo >= hi) continue;"),
    Edit("backward-inl.h", "if (hi <= k.first || lo >= hi) continue;", "if (hi <= k.first) continue;"),
    Edit("backward-inl.h", "std::memset(tile.d_value, 0, kKeyTile", "std::memset(tile.d_value, 0, 1 + 0 * kKeyTile"),
    Edit("backward-inl.h", "std::memset(tile.columns, 0, kKeyTile * sizeof(float));", ""),
    Edit(
        "backward-inl.h",
        "const int64_t head = kv_head * p.group() + g;",
        "const int64_t head = kv_head + g * p.kv_heads;",
    ),
    Edit("backward-inl.h", "const int64_t from = k.column(q.lo[strip]), to", "const int64_t from = 0, to"),
    Edit(
        "backward-inl.h",
        "to = k.column(q.hi[strip + kRows - 1]);\n    const float* row",
        "to = k.count;\n    const float* row",
    ),
    Edit(
        "backward-inl.h",
        "plan.factor_left, p.head_dim,\n              static_cast<char*>(plan.outputs.d_key)",
        "1.0f, p.head_dim,\n              static_cast<char*>(plan.outputs.d_key)",
    ),
    Edit("backward-inl.h", "p.dropout.scale, p.value_dim", "1.0f, p.value_dim"),
    Edit("backward-inl.h", "const bool blind = logsumexp == -kInfinity;", "const bool blind = false;"),
    Edit("backward-inl.h", "plan.delta[row + m] = blind ? 0.0f :", "plan.delta[row + m] ="),
    Edit(
        "backward-inl.h",
        "delta -= plan.inputs.d_logsumexp[lse_row + m];",
        "delta += plan.inputs.d_logsumexp[lse_row + m];",
    ),
    Edit("backward-inl.h", "if (sees(tile.q, k, tile.sides, m, column)) use(column);", "use(column);"),
    Edit("backward-inl.h", "if (sees(q, k, tile.sides, m, column))", "if (true)"),
    Edit(
        "backward-inl.h",
        "if (!finite.all()) plan.ask_for_care();\n}\n\ninline void backward_rows",
        "}\n\ninline void backward_rows",
    ),
    Edit("backward-inl.h", "if (!finite.all()) plan.ask_for_care();\n}\n\n}  // namespace", "}\n\n}  // namespace"),
    Edit(
        "backward-inl.h",
        "Tiny<Simd>::any(keys, k.count) || Tiny<Simd>::any(values, k.count)",
        "Tiny<Simd>::any(keys, k.count)",
        BF16,
    ),
    Edit("backward-inl.h", "|| Tiny<Simd>::any(d_outputs, count))", ")", BF16),
    Edit("pack-inl.h", "if (is_finite(row[d])) continue;", "continue;"),
    Edit("pack-inl.h", "if (!is_finite(row[d])) sum[d] += weight * row[d];", "sum[d] += weight * row[d];"),
    Edit("pack-inl.h", "[row % 2] = 0;", "[0] = 0;", BF16),
    Edit("pack-inl.h", "(127 - 60) << 7", "(127 - 120) << 7", BF16),
    Edit("backward-inl.h", "k.index - q.union_lo() / kKeyTile", "k.index"),
    Edit("backward-inl.h", "if (turn == 0) plan.clear_d_query(batch, head, q.first, q.count);", ""),
    Edit(
        "backward-inl.h",
        "if (turn == 0) plan.clear_d_query(batch, head, q.first, q.count);",
        "if (seen && turn == 0) plan.clear_d_query(batch, head, q.first, q.count);",
    ),
    Edit("backward-inl.h", "if (!plan.wait(plan, turn_base + index, turn)) return false;", ""),
    Edit(
        "backward-inl.h", "plan.advance(plan, turn_base + index);", "if (seen) plan.advance(plan, turn_base + index);"
    ),
    Edit(
        "backward-inl.h",
        "((group - plan.first_group) * p.group() + g) * plan.query_tiles",
        "(group - plan.first_group) * p.group() * plan.query_tiles",
    ),
    Edit("attention.cpp", "std::memory_order_acquire) != turn;", "std::memory_order_acquire) < turn - 1;"),
    Edit("attention.cpp", "for (auto& turn : turns.count) turn.store(0, std::memory_order_relaxed);", ""),
    Edit("attention.cpp", "if (blind(head / p.heads, tile)) plan", "if (false) plan"),
    Edit("attention.cpp", "return band.lo(first) >= band.hi(last);", "return band.lo(first) > band.hi(last);"),
    Edit("attention.cpp", "if (bias.by_row && bias.shared) wave = 1;", ""),
    Edit("attention.cpp", "(b.head_stride == 0 && p.heads > 1)", "false"),
    Edit("attention.cpp", "(b.batch_stride == 0 && p.batch > 1) ||", ""),
    Edit("attention.cpp", "by_row = b.row_stride != 0 || p.seq_q == 1;", "by_row = b.row_stride != 0;"),
    Edit(
        "attention.cpp",
        "&& plan.d_query_width == p.head_dim && p.query_layout.row_stride == p.head_dim",
        "&& p.query_layout.row_stride == p.head_dim",
    ),
    Edit("attention.cpp", "&& p.query_layout.row_stride == p.head_dim", ""),
    Edit(
        "attention.cpp",
        "plan.d_query_first = in_result ? 0 :",
        "plan.d_query_first = in_result && plan.first_group == 0 ? 0 :",
    ),
    Edit("attention.cpp", "std::min(wave, groups - plan.first_group)", "wave"),
    Edit("attention.cpp", "if (care && !plan.careful) {", "if (false) {"),
    Edit("attention.cpp", "    bias.clear();\n    for (plan", "    for (plan"),
    Edit("attention.cpp", "from = sums + (batch * p.heads + head) * p.seq_k", "from = sums + head * p.seq_k"),
    Edit("attention.cpp", "bias.wanted ? scale : 1.0f;", "1.0f;"),
    Edit(
        "attention.cpp", "plan.tiles = (p.seq_q + plan.rows - 1) / plan.rows;", "plan.tiles = p.seq_q / plan.rows + 1;"
    ),
    Edit("attention.cpp", "return std::min(kSliceRows, p.seq_q - slice * kSliceRows);", "return kSliceRows;"),
    Edit("attention.cpp", "* (b.batch_stride ? p.batch : 1);", ";"),
]

EDITS = _BAND + _VISIBILITY + _SIDES + _FORWARD + _BACKWARD + TAILS
