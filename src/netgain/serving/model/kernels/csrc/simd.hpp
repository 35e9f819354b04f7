// Vectors of one width for the whole library, with every rounding step explicit: nothing here or in its users is
// contracted or reassociated by the compiler (-ffp-contract=off), so a lane's bits are the ones written down.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define NG_AVX512 1
constexpr int LANES = 16;
#else
constexpr int LANES = 8;
#endif

#if !defined(NG_AVX512) && defined(__AVX2__) && defined(__FMA__)
#define NG_AVX2 1
#endif

// Computes `v` at this place: GCC would else put sums off until it runs out of registers and spills what they add up.
#if defined(__AVX512F__)
#define NG_HERE(v) asm("" : "+v"(v))
#elif defined(__x86_64__)
#define NG_HERE(v) asm("" : "+x"(v))
#else
#define NG_HERE(v) (void)(v)
#endif

#if defined(__clang__)
#define NG_UNROLL _Pragma("unroll")
#else
#define NG_UNROLL _Pragma("GCC unroll 16")
#endif

typedef float f32v __attribute__((vector_size(LANES * 4)));
typedef int32_t i32v __attribute__((vector_size(LANES * 4)));
typedef uint32_t u32v __attribute__((vector_size(LANES * 4)));
typedef uint16_t u16v __attribute__((vector_size(LANES * 2)));

template <class V, class T>
static inline V load_as(const T* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

static inline f32v load(const float* p) { return load_as<f32v>(p); }
static inline void store(float* p, f32v v) { std::memcpy(p, &v, sizeof v); }
static inline f32v splat(float x) { return x - f32v{}; }
static inline f32v as_float(u32v v) {
    f32v out;
    std::memcpy(&out, &v, sizeof out);
    return out;
}

// a * b + c, rounded once.
static inline f32v fma(f32v a, f32v b, f32v c) {
#if defined(NG_AVX512)
    return (f32v)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(NG_AVX2)
    return (f32v)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    f32v out;
    for (int i = 0; i < LANES; i++) out[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return out;
#else
    return a * b + c;
#endif
}

// The second where either is no number.
static inline f32v max(f32v a, f32v b) {
#if defined(NG_AVX512)
    return (f32v)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(NG_AVX2)
    return (f32v)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return a > b ? a : b;
#endif
}
static inline f32v min(f32v a, f32v b) { return a < b ? a : b; }

// Lanes added by halving: i with i + LANES/2, and so on.
static inline float sum(f32v v) {
#if defined(NG_AVX512)
    __m256 w = _mm256_add_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1));
#elif defined(NG_AVX2)
    __m256 w = (__m256)v;
#endif
#if defined(NG_AVX512) || defined(NG_AVX2)
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(w), _mm256_extractf128_ps(w, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
#else
    float a[LANES];
    std::memcpy(a, &v, sizeof a);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) a[i] += a[i + width];
    return a[0];
#endif
}

// The sums, as above, of LANES vectors, one per lane.
static inline f32v sums(const f32v (&v)[LANES]) {
#if defined(NG_AVX2)
    // Two vectors' halves are added side by side, so that 8 sums take 7 additions instead of 24.
    auto halves = [](f32v a, f32v b) {
        __m256 x = (__m256)a, y = (__m256)b;
        return _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
    };
    auto pairs = [](__m256 x, __m256 y) {
        return _mm256_add_ps(_mm256_shuffle_ps(x, y, 0x44), _mm256_shuffle_ps(x, y, 0xee));
    };
    __m256 a = pairs(halves(v[0], v[4]), halves(v[1], v[5])), b = pairs(halves(v[2], v[6]), halves(v[3], v[7]));
    return (f32v)_mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
#else
    f32v out;
    for (int i = 0; i < LANES; i++) out[i] = sum(v[i]);
    return out;
#endif
}

static inline float largest(f32v v) {
    float a[LANES];
    std::memcpy(a, &v, sizeof a);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) a[i] = a[i] > a[i + width] ? a[i] : a[i + width];
    return a[0];
}

#if defined(NG_AVX2)
static inline int32_t sum(i32v v) {
    __m128i x = _mm_add_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    x = _mm_add_epi32(x, _mm_unpackhi_epi64(x, x));
    return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 1)));
}
static inline int32_t largest(i32v v) {
    __m128i x = _mm_max_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    x = _mm_max_epi32(x, _mm_unpackhi_epi64(x, x));
    return _mm_cvtsi128_si32(_mm_max_epi32(x, _mm_shuffle_epi32(x, 1)));
}
// 32 integers of 8 bits each.
static inline void narrow_8(const i32v (&v)[4], int8_t* to) {
    __m256i low = _mm256_packs_epi32((__m256i)v[0], (__m256i)v[1]), high = _mm256_packs_epi32((__m256i)v[2], (__m256i)v[3]);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((__m256i*)to, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order));
}
#else
static inline int32_t sum(i32v v) {
    int32_t total = 0;
    for (int l = 0; l < LANES; l++) total += v[l];
    return total;
}
static inline int32_t largest(i32v v) {
    int32_t most = v[0];
    for (int l = 1; l < LANES; l++) most = v[l] > most ? v[l] : most;
    return most;
}
// 32 integers of 8 bits each.
static inline void narrow_8(const i32v (&v)[32 / LANES], int8_t* to) {
    for (int i = 0; i < 32; i++) to[i] = int8_t(v[i / LANES][i % LANES]);
}
#endif

static inline f32v widen_bf16(u16v v) {
#if defined(NG_AVX2)  // GCC 12 would convert in two halves
    return (f32v)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)v), 16);
#else
    return as_float(__builtin_convertvector(v, u32v) << 16);
#endif
}
static inline float widen_bf16(uint16_t v) {
    uint32_t bits = uint32_t(v) << 16;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}

static inline float widen_one(float x) { return x; }
static inline float widen_one(uint16_t x) { return widen_bf16(x); }
static inline float widen_one(int8_t x) { return float(x); }

static inline f32v widen_i8(const int8_t* p) {
#if defined(NG_AVX512)
    return (f32v)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(NG_AVX2)
    return (f32v)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
#else
    f32v out;
    for (int i = 0; i < LANES; i++) out[i] = float(p[i]);
    return out;
#endif
}

// Round to nearest, ties to even; NaN stays NaN.
static inline uint16_t narrow_bf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t((bits >> 16) | 0x40);
    return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static inline float widen_half(uint16_t h) {
#if defined(__F16C__)
    return _cvtsh_ss(h);
#elif defined(__aarch64__)
    __fp16 x;
    std::memcpy(&x, &h, 2);
    return float(x);
#else
    uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 0x3ff, bits;
    if (exponent == 31) {
        bits = sign | 0x7f800000 | (fraction << 13);
    } else if (exponent) {
        bits = sign | ((exponent + 112) << 23) | (fraction << 13);
    } else {
        float x = float(fraction) * 0x1p-24f;
        std::memcpy(&bits, &x, 4);
        bits |= sign;
    }
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
#endif
}

// Round to nearest, ties to even; infinite beyond 65504. NaN becomes infinite or NaN.
static inline uint16_t narrow_half(float x) {
#if defined(__F16C__)
    return uint16_t(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
    __fp16 half = __fp16(x);
    uint16_t out;
    std::memcpy(&out, &half, 2);
    return out;
#else
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    uint16_t sign = uint16_t((bits >> 16) & 0x8000);
    bits &= 0x7fffffff;
    if (bits >= 0x477ff000) return sign | 0x7c00;
    if (bits >= 0x38800000) return sign | uint16_t((bits - 0x38000000 + 0xfff + ((bits >> 13) & 1)) >> 13);
    float shifted;  // a denormal half: the sum's last place is that of the half
    std::memcpy(&shifted, &bits, 4);
    shifted += 0.5f;
    std::memcpy(&bits, &shifted, 4);
    return sign | uint16_t(bits - 0x3f000000);
#endif
}

static inline f32v widen_halves(const uint16_t* p) {
#if defined(NG_AVX512)
    return (f32v)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(NG_AVX2) && defined(__F16C__)
    return (f32v)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
    f32v out;
    for (int i = 0; i < LANES; i++) out[i] = widen_half(p[i]);
    return out;
#endif
}

// Nearest integer, ties to even, for |x| < 2**22.
static inline f32v round_even(f32v x) { return (x + 12582912.0f) - 12582912.0f; }

// e**x: relative error below 2e-7; 0 below -87.3, saturates at e**88.3 (Cephes' polynomial).
static inline f32v exp(f32v x) {
    f32v clamped = min(max(x, splat(-87.3f)), splat(88.3f));
    f32v n = round_even(clamped * 1.44269504f);
    f32v r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
    f32v p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    i32v bits = (__builtin_convertvector(n, i32v) + 127) << 23;
    f32v scale;
    std::memcpy(&scale, &bits, sizeof scale);
    f32v y = ((p * (r * r) + r) + 1.0f) * scale;
    return x < splat(-87.3f) ? f32v{} : y;
}

// e**x for x <= 0 with fused steps: relative error below 2e-7, 0 replaced by e**-87.3, 1 exactly at 0. NaN stays NaN.
static inline __attribute__((always_inline)) f32v exp_below_0(f32v x) {
    x = max(splat(-87.3f), x);
    f32v n = round_even(x * 1.44269504f);
    f32v r = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), x));
    f32v p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    i32v bits = (__builtin_convertvector(n, i32v) + 127) << 23;
    f32v scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return (fma(p, r * r, r) + 1.0f) * scale;
}
