// Rows of numbers as float8 e4m3 with one scale.
#include <algorithm>

#include "numbers.hpp"

namespace {

constexpr float kE4M3Most = 448.0f, kE4M3Small = 512.0f;

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

}  // namespace

// dtype: 0 bfloat16, 1 float32.
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
