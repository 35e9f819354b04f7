// Activations rounded to int8 per group of 32, as the products with quantised matrices read them.
#pragma once

#include <algorithm>
#include <vector>

#include "elementwise.hpp"
#include "linear.hpp"
#include "simd.hpp"

namespace grouped {

constexpr int GROUP = 32;

// How often each number stands side by side. With AVX2 once per lane where nibbles meet them, because what multiplies them can
// read a whole vector from memory, and to fill one with a single number would take an instruction more.
#if defined(NG_AVX2)
constexpr int copies(Kind kind) { return kind == Kind::Q8_0 ? 1 : LANES; }
#else
constexpr int copies(Kind) { return 1; }
#endif
#if defined(NG_AVX2) || defined(NG_AVX512)
constexpr int MOST_ROWS = 6;  // rows that share one reading of a matrix: as many as the registers hold sums of
#else
constexpr int MOST_ROWS = 4;
#endif

// A group of one row is a record of 32-bit words, each `copies` times: quants, 4 int8 in a word; the scale; what corrects the
// sums, as `correction` says.
constexpr int WORDS = GROUP / 4;
constexpr int record(Kind kind) { return (WORDS + 2) * copies(kind); }

// Word `at` of a record in every lane.
template <Kind KIND>
inline i32v word(const int32_t* record, int at) {
    if (copies(KIND) == LANES) return load_as<i32v>(record + at * LANES);
    return record[at] - i32v{};
}
template <Kind KIND>
inline f32v number(const int32_t* record, int at) {
    i32v bits = word<KIND>(record, at);
    f32v out;
    std::memcpy(&out, &bits, sizeof out);
    return out;
}

// What each kind adds up besides products of quants: minimums times the sum of what they meet (Q4_1), or what its quants are
// too large by, times that sum (Q4_0; Q8_0 where its bytes are read as unsigned).
template <Kind KIND>
inline int32_t correction(float scale, int32_t sum) {
    if (KIND != Kind::Q4_1) return sum * (KIND == Kind::Q4_0 ? 8 : 128);
    float offset = scale * float(sum);
    int32_t bits;
    std::memcpy(&bits, &offset, 4);
    return bits;
}

template <Kind KIND>
inline void round_group(const float* x, int32_t* to) {
    constexpr int V = GROUP / LANES, COPIES = copies(KIND);
    i32v most{};  // magnitudes compared as bits, where NaN is the largest and so reaches the scale
    for (int i = 0; i < V; i++) {
        i32v size = load_as<i32v>(x + i * LANES) & 0x7fffffff;
        most = size > most ? size : most;
    }
    int32_t bits = largest(most);
    float top;
    std::memcpy(&top, &bits, 4);
    float inverse = top > 0 ? 127.0f / std::max(top, 1e-30f) : 0.0f, scale = top / 127.0f;
    i32v q[V], total{};
    for (int i = 0; i < V; i++) {
        q[i] = __builtin_convertvector(round_even(load(x + i * LANES) * inverse), i32v);
        total += q[i];
    }
    int32_t all[WORDS + 2];
    int8_t quants[GROUP];
    narrow_8(q, quants);
    std::memcpy(all, quants, GROUP);
    std::memcpy(all + WORDS, &scale, 4);
    all[WORDS + 1] = correction<KIND>(scale, sum(total));
    for (int w = 0; w < WORDS + 2; w++) std::fill_n(to + w * COPIES, COPIES, all[w]);
}

// Rounded rows, in tiles of at most MOST_ROWS: the records [groups][rows of the tile].
class Activations {
  public:
    template <Kind KIND>
    void round(Pool& pool, const float* x, int64_t rows, int64_t ins) {
        rows_ = rows, tiles_ = (rows + MOST_ROWS - 1) / MOST_ROWS;
        int64_t groups = ins / GROUP;
        size_t size = size_t(rows * groups * record(KIND)) + LINE / sizeof(int32_t);
        if (memory_.size() < size) memory_.resize(size);
        data_ = memory_.data();
        while (reinterpret_cast<uintptr_t>(data_) % LINE) data_++;
        int64_t of_a_tile = tiles_ ? rows_ / tiles_ : 0;
        each_row(pool, tiles_ * groups, COST * GROUP * of_a_tile, [&](int64_t at) {
            int64_t begin = first(at / groups), end = first(at / groups + 1), g = at % groups;
            int32_t* to = data_ + (begin * groups + (end - begin) * g) * record(KIND);
            for (int64_t r = begin; r < end; r++, to += record(KIND)) round_group<KIND>(x + r * ins + g * GROUP, to);
        });
    }

    int64_t tiles() const { return tiles_; }
    int64_t first(int64_t tile) const { return rows_ * tile / tiles_; }
    // The records of a tile, `size` words for each of its rows.
    const int32_t* tile(int64_t number, int64_t size) const { return data_ + first(number) * size; }

  private:
    static constexpr size_t LINE = 64;  // bytes
    static constexpr int64_t COST = 4;  // of rounding an element, counted in those of a norm
    std::vector<int32_t> memory_;
    int32_t* data_ = nullptr;
    int64_t rows_ = 0, tiles_ = 0;
};

}  // namespace grouped
