// The C interface that compiled.py calls. Pointers are to contiguous memory that outlives the call; shapes were checked.

#include <new>

#include "attention.hpp"
#include "elementwise.hpp"
#include "linear.hpp"
#include "quantise.hpp"
#include "stack.hpp"

#define NG_API extern "C" __attribute__((visibility("default")))

NG_API const char* ng_isa() {
#if defined(NG_AVX512) && defined(__AVX512VNNI__) && defined(__AVX512BF16__)
    return "avx512vnni+bf16";
#elif defined(NG_AVX512) && defined(__AVX512BF16__)
    return "avx512bf16";
#elif defined(NG_AVX512) && defined(__AVX512VNNI__)
    return "avx512vnni";
#elif defined(NG_AVX512)
    return "avx512";
#elif defined(NG_AVX2) && defined(__AVXVNNI__)
    return "avxvnni";
#elif defined(NG_AVX2)
    return "avx2";
#elif defined(__ARM_FEATURE_DOTPROD)
    return "neondot";
#elif defined(__aarch64__)
    return "neon";
#else
    return "portable";
#endif
}

NG_API Pool* ng_create(int threads) {
    try {
        return new Pool(threads);
    } catch (...) {
        return nullptr;
    }
}

NG_API void ng_destroy(Pool* pool) { delete pool; }

NG_API int64_t ng_packed_bytes(int64_t outs, int64_t ins, int32_t kind) {
    return int64_t(packed_bytes(outs, ins, Kind(kind)));
}

NG_API void ng_pack(const void* source, int64_t outs, int64_t ins, int32_t kind, void* packed) {
    pack(source, outs, ins, Kind(kind), packed);
}

NG_API int64_t ng_quantise_q4_1(Pool* pool, const float* x, int64_t groups, uint8_t* out) {
    return quantise_q4_1(*pool, x, groups, out);
}

NG_API void ng_linear(Pool* pool, const Matrix* w, const float* x, int64_t rows, float* out) {
    linear(*pool, w, 1, x, rows, out);
}

// Returns -1, or the index of the first token that has no row.
NG_API int64_t ng_embed(Pool* pool, const Matrix* w, const int64_t* tokens, int64_t rows, float* out) {
    for (int64_t r = 0; r < rows; r++)
        if (tokens[r] < 0 || tokens[r] >= w->outs) return r;
    each_row(*pool, rows, w->ins, [&](int64_t r) { embed_row(*w, tokens[r], out + r * w->ins); });
    return -1;
}

NG_API void ng_rms_norm(Pool* pool, const float* x, const float* weight, float eps, int64_t rows, int64_t n, float* out) {
    each_row(*pool, rows, n, [&](int64_t r) { rms_norm_row(x + r * n, weight, eps, n, out + r * n); });
}

NG_API void ng_silu_mul(Pool* pool, const float* gate_up, int64_t rows, int64_t n, float* out) {
    each_row(*pool, rows, n, [&](int64_t r) { silu_mul_row(gate_up + r * 2 * n, n, out + r * n); });
}

NG_API void ng_rope(Pool* pool, const float* x, const float* cos, const float* sin, int64_t rows, int64_t heads, int64_t half,
                    float* out) {
    each_row(*pool, rows, heads * half * 2, [&](int64_t r) {
        rope_row(x + r * heads * half * 2, cos + r * half, sin + r * half, heads, half, out + r * heads * half * 2);
    });
}

NG_API int64_t ng_plan(const Rows* rows, int64_t segments, int32_t* tiles, int32_t* last_block) {
    return plan_tiles(*rows, segments, tiles, last_block);
}

NG_API void ng_store_kv(Pool* pool, const Rows* rows, const Cache* cache, const float* keys, const float* values) {
    int64_t width = cache->kv_heads * cache->dim;
    each_row(*pool, rows->rows, 2 * width, [&](int64_t r) { store_kv(*rows, *cache, r, 1, keys + r * width, values + r * width, width); });
}

NG_API void ng_store_rows(Pool* pool, const Rows* rows, const float* x, int64_t width, uint16_t* plane) {
    each_row(*pool, rows->rows, width, [&](int64_t r) { store_row(*rows, r, x, width, plane); });
}

NG_API void ng_attention(Pool* pool, const Rows* rows, const Cache* cache, const float* q, int64_t heads, int64_t window,
                         float* out) {
    attend(*pool, Attention{*rows, *cache, q, heads, window, out});
}

NG_API Workspace* ng_create_workspace() { return new (std::nothrow) Workspace; }

NG_API void ng_destroy_workspace(Workspace* work) { delete work; }

// Returns -1, the index in `picked` of the first that is no row, or -2 when `reduce` ended the run.
NG_API int64_t ng_run_stack(Pool* pool, Workspace* work, const Stack* stack, const Rows* rows, const Cache* caches,
                            const float* x, const float* cos, const float* sin, const int64_t* picked, int64_t count,
                            const int64_t* tapped_blocks, int64_t taps, float* tapped, float* out) {
    for (int64_t i = 0; picked && i < count; i++)
        if (picked[i] < 0 || picked[i] >= rows->rows) return i;
    return run(*pool, *work, *stack, *rows, caches, x, cos, sin, picked, count, Taps{tapped_blocks, taps, tapped}, out)
               ? -1
               : -2;
}

// Where each row's highest value stands first, or -1 if it is no finite number or any value is NaN.
NG_API void ng_argmax(Pool* pool, const float* x, int64_t rows, int64_t n, int64_t* out) {
    each_row(*pool, rows, n, [&](int64_t r) { out[r] = argmax_row(x + r * n, n); });
}
