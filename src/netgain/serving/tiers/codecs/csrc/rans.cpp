#include "rans.hpp"

#include <algorithm>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

constexpr int kLanes = 32, kScaleBits = 12, kSymbols = 64;
constexpr uint32_t kMask = (1u << kScaleBits) - 1, kStart = 1u << 16;

#if defined(__AVX2__)
struct Expansions {  // by mask of eight lanes: which of the next words each lane takes
    alignas(32) uint32_t of[256][8];
    Expansions() {
        for (uint32_t mask = 0; mask < 256; mask++)
            for (uint32_t lane = 0, next = 0; lane < 8; lane++) of[mask][lane] = mask >> lane & 1 ? next++ : 0;
    }
};
const Expansions kExpansions;

// One step of all lanes; reads at most 32 words at p, which must be there. Returns where to read on.
const uint16_t* decode_group(uint32_t* states, const uint8_t* kinds, const uint32_t* slots, const uint16_t* p, uint8_t* out) {
    const __m256i mask = _mm256_set1_epi32(int(kMask)), sign = _mm256_set1_epi32(INT32_MIN);
    const __m256i least = _mm256_xor_si256(_mm256_set1_epi32(int(kStart)), sign);
    alignas(32) uint32_t entries[8];
    for (int lane = 0; lane < kLanes; lane += 8) {
        __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(states + lane));
        const __m256i kind = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(kinds + lane)));
        const __m256i at = _mm256_or_si256(_mm256_slli_epi32(kind, kScaleBits), _mm256_and_si256(x, mask));
        const __m256i entry = _mm256_i32gather_epi32(reinterpret_cast<const int*>(slots), at, 4);
        x = _mm256_add_epi32(
            _mm256_mullo_epi32(_mm256_and_si256(_mm256_srli_epi32(entry, 8), mask), _mm256_srli_epi32(x, kScaleBits)),
            _mm256_srli_epi32(entry, 20));
        const __m256i low = _mm256_cmpgt_epi32(least, _mm256_xor_si256(x, sign));
        const unsigned lanes = unsigned(_mm256_movemask_ps(_mm256_castsi256_ps(low)));
        const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        const __m256i taken = _mm256_permutevar8x32_epi32(
            words, _mm256_load_si256(reinterpret_cast<const __m256i*>(kExpansions.of[lanes])));
        x = _mm256_blendv_epi8(x, _mm256_or_si256(_mm256_slli_epi32(x, 16), taken), low);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(states + lane), x);
        p += __builtin_popcount(lanes);
        _mm256_store_si256(reinterpret_cast<__m256i*>(entries), entry);
        for (int i = 0; i < 8; i++) out[lane + i] = uint8_t(entries[i]);
    }
    return p;
}
#else
const uint16_t* decode_group(uint32_t* states, const uint8_t* kinds, const uint32_t* slots, const uint16_t* p, uint8_t* out) {
    for (int lane = 0; lane < kLanes; lane++) {
        uint32_t x = states[lane], entry = slots[(uint32_t(kinds[lane]) << kScaleBits) + (x & kMask)];
        out[lane] = uint8_t(entry);
        x = (entry >> 8 & kMask) * (x >> kScaleBits) + (entry >> 20);
        const bool low = x < kStart;
        states[lane] = low ? x << 16 | *p : x;
        p += low;
    }
    return p;
}
#endif

}  // namespace

bool entropy_decode(uint32_t* states, const uint16_t* words, int64_t count, const uint8_t* kinds, int64_t n,
                    const uint32_t* slots, uint8_t* out) {
    const uint16_t *p = words, *end = words + count;
    int64_t i = 0;
    while (i + kLanes <= n && end - p >= kLanes + 8) {  // a group of eight lanes loads eight words, needed or not
        p = decode_group(states, kinds + i, slots, p, out + i);
        i += kLanes;
    }
    for (; i < n; i++) {
        uint32_t& x = states[i % kLanes];
        uint32_t entry = slots[(uint32_t(kinds[i]) << kScaleBits) + (x & kMask)];
        out[i] = uint8_t(entry);
        x = (entry >> 8 & kMask) * (x >> kScaleBits) + (entry >> 20);
        if (x < kStart) {
            if (p == end) return false;
            x = x << 16 | *p++;
        }
    }
    return p == end && std::all_of(states, states + kLanes, [](uint32_t x) { return x == kStart; });
}

uint16_t* entropy_encode(const uint8_t* symbols, const uint8_t* kinds, int64_t n, const uint16_t* frequency,
                         const uint16_t* start, uint32_t* states, uint16_t* end) {
    std::fill(states, states + kLanes, kStart);
    for (int64_t i = n - 1; i >= 0; i--) {
        uint32_t& x = states[i % kLanes];
        const size_t at = size_t(kinds[i]) * kSymbols + symbols[i];
        const uint32_t often = frequency[at];
        if (x >= uint64_t(often) << (32 - kScaleBits)) {
            *--end = uint16_t(x);
            x >>= 16;
        }
        x = (x / often << kScaleBits) + x % often + start[at];
    }
    return end;
}
