// The arithmetic of the KV codecs. Bit for bit what in_numpy.py computes: no contraction, no reassociation, rounding to even.
// Sizes were checked by the caller, and every index that comes from a payload is bounded by a mask, a table of full size or
// a comparison with the end of what may be read.
#include <cstdint>
#include <cstring>
#include <algorithm>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int64_t kGroup = 64;
constexpr float kLargest = 1e30f, kLeastStep = 1e-35f, kE4M3Most = 448.0f, kE4M3Small = 512.0f;
constexpr float kSink = 0.3f;
constexpr int kLanes = 32, kScaleBits = 12, kMost = 31, kEscape = 63, kSymbols = 64;
constexpr uint32_t kMask = (1u << kScaleBits) - 1, kStart = 1u << 16;

uint32_t bits_of(float x) { uint32_t u; std::memcpy(&u, &x, 4); return u; }
float float_of(uint32_t u) { float x; std::memcpy(&x, &u, 4); return x; }

struct Bf16 {
    using Stored = uint16_t;
    static float get(Stored s) { return float_of(uint32_t(s) << 16); }
    static Stored put(float x) {
        uint32_t u = bits_of(x);
        return Stored((u + 0x7FFF + ((u >> 16) & 1)) >> 16);
    }
};

struct F32 {
    using Stored = float;
    static float get(Stored s) { return s; }
    static Stored put(float x) { return x; }
};

float widened(uint16_t s) { return Bf16::get(s); }

uint16_t rounded_down(float x) {
    uint32_t u = bits_of(x);
    return uint16_t((u >> 16) + ((u >> 31) && (u & 0xFFFF) ? 1 : 0));
}

uint16_t rounded_up(float x) { return uint16_t((bits_of(x) + 0xFFFF) >> 16); }

int32_t ordered(uint32_t u) { return int32_t(u) ^ (int32_t(u) >> 31 & 0x7FFFFFFF); }

// Least and largest of n <= 64 numbers, by their bits as integers, which keeps vectors; false unless all are KV.
bool limits(const float* x, int64_t n, float& low, float& high) {
    int32_t least = INT32_MAX, most = INT32_MIN, magnitude = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = bits_of(x[i]);
        int32_t key = ordered(u);
        least = std::min(least, key);
        most = std::max(most, key);
        magnitude = std::max(magnitude, int32_t(u & 0x7FFFFFFF));
    }
    low = float_of(uint32_t(ordered(uint32_t(least)))) + 0.0f;
    high = float_of(uint32_t(ordered(uint32_t(most)))) + 0.0f;
    return magnitude <= int32_t(bits_of(kLargest));
}

template <class T>
bool encode_row(const typename T::Stored* in, int64_t row, int bits, uint16_t* parameters, uint8_t* codes) {
    const float most = float((1 << bits) - 1);
    float x[kGroup];
    uint8_t q[kGroup + 1];
    for (int64_t at = 0; at < row; at += kGroup) {
        int64_t n = std::min(kGroup, row - at);
        for (int64_t i = 0; i < n; i++) x[i] = T::get(in[at + i]);
        float low, high;
        if (!limits(x, n, low, high)) return false;
        uint16_t least = rounded_down(low), step = rounded_up((high - widened(least)) / most);
        *parameters++ = least;
        *parameters++ = step;
        float base = widened(least), width = widened(step);
        float inverse = width >= kLeastStep ? 1.0f / width : 0.0f;
        for (int64_t i = 0; i < n; i++) {
            float v = __builtin_nearbyintf((x[i] - base) * inverse);
            v = v < 0.0f ? 0.0f : v;
            v = v > most ? most : v;
            q[i] = uint8_t(int32_t(v));
        }
        if (bits == 8) {
            std::memcpy(codes, q, size_t(n));
            codes += n;
        } else {
            q[n] = 0;
            for (int64_t i = 0; i < (n + 1) / 2; i++) codes[i] = uint8_t(q[2 * i] | q[2 * i + 1] << 4);
            codes += (n + 1) / 2;
        }
    }
    return true;
}

template <class T>
void decode_row(const uint16_t* parameters, const uint8_t* codes, int64_t row, int bits, typename T::Stored* out) {
    uint8_t q[kGroup];
    for (int64_t at = 0; at < row; at += kGroup) {
        int64_t n = std::min(kGroup, row - at);
        float base = widened(parameters[0]), width = widened(parameters[1]);
        parameters += 2;
        if (bits == 8) {
            std::memcpy(q, codes, size_t(n));
            codes += n;
        } else {
            for (int64_t i = 0; i < n / 2; i++) {
                q[2 * i] = codes[i] & 15;
                q[2 * i + 1] = codes[i] >> 4;
            }
            if (n % 2) q[n - 1] = codes[n / 2] & 15;
            codes += (n + 1) / 2;
        }
        for (int64_t i = 0; i < n; i++) out[at + i] = T::put(float(q[i]) * width + base);
    }
}

template <class T>
bool encode_e4m3_row(const typename T::Stored* in, int64_t row, uint16_t* scale, uint8_t* codes) {
    int32_t magnitude = 0;
    for (int64_t i = 0; i < row; i++) magnitude = std::max(magnitude, int32_t(bits_of(T::get(in[i])) & 0x7FFFFFFF));
    if (magnitude > int32_t(bits_of(kLargest))) return false;
    *scale = rounded_up(float_of(uint32_t(magnitude)) / kE4M3Most);
    float width = widened(*scale), inverse = width >= kLeastStep ? 1.0f / width : 0.0f;
    for (int64_t i = 0; i < row; i++) {
        float y = T::get(in[i]) * inverse;
        uint32_t u = bits_of(y), m = u & 0x7FFFFFFF;
        uint32_t normal = ((m + 0x7FFFF + ((m >> 20) & 1)) >> 20) - (120u << 3);
        uint32_t small = uint32_t(int32_t(__builtin_nearbyintf(float_of(m) * kE4M3Small)));
        uint32_t code = m < (121u << 23) ? small : normal;
        codes[i] = uint8_t(std::min(code, 0x7Eu) | (u >> 24 & 0x80));
    }
    return true;
}

template <class T>
void decode_e4m3_row(uint16_t scale, const uint8_t* codes, int64_t row, typename T::Stored* out) {
    const float width = widened(scale);
    for (int64_t i = 0; i < row; i++) {
        uint32_t code = codes[i], magnitude = code & 0x7F;
        float normal = float_of((magnitude << 20) + (120u << 23));
        float small = float(int32_t(magnitude)) * (1.0f / kE4M3Small);
        float value = magnitude < 8 ? small : normal;
        value = magnitude == 0x7F ? 0.0f : value;
        out[i] = T::put(float_of(bits_of(value) | (code & 0x80) << 24) * width);
    }
}

// What the arrays of tables.py say about the layers at hand: [layers, 2, channels], and by_anchor [layers, 2].
struct Planes {
    int64_t layers, heads, dim, tokens;
    const uint8_t* by_anchor;
    const float *centre, *first, *others;  // of a bin: its middle, its width for the first token and for the others
};

uint8_t symbol_of(float x, float base, float inverse) {
    float bin = __builtin_nearbyintf((x - base) * inverse);
    return bin >= -float(kMost) && bin <= float(kMost) ? uint8_t(int32_t(bin) + kMost) : uint8_t(kEscape);
}

// Which tokens are attention sinks; see bins.py.
template <class T>
std::vector<uint8_t> sinks_of(const typename T::Stored* in, const Planes& p) {
    const int64_t values = p.heads * p.dim * p.tokens;
    std::vector<int64_t> little(size_t(p.tokens));
    std::vector<float> most(size_t(p.tokens));
    for (int64_t layer = 0; layer < p.layers; layer++)
        for (int64_t head = 0; head < p.heads; head++) {
            const auto* v = in + (2 * layer + 1) * values + head * p.dim * p.tokens;
            float all = 0.0f;
            for (int64_t t = 0; t < p.tokens; t++) {
                int32_t magnitude = 0;
                for (int64_t d = 0; d < p.dim; d++)
                    magnitude = std::max(magnitude, int32_t(bits_of(T::get(v[t * p.dim + d])) & 0x7FFFFFFF));
                most[size_t(t)] = float_of(uint32_t(magnitude));
                all = std::max(all, most[size_t(t)]);
            }
            for (int64_t t = 0; t < p.tokens; t++) little[size_t(t)] += most[size_t(t)] < kSink * all;
        }
    std::vector<uint8_t> sinks(size_t(p.tokens));
    for (int64_t t = 0; t < p.tokens; t++) sinks[size_t(t)] = 2 * little[size_t(t)] > p.layers * p.heads;
    return sinks;
}

template <class T>
bool to_symbols(const typename T::Stored* in, const Planes& p, uint8_t* out) {
    const int64_t channels = p.heads * p.dim, values = channels * p.tokens;
    std::vector<float> base(size_t(p.dim)), inverse(size_t(p.dim));
    const std::vector<uint8_t> sinks = sinks_of<T>(in, p);
    const bool any = std::any_of(sinks.begin(), sinks.end(), [](uint8_t sink) { return sink; });
    for (int64_t plane = 0; plane < 2 * p.layers; plane++, in += values, out += values) {
        int32_t magnitude = 0;
        for (int64_t i = 0; i < values; i++)
            magnitude = std::max(magnitude, int32_t(bits_of(T::get(in[i])) & 0x7FFFFFFF));
        if (magnitude > int32_t(bits_of(kLargest))) return false;
        const bool anchored = p.by_anchor[plane];
        const float* centre = p.centre + plane * channels;
        const float* first = p.first + plane * channels;
        const float* others = p.others + plane * channels;
        auto anchor = [&](float x, uint8_t symbol, int64_t channel) {
            if (!anchored) return centre[channel];
            return symbol == kEscape ? x : (float(int32_t(symbol)) - float(kMost)) * first[channel] + centre[channel];
        };
        if (plane % 2 == 0) {
            for (int64_t channel = 0; channel < channels; channel++) {
                const auto* x = in + channel * p.tokens;
                uint8_t* s = out + channel * p.tokens;
                s[0] = sinks[0] ? uint8_t(kEscape) : symbol_of(T::get(x[0]), centre[channel], 1.0f / first[channel]);
                const float from = anchor(T::get(x[0]), s[0], channel), by = 1.0f / others[channel];
                for (int64_t t = 1; t < p.tokens; t++) s[t] = symbol_of(T::get(x[t]), from, by);
                for (int64_t t = 1; any && t < p.tokens; t++)
                    if (sinks[size_t(t)]) s[t] = uint8_t(kEscape);
            }
        } else {
            for (int64_t head = 0; head < p.heads; head++) {
                const auto* x = in + head * p.dim * p.tokens;
                uint8_t* s = out + head * p.dim * p.tokens;
                for (int64_t d = 0; d < p.dim; d++) {
                    const int64_t channel = head * p.dim + d;
                    s[d] = sinks[0] ? uint8_t(kEscape) : symbol_of(T::get(x[d]), centre[channel], 1.0f / first[channel]);
                    base[size_t(d)] = anchor(T::get(x[d]), s[d], channel);
                    inverse[size_t(d)] = 1.0f / others[channel];
                }
                for (int64_t t = 1; t < p.tokens; t++)
                    for (int64_t d = 0; d < p.dim; d++)
                        s[t * p.dim + d] = symbol_of(T::get(x[t * p.dim + d]), base[size_t(d)], inverse[size_t(d)]);
                for (int64_t t = 1; any && t < p.tokens; t++)
                    if (sinks[size_t(t)]) std::memset(s + t * p.dim, kEscape, size_t(p.dim));
            }
        }
    }
    return true;
}

int64_t escapes_in(const uint8_t* s, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) count += s[i] == kEscape;
    return count;
}

// Numbers of one row of symbols; `kept` are those outside all bins, of which as many as there are escapes must be there.
template <class T, class At>
void from_row(const uint8_t* s, int64_t n, const typename T::Stored*& kept, typename T::Stored* out, const At& at) {
    for (int64_t i = 0; i < n; i++) out[i] = T::put(at(i, float(int32_t(s[i])) - float(kMost)));
    if (escapes_in(s, n))
        for (int64_t i = 0; i < n; i++)
            if (s[i] == kEscape) out[i] = *kept++;
}

template <class T>
void from_symbols(const uint8_t* s, const Planes& p, const typename T::Stored* kept, typename T::Stored* out) {
    const int64_t channels = p.heads * p.dim, values = channels * p.tokens;
    std::vector<float> base(size_t(p.dim));
    for (int64_t plane = 0; plane < 2 * p.layers; plane++, s += values, out += values) {
        const bool anchored = p.by_anchor[plane];
        const float* centre = p.centre + plane * channels;
        const float* first = p.first + plane * channels;
        const float* others = p.others + plane * channels;
        // the anchor is not rounded to what is stored: the encoder measured from the same float32
        auto anchor = [&](uint8_t symbol, typename T::Stored stored, int64_t channel) {
            if (!anchored) return centre[channel];
            if (symbol == kEscape) return T::get(stored);
            return (float(int32_t(symbol)) - float(kMost)) * first[channel] + centre[channel];
        };
        if (plane % 2 == 0) {
            for (int64_t channel = 0; channel < channels; channel++) {
                const uint8_t* row = s + channel * p.tokens;
                auto* x = out + channel * p.tokens;
                const float middle = centre[channel], begin = first[channel], step = others[channel];
                from_row<T>(row, 1, kept, x, [&](int64_t, float bin) { return bin * begin + middle; });
                const float from = anchor(row[0], x[0], channel);
                from_row<T>(row + 1, p.tokens - 1, kept, x + 1, [&](int64_t, float bin) { return bin * step + from; });
            }
        } else {
            for (int64_t head = 0; head < p.heads; head++) {
                const int64_t from = head * p.dim;
                const uint8_t* row = s + from * p.tokens;
                auto* x = out + from * p.tokens;
                from_row<T>(row, p.dim, kept, x, [&](int64_t d, float bin) { return bin * first[from + d] + centre[from + d]; });
                for (int64_t d = 0; d < p.dim; d++) base[size_t(d)] = anchor(row[d], x[d], from + d);
                for (int64_t t = 1; t < p.tokens; t++)
                    from_row<T>(row + t * p.dim, p.dim, kept, x + t * p.dim,
                                [&](int64_t d, float bin) { return bin * others[from + d] + base[size_t(d)]; });
            }
        }
    }
}

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

// False unless the words end with the symbols, and the states where encoding began.
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

// Writes words before `end`, never more than n; returns where they begin.
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

}  // namespace

// dtype: 0 bfloat16, 1 float32. `raw` and `out` have `blocks` runs of rows x row numbers, `stride` numbers apart.
EXPORT int64_t ngc_encode_integers(const void* raw, int32_t dtype, int64_t blocks, int64_t stride, int64_t rows, int64_t row,
                                   int32_t bits, uint16_t* parameters, uint8_t* codes) {
    const int64_t groups = (row + kGroup - 1) / kGroup, size = (row * bits + 7) / 8;
    for (int64_t block = 0; block < blocks; block++)
        for (int64_t r = 0; r < rows; r++, parameters += 2 * groups, codes += size) {
            const int64_t at = block * stride + r * row;
            const bool done = dtype ? encode_row<F32>(static_cast<const float*>(raw) + at, row, bits, parameters, codes)
                                    : encode_row<Bf16>(static_cast<const uint16_t*>(raw) + at, row, bits, parameters, codes);
            if (!done) return -1;
        }
    return 0;
}

EXPORT void ngc_decode_integers(const uint16_t* parameters, const uint8_t* codes, int32_t dtype, int64_t blocks, int64_t stride,
                                int64_t rows, int64_t row, int32_t bits, void* out) {
    const int64_t groups = (row + kGroup - 1) / kGroup, size = (row * bits + 7) / 8;
    for (int64_t block = 0; block < blocks; block++)
        for (int64_t r = 0; r < rows; r++, parameters += 2 * groups, codes += size) {
            const int64_t at = block * stride + r * row;
            if (dtype) decode_row<F32>(parameters, codes, row, bits, static_cast<float*>(out) + at);
            else decode_row<Bf16>(parameters, codes, row, bits, static_cast<uint16_t*>(out) + at);
        }
}

EXPORT int64_t ngc_encode_e4m3(const void* raw, int32_t dtype, int64_t rows, int64_t row, uint16_t* scales, uint8_t* codes) {
    for (int64_t r = 0; r < rows; r++) {
        const bool done = dtype ? encode_e4m3_row<F32>(static_cast<const float*>(raw) + r * row, row, scales + r, codes + r * row)
                                : encode_e4m3_row<Bf16>(static_cast<const uint16_t*>(raw) + r * row, row, scales + r, codes + r * row);
        if (!done) return -1;
    }
    return 0;
}

EXPORT void ngc_decode_e4m3(const uint16_t* scales, const uint8_t* codes, int32_t dtype, int64_t rows, int64_t row, void* out) {
    for (int64_t r = 0; r < rows; r++) {
        if (dtype) decode_e4m3_row<F32>(scales[r], codes + r * row, row, static_cast<float*>(out) + r * row);
        else decode_e4m3_row<Bf16>(scales[r], codes + r * row, row, static_cast<uint16_t*>(out) + r * row);
    }
}

// words has room for n; used are the last `*count`, outside has room for n numbers. Returns the numbers outside all bins,
// -1 where the input is no KV.
EXPORT int64_t ngc_encode_entropy(const void* raw, int32_t dtype, const Planes* planes, const uint8_t* kinds,
                                  const uint16_t* frequency, const uint16_t* start, uint8_t* symbols, uint32_t* states,
                                  uint16_t* words, int64_t* count, void* outside) {
    const int64_t n = 2 * planes->layers * planes->heads * planes->dim * planes->tokens;
    const bool done = dtype ? to_symbols<F32>(static_cast<const float*>(raw), *planes, symbols)
                            : to_symbols<Bf16>(static_cast<const uint16_t*>(raw), *planes, symbols);
    if (!done) return -1;
    *count = words + n - entropy_encode(symbols, kinds, n, frequency, start, states, words + n);
    int64_t found = 0;
    const int64_t item = dtype ? 4 : 2;
    const uint8_t* at = symbols;
    while ((at = static_cast<const uint8_t*>(std::memchr(at, kEscape, size_t(symbols + n - at))))) {
        std::memcpy(static_cast<char*>(outside) + item * found++, static_cast<const char*>(raw) + item * (at - symbols), size_t(item));
        at++;
    }
    return found;
}

// 0; -1 where the payload was damaged. `outside` are the numbers outside all bins, `beyond` many.
EXPORT int64_t ngc_decode_entropy(uint32_t* states, const uint16_t* words, int64_t count, const void* outside, int64_t beyond,
                                  int32_t dtype, const Planes* planes, const uint8_t* kinds, const uint32_t* slots,
                                  uint8_t* symbols, void* out) {
    const int64_t n = 2 * planes->layers * planes->heads * planes->dim * planes->tokens;
    if (!entropy_decode(states, words, count, kinds, n, slots, symbols) || escapes_in(symbols, n) != beyond) return -1;
    if (dtype) from_symbols<F32>(symbols, *planes, static_cast<const float*>(outside), static_cast<float*>(out));
    else from_symbols<Bf16>(symbols, *planes, static_cast<const uint16_t*>(outside), static_cast<uint16_t*>(out));
    return 0;
}
