// Bfloat16 matrices against activations rounded to bfloat16, with the arithmetic of VDPBF16PS on every processor: each sum takes
// the inputs in pairs, of a pair the odd one first, then the even; a product is exact, each addition rounds once to float32 (to
// nearest, ties to even); what is smaller than the smallest normal number counts as zero, whether it comes in or goes out.
#pragma once

#include <vector>

#include "dense.hpp"
#include "elementwise.hpp"

namespace bf16 {

// A pair in a 32-bit word, the even input in the low half: what the instruction takes. Where there is none, each lane does
// in float64 what it does: product and sum need no more digits than that has for their rounding to float32 to be the one
// of the exact sum (S. Figueroa, When is double rounding innocuous?, 1995).
struct Words {
    using Number = uint32_t;
    static constexpr int INPUTS = 2, TURNS = 1, SIZE = 4;
    static int64_t pitch(int64_t ins) { return ins / 2; }

    static void put(uint32_t* row, int64_t pair, uint32_t even, uint32_t odd) { row[pair] = odd | even >> 16; }
    static u32v weights(const char* from, int) { return load_as<u32v>(from); }
    static u32v input(const uint32_t* row, int64_t k, int) { return row[k / 2] - u32v{}; }
#if defined(NG_AVX512) && defined(__AVX512BF16__)
    static f32v add(f32v total, u32v w, u32v x) { return (f32v)_mm512_dpbf16_ps((__m512)total, (__m512bh)w, (__m512bh)x); }
#else
    static f32v add(f32v total, u32v w, u32v x) {
        for (int lane = 0; lane < LANES; lane++)
            total[lane] = fused(fused(total[lane], w[lane] & 0xffff0000u, x[lane] & 0xffff0000u), w[lane] << 16, x[lane] << 16);
        return total;
    }

  private:
    static double number(uint32_t bits) {
        float out;
        if (!(bits & 0x7f800000)) bits &= 0x80000000;
        std::memcpy(&out, &bits, 4);
        return double(out);
    }
    static float fused(float total, uint32_t w, uint32_t x) {
        double sum = double(total) + number(w) * number(x);
        // Too small is what is so after rounding to 24 digits, which this times the smallest normal number is not.
        constexpr double LEAST = 0x1p-126 * (1 - 0x1p-25);
        return std::fabs(sum) < LEAST ? std::copysign(0.0f, float(sum)) : float(sum);
    }
#endif
};

// A pair as two float32 for fused multiply-adds, which leave small numbers out only as long as the processor is told to.
struct OddFirst {
    using Number = float;
    static constexpr int INPUTS = 2, TURNS = 2, SIZE = 4;
    static int64_t pitch(int64_t ins) { return ins; }

    static void put(float* row, int64_t pair, uint32_t even, uint32_t odd) {
        std::memcpy(row + 2 * pair, &even, 4);
        std::memcpy(row + 2 * pair + 1, &odd, 4);
    }
    static f32v weights(const char* from, int turn) { return dense::Floats<Kind::BF16>::weights(from, 1 - turn); }
    static f32v input(const float* row, int64_t k, int turn) { return splat(row[k + 1 - turn]); }
    static f32v add(f32v total, f32v w, f32v x) { return fma(w, x, total); }
};

#if (defined(NG_AVX512) && !defined(__AVX512BF16__)) || defined(NG_AVX2)
using Numbers = OddFirst;

// While it lives, this thread's float32 instructions take numbers below the smallest normal one for zero and give none.
class SmallIsZero {
  public:
    SmallIsZero() { _mm_setcsr(before_ | 0x8040); }  // flush to zero, denormals are zero
    ~SmallIsZero() { _mm_setcsr(before_); }
    SmallIsZero(const SmallIsZero&) = delete;

  private:
    unsigned before_ = _mm_getcsr();
};
#else
using Numbers = Words;
struct SmallIsZero {
    SmallIsZero() {}  // nothing to tell: the instruction heeds no mode, float64 reaches far lower
};
#endif

// Rounded to nearest, ties to even; NaN stays NaN; the upper half of a float32.
inline uint32_t rounded(float x) {
    uint32_t bits, size;
    std::memcpy(&bits, &x, 4);
    size = bits & 0x7fffffff;
    uint32_t near = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u;
    uint32_t most = size > 0x7f800000 ? (bits | 0x400000) & 0xffff0000u : near;
    return size < 0x800000 ? bits & 0x80000000u : most;
}

// Rounded rows, each padded with a zero to an even number of inputs.
class Activations {
  public:
    void round(Pool& pool, const float* x, int64_t rows, int64_t ins) {
        rows_ = rows, ins_ = (ins + 1) / 2 * 2;
        if (memory_.size() < size_t(rows * pitch())) memory_.resize(size_t(rows * pitch()));
        each_row(pool, rows, ins, [&](int64_t r) {
            const float* from = x + r * ins;
            Numbers::Number* row = memory_.data() + r * pitch();
            for (int64_t pair = 0; pair < ins / 2; pair++)
                Numbers::put(row, pair, rounded(from[2 * pair]), rounded(from[2 * pair + 1]));
            if (ins % 2) Numbers::put(row, ins / 2, rounded(from[ins - 1]), 0);
        });
    }

    int64_t rows() const { return rows_; }
    int64_t ins() const { return ins_; }
    const Numbers::Number* data() const { return memory_.data(); }

  private:
    int64_t pitch() const { return Numbers::pitch(ins_); }

    std::vector<Numbers::Number> memory_;
    int64_t rows_ = 0, ins_ = 0;
};

// Not inlined, so that nothing of it is computed before the processor is told how, or after.
__attribute__((noinline)) inline void told_panels(const Matrix& w, const Activations& x, int64_t begin, int64_t end, float* out,
                                                  int64_t pitch) {
    dense::panels<Numbers>(w, x.data(), x.ins(), x.rows(), begin, end, out, pitch);
}

inline void panels(const Matrix& w, const Activations& x, int64_t begin, int64_t end, float* out, int64_t pitch) {
    SmallIsZero held;
    told_panels(w, x, begin, end, out, pitch);
}

}  // namespace bf16
