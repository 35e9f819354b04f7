// Q4_0, Q4_1 and Q8_0 matrices against activations rounded to int8 per group of 32: integer sums within a group are exact, and
// groups are added in order without fused operations, so every instruction set (and plain torch) gives the same bits.
#pragma once

#include <algorithm>
#include <vector>

#include "linear.hpp"
#include "simd.hpp"

namespace grouped {

constexpr int GROUP = 32;
constexpr int WIDTH = LANES;                // outputs in a panel
constexpr int STEP = LANES * 4;             // bytes of one vector: 4 inputs of each output
constexpr int HALVES = LANES * 2;           // bytes of one float16 per output
constexpr int BYTES_Q4_0 = 4 * STEP + HALVES;      // nibbles, scales
constexpr int BYTES_Q4_1 = 4 * STEP + 2 * HALVES;  // nibbles, scales, minimums
constexpr int BYTES_Q8_0 = 8 * STEP + HALVES;      // bytes, scales

constexpr int group_bytes(Kind kind) { return kind == Kind::Q4_0 ? BYTES_Q4_0 : kind == Kind::Q4_1 ? BYTES_Q4_1 : BYTES_Q8_0; }

// Within a group, vector s holds for each output the 4 inputs from 4s on (Q8_0), or from 8s on in the low nibbles and
// from 8s + 4 on in the high ones (Q4_0 and Q4_1).
inline void pack(const uint8_t* source, int64_t outs, int64_t ins, Kind kind, void* packed) {
    int64_t groups = ins / GROUP;
    int halves = kind == Kind::Q4_1 ? 2 : 1, bytes = 2 * halves + (kind == Kind::Q8_0 ? GROUP : GROUP / 2);
    for (int64_t o = 0; o < outs; o++)
        for (int64_t g = 0; g < groups; g++) {
            const uint8_t* block = source + (o * groups + g) * bytes;
            uint8_t* to = static_cast<uint8_t*>(packed) + (o / WIDTH * groups + g) * group_bytes(kind);
            int lane = int(o % WIDTH);
            if (kind != Kind::Q8_0) {
                const uint8_t* nibbles = block + 2 * halves;
                auto quant = [&](int k) { return k < 16 ? nibbles[k] & 15 : nibbles[k - 16] >> 4; };
                for (int s = 0; s < 4; s++)
                    for (int i = 0; i < 4; i++)
                        to[s * STEP + lane * 4 + i] = uint8_t(quant(8 * s + i) | quant(8 * s + 4 + i) << 4);
                for (int h = 0; h < halves; h++) std::memcpy(to + 4 * STEP + h * HALVES + lane * 2, block + 2 * h, 2);
            } else {
                for (int k = 0; k < GROUP; k++) to[k / 4 * STEP + lane * 4 + k % 4] = block[2 + k];
                std::memcpy(to + 8 * STEP + lane * 2, block, 2);
            }
        }
}

inline void embed_row(const Matrix& w, int64_t o, float* out) {
    int64_t groups = w.ins / GROUP;
    int lane = int(o % WIDTH);
    for (int64_t g = 0; g < groups; g++, out += GROUP) {
        const uint8_t* from = static_cast<const uint8_t*>(w.data) + (o / WIDTH * groups + g) * group_bytes(w.kind);
        auto half = [&](int at) {
            uint16_t h;
            std::memcpy(&h, from + at + lane * 2, 2);
            return widen_half(h);
        };
        if (w.kind != Kind::Q8_0) {
            bool offset = w.kind == Kind::Q4_1;
            float scale = half(4 * STEP), minimum = offset ? half(4 * STEP + HALVES) : 0.0f;
            for (int k = 0; k < GROUP; k++) {
                int byte = from[k / 8 * STEP + lane * 4 + k % 4], quant = k % 8 < 4 ? byte & 15 : byte >> 4;
                out[k] = offset ? scale * float(quant) + minimum : scale * float(quant - 8);
            }
        } else {
            float scale = half(8 * STEP);
            for (int k = 0; k < GROUP; k++) out[k] = scale * float(int8_t(from[k / 4 * STEP + lane * 4 + k % 4]));
        }
    }
}

// Rounded activations of some rows: quants [rows][ins], per group: the scale, scale * sum of quants, sum of quants.
struct Activations {
    std::vector<int8_t> quants;
    std::vector<float> scales, offsets;
    std::vector<int32_t> sums;

    void resize(int64_t rows, int64_t ins) {
        size_t groups = size_t(rows * ins / GROUP);
        if (scales.size() < groups) {
            quants.resize(groups * GROUP);
            scales.resize(groups);
            offsets.resize(groups);
            sums.resize(groups);
        }
    }

    // Rounds group g (counted over all rows).
    void round(const float* x, int64_t g) {
        constexpr int V = GROUP / LANES;
        x += g * GROUP;
        i32v most{};  // magnitudes compared as bits, where NaN is the largest and so reaches the scale
        for (int i = 0; i < V; i++) {
            i32v size = load_as<i32v>(x + i * LANES) & 0x7fffffff;
            most = size > most ? size : most;
        }
        int32_t bits = largest(most);
        float top;
        std::memcpy(&top, &bits, 4);
        float inverse = top > 0 ? 127.0f / std::max(top, 1e-30f) : 0.0f;
        i32v q[V], total{};
        for (int i = 0; i < V; i++) {
            q[i] = __builtin_convertvector(round_even(load(x + i * LANES) * inverse), i32v);
            total += q[i];
        }
        narrow_8(q, quants.data() + g * GROUP);
        scales[size_t(g)] = top / 127.0f;
        sums[size_t(g)] = sum(total);
        offsets[size_t(g)] = scales[size_t(g)] * float(sums[size_t(g)]);
    }
};

inline int32_t four(const int8_t* q) {
    int32_t bits;
    std::memcpy(&bits, q, 4);
    return bits;
}

#if !defined(NG_AVX512) && !defined(NG_AVX2)
// total += per output, 4 products of bytes.
inline void dot4(i32v& total, const int8_t* w, const int8_t* x) {
#if defined(__ARM_FEATURE_DOTPROD)
    int8x16_t input = vreinterpretq_s8_s32(vdupq_n_s32(four(x)));
    for (int i = 0; i < LANES / 4; i++) {
        int32x4_t part;
        std::memcpy(&part, reinterpret_cast<char*>(&total) + i * 16, 16);
        part = vdotq_s32(part, vld1q_s8(w + i * 16), input);
        std::memcpy(reinterpret_cast<char*>(&total) + i * 16, &part, 16);
    }
#else
    for (int o = 0; o < LANES; o++)
        for (int i = 0; i < 4; i++) total[o] += int32_t(w[o * 4 + i]) * x[i];
#endif
}
#endif

// Sums over one group of quants * activations for every output of a panel and each of ROWS rows.
template <int ROWS>
inline void sums_nibbles(const uint8_t* w, const int8_t* x, int64_t ins, i32v* out) {
#if defined(NG_AVX512)
    const __m512i low = _mm512_set1_epi8(15);
    __m512i total[ROWS];
    for (int r = 0; r < ROWS; r++) total[r] = _mm512_setzero_si512();
    for (int s = 0; s < 4; s++) {
        __m512i both = _mm512_loadu_si512(w + s * STEP);
        __m512i a = _mm512_and_si512(both, low), b = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
        for (int r = 0; r < ROWS; r++) {
            __m512i xa = _mm512_set1_epi32(four(x + r * ins + 8 * s)), xb = _mm512_set1_epi32(four(x + r * ins + 8 * s + 4));
#if defined(__AVX512VNNI__)
            total[r] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(total[r], a, xa), b, xb);
#else
            // 8 sums of at most 2 * 15 * 127 fit in 16 bits.
            total[r] = _mm512_add_epi16(total[r], _mm512_maddubs_epi16(a, xa));
            total[r] = _mm512_add_epi16(total[r], _mm512_maddubs_epi16(b, xb));
#endif
            NG_HERE(total[r]);
        }
    }
    for (int r = 0; r < ROWS; r++) {
#if !defined(__AVX512VNNI__)
        total[r] = _mm512_madd_epi16(total[r], _mm512_set1_epi16(1));
#endif
        out[r] = (i32v)total[r];
    }
#elif defined(NG_AVX2)
    const __m256i low = _mm256_set1_epi8(15);
    __m256i total[ROWS];
    for (int r = 0; r < ROWS; r++) total[r] = _mm256_setzero_si256();
    for (int s = 0; s < 4; s++) {
        __m256i both = _mm256_loadu_si256((const __m256i*)(w + s * STEP));
        __m256i a = _mm256_and_si256(both, low), b = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
        for (int r = 0; r < ROWS; r++) {
            __m256i xa = _mm256_set1_epi32(four(x + r * ins + 8 * s)), xb = _mm256_set1_epi32(four(x + r * ins + 8 * s + 4));
#if defined(__AVXVNNI__)
            total[r] = _mm256_dpbusd_avx_epi32(_mm256_dpbusd_avx_epi32(total[r], a, xa), b, xb);
#else
            // 8 sums of at most 2 * 15 * 127 fit in 16 bits.
            total[r] = _mm256_add_epi16(total[r], _mm256_maddubs_epi16(a, xa));
            total[r] = _mm256_add_epi16(total[r], _mm256_maddubs_epi16(b, xb));
#endif
            NG_HERE(total[r]);
        }
    }
    for (int r = 0; r < ROWS; r++) {
#if !defined(__AVXVNNI__)
        total[r] = _mm256_madd_epi16(total[r], _mm256_set1_epi16(1));
#endif
        out[r] = (i32v)total[r];
    }
#else
    for (int r = 0; r < ROWS; r++) out[r] = i32v{};
    for (int s = 0; s < 4; s++) {
        int8_t a[STEP], b[STEP];
        for (int i = 0; i < STEP; i++) a[i] = int8_t(w[s * STEP + i] & 15), b[i] = int8_t(w[s * STEP + i] >> 4);
        for (int r = 0; r < ROWS; r++) {
            dot4(out[r], a, x + r * ins + 8 * s);
            dot4(out[r], b, x + r * ins + 8 * s + 4);
        }
    }
#endif
}

template <int ROWS>
inline void sums_q8_0(const uint8_t* w, const int8_t* x, int64_t ins, const int32_t* row_sums, int64_t groups, i32v* out) {
#if defined(NG_AVX512) && defined(__AVX512VNNI__)
    // The unsigned operand is the weight plus 128, taken off again through the sum of the activations.
    const __m512i flip = _mm512_set1_epi8(-128);
    __m512i total[ROWS];
    for (int r = 0; r < ROWS; r++) total[r] = _mm512_set1_epi32(-128 * row_sums[r * groups]);
    for (int s = 0; s < 8; s++) {
        __m512i a = _mm512_xor_si512(_mm512_loadu_si512(w + s * STEP), flip);
        for (int r = 0; r < ROWS; r++)
            total[r] = _mm512_dpbusd_epi32(total[r], a, _mm512_set1_epi32(four(x + r * ins + 4 * s)));
    }
    for (int r = 0; r < ROWS; r++) out[r] = (i32v)total[r];
#elif defined(NG_AVX512)
    const __m512i ones = _mm512_set1_epi16(1);
    __m512i total[ROWS];
    for (int r = 0; r < ROWS; r++) total[r] = _mm512_setzero_si512();
    for (int s = 0; s < 8; s++) {
        __m512i a = _mm512_loadu_si512(w + s * STEP), size = _mm512_abs_epi8(a);
        __mmask64 negative = _mm512_movepi8_mask(a);
        for (int r = 0; r < ROWS; r++) {
            __m512i input = _mm512_set1_epi32(four(x + r * ins + 4 * s));
            input = _mm512_mask_sub_epi8(input, negative, _mm512_setzero_si512(), input);
            total[r] = _mm512_add_epi32(total[r], _mm512_madd_epi16(_mm512_maddubs_epi16(size, input), ones));
            NG_HERE(total[r]);
        }
    }
    for (int r = 0; r < ROWS; r++) out[r] = (i32v)total[r];
#elif defined(NG_AVX2)
    // |weight| * (activation with the weight's sign): at most 2 * 128 * 127, which fits in 16 bits.
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i total[ROWS];
    for (int r = 0; r < ROWS; r++) total[r] = _mm256_setzero_si256();
    for (int s = 0; s < 8; s++) {
        __m256i a = _mm256_loadu_si256((const __m256i*)(w + s * STEP)), size = _mm256_abs_epi8(a);
        for (int r = 0; r < ROWS; r++) {
            __m256i input = _mm256_sign_epi8(_mm256_set1_epi32(four(x + r * ins + 4 * s)), a);
            total[r] = _mm256_add_epi32(total[r], _mm256_madd_epi16(_mm256_maddubs_epi16(size, input), ones));
            NG_HERE(total[r]);
        }
    }
    for (int r = 0; r < ROWS; r++) out[r] = (i32v)total[r];
#else
    for (int r = 0; r < ROWS; r++) {
        out[r] = i32v{};
        for (int s = 0; s < 8; s++) dot4(out[r], reinterpret_cast<const int8_t*>(w) + s * STEP, x + r * ins + 4 * s);
    }
#endif
    (void)row_sums, (void)groups;
}

template <Kind KIND, int ROWS>
inline void tile(const uint8_t* panel, const Activations& x, int64_t row, int64_t ins, float* out, int64_t pitch,
                 int64_t outs, int64_t first) {
    constexpr bool NIBBLES = KIND != Kind::Q8_0, MINIMUMS = KIND == Kind::Q4_1;
    int64_t groups = ins / GROUP;
    const int8_t* quants = x.quants.data() + row * ins;
    const float *scales = x.scales.data() + row * groups, *offsets = x.offsets.data() + row * groups;
    const int32_t* row_sums = x.sums.data() + row * groups;
    f32v total[ROWS] = {};
    for (int64_t g = 0; g < groups; g++, panel += group_bytes(KIND)) {
        i32v sums[ROWS];
        if (NIBBLES)
            sums_nibbles<ROWS>(panel, quants + g * GROUP, ins, sums);
        else
            sums_q8_0<ROWS>(panel, quants + g * GROUP, ins, row_sums + g, groups, sums);
        const uint16_t* halves = reinterpret_cast<const uint16_t*>(panel + (NIBBLES ? 4 : 8) * STEP);
        f32v scale = widen_halves(halves), minimum = MINIMUMS ? widen_halves(halves + LANES) : f32v{};
        for (int r = 0; r < ROWS; r++) {
            if (KIND == Kind::Q4_0) sums[r] -= 8 * row_sums[r * groups + g];  // its numbers are nibbles less 8
            f32v term = (scale * scales[r * groups + g]) * __builtin_convertvector(sums[r], f32v);
            if (MINIMUMS) term = term + minimum * offsets[r * groups + g];
            total[r] = total[r] + term;
        }
    }
    int64_t valid = std::min<int64_t>(outs - first, LANES);
    for (int r = 0; r < ROWS; r++) std::memcpy(out + r * pitch + first, &total[r], size_t(valid) * 4);
}

template <Kind KIND>
inline void panels(const Matrix& w, const Activations& x, int64_t rows, int64_t begin, int64_t end, float* out,
                   int64_t pitch) {
    int64_t stride = w.ins / GROUP * group_bytes(w.kind);
    for (int64_t p = begin; p < end; p++) {
        const uint8_t* panel = static_cast<const uint8_t*>(w.data) + p * stride;
        int64_t r = 0, first = p * WIDTH;
        for (; rows - r >= 4; r += 4) tile<KIND, 4>(panel, x, r, w.ins, out + r * pitch, pitch, w.outs, first);
        switch (rows - r) {
            case 3: tile<KIND, 3>(panel, x, r, w.ins, out + r * pitch, pitch, w.outs, first); break;
            case 2: tile<KIND, 2>(panel, x, r, w.ins, out + r * pitch, pitch, w.outs, first); break;
            case 1: tile<KIND, 1>(panel, x, r, w.ins, out + r * pitch, pitch, w.outs, first); break;
        }
    }
}

}  // namespace grouped
