// Groups of numbers as integers of 8 or 4 bits between their least and their largest.
#include <algorithm>

#include "numbers.hpp"

namespace {

constexpr int64_t kGroup = 64;

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
