// Numbers as the codecs take them. Bit for bit what in_numpy.py computes: no contraction, no reassociation, rounding to even.
#pragma once

#include <cstdint>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

constexpr float kLargest = 1e30f, kLeastStep = 1e-35f;  // beyond the first no number is KV

inline uint32_t bits_of(float x) { uint32_t u; std::memcpy(&u, &x, 4); return u; }
inline float float_of(uint32_t u) { float x; std::memcpy(&x, &u, 4); return x; }

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

inline float widened(uint16_t s) { return Bf16::get(s); }

inline uint16_t rounded_down(float x) {
    uint32_t u = bits_of(x);
    return uint16_t((u >> 16) + ((u >> 31) && (u & 0xFFFF) ? 1 : 0));
}

inline uint16_t rounded_up(float x) { return uint16_t((bits_of(x) + 0xFFFF) >> 16); }
