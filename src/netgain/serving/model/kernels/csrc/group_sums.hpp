// Sums over one group of quants * activations, for every output of a panel and each of ROWS rows: exact, so that each
// instruction set may take them in its own order.
#pragma once

#include "activations.hpp"

namespace grouped {

constexpr int STEP = LANES * 4;  // bytes of one vector

#if !defined(NG_AVX512) && !defined(NG_AVX2)
// total += per output, 4 products of bytes.
inline void dot4(i32v& total, const int8_t* w, int32_t word) {
#if defined(__ARM_FEATURE_DOTPROD)
    int8x16_t input = vreinterpretq_s8_s32(vdupq_n_s32(word));
    for (int i = 0; i < LANES / 4; i++) {
        int32x4_t part;
        std::memcpy(&part, reinterpret_cast<char*>(&total) + i * 16, 16);
        part = vdotq_s32(part, vld1q_s8(w + i * 16), input);
        std::memcpy(reinterpret_cast<char*>(&total) + i * 16, &part, 16);
    }
#else
    int8_t x[4];
    std::memcpy(x, &word, 4);
    for (int o = 0; o < LANES; o++)
        for (int i = 0; i < 4; i++) total[o] += int32_t(w[o * 4 + i]) * x[i];
#endif
}
#endif

// `w`: vector s holds for each output 4 nibbles to be multiplied by word 2s, and above them 4 for word 2s + 1. `x`: the
// records of the rows.
template <Kind KIND, int ROWS>
inline void sums_nibbles(const uint8_t* w, const int32_t* x, i32v* out) {
    constexpr int SIZE = record(KIND);
#if defined(NG_AVX512)
    const __m512i low = _mm512_set1_epi8(15);
    __m512i total[ROWS];
    for (int r = 0; r < ROWS; r++) total[r] = _mm512_setzero_si512();
    for (int s = 0; s < 4; s++) {
        __m512i both = _mm512_loadu_si512(w + s * STEP);
        __m512i a = _mm512_and_si512(both, low), b = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
        for (int r = 0; r < ROWS; r++) {
            __m512i xa = (__m512i)word<KIND>(x + r * SIZE, 2 * s), xb = (__m512i)word<KIND>(x + r * SIZE, 2 * s + 1);
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
            __m256i xa = (__m256i)word<KIND>(x + r * SIZE, 2 * s), xb = (__m256i)word<KIND>(x + r * SIZE, 2 * s + 1);
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
            dot4(out[r], a, x[r * SIZE + 2 * s]);
            dot4(out[r], b, x[r * SIZE + 2 * s + 1]);
        }
    }
#endif
}

// `w`: vector s holds for each output the 4 bytes to be multiplied by word s.
template <int ROWS>
inline void sums_q8_0(const uint8_t* w, const int32_t* x, i32v* out) {
    // Without a product of unsigned and signed that adds up in 32 bits: |weight| * (activation with the weight's sign), at
    // most 2 * 128 * 127, which fits in 16 bits.
    constexpr Kind KIND = Kind::Q8_0;
    constexpr int SIZE = record(KIND);
#if defined(NG_AVX512)
    __m512i total[ROWS];
#if defined(__AVX512VNNI__)
    // The unsigned operand is the weight plus 128, taken off again through the sum of the activations.
    const __m512i flip = _mm512_set1_epi8(-128);
    for (int r = 0; r < ROWS; r++) total[r] = (__m512i)-word<KIND>(x + r * SIZE, WORDS + 1);
    for (int s = 0; s < WORDS; s++) {
        __m512i a = _mm512_xor_si512(_mm512_loadu_si512(w + s * STEP), flip);
        for (int r = 0; r < ROWS; r++) total[r] = _mm512_dpbusd_epi32(total[r], a, (__m512i)word<KIND>(x + r * SIZE, s));
    }
#else
    const __m512i ones = _mm512_set1_epi16(1);
    for (int r = 0; r < ROWS; r++) total[r] = _mm512_setzero_si512();
    for (int s = 0; s < WORDS; s++) {
        __m512i a = _mm512_loadu_si512(w + s * STEP), size = _mm512_abs_epi8(a);
        __mmask64 negative = _mm512_movepi8_mask(a);
        for (int r = 0; r < ROWS; r++) {
            __m512i input = (__m512i)word<KIND>(x + r * SIZE, s);
            input = _mm512_mask_sub_epi8(input, negative, _mm512_setzero_si512(), input);
            total[r] = _mm512_add_epi32(total[r], _mm512_madd_epi16(_mm512_maddubs_epi16(size, input), ones));
            NG_HERE(total[r]);
        }
    }
#endif
    for (int r = 0; r < ROWS; r++) out[r] = (i32v)total[r];
#elif defined(NG_AVX2)
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i total[ROWS];
    for (int r = 0; r < ROWS; r++) total[r] = _mm256_setzero_si256();
    for (int s = 0; s < WORDS; s++) {
        __m256i a = _mm256_loadu_si256((const __m256i*)(w + s * STEP)), size = _mm256_abs_epi8(a);
        for (int r = 0; r < ROWS; r++) {
            __m256i input = _mm256_sign_epi8((__m256i)word<KIND>(x + r * SIZE, s), a);
            total[r] = _mm256_add_epi32(total[r], _mm256_madd_epi16(_mm256_maddubs_epi16(size, input), ones));
            NG_HERE(total[r]);
        }
    }
    for (int r = 0; r < ROWS; r++) out[r] = (i32v)total[r];
#else
    for (int r = 0; r < ROWS; r++) {
        out[r] = i32v{};
        for (int s = 0; s < WORDS; s++) dot4(out[r], reinterpret_cast<const int8_t*>(w) + s * STEP, x[r * SIZE + s]);
    }
#endif
}

}  // namespace grouped
