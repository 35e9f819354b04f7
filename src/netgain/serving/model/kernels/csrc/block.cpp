#include "block.hpp"

#include <vector>

#include "elementwise.hpp"

namespace {

// Activations between the operations of a block, kept by the calling thread so that a step allocates nothing.
struct Workspace {
    std::vector<float> normed, wide, queries, attended;
};

Workspace& workspace() {
    static thread_local Workspace one;
    return one;
}

float* room(std::vector<float>& v, int64_t size) {
    if (v.size() < size_t(size)) v.resize(size_t(size));
    return v.data();
}

int64_t outs(const Linear& linear) {
    int64_t total = 0;
    for (int64_t i = 0; i < linear.count; i++) total += linear.parts[i].outs;
    return total;
}

void product(Pool& pool, const Linear& w, const float* x, int64_t rows, float* out) {
    int64_t pitch = outs(w), at = 0;
    for (int64_t i = 0; i < w.count; at += w.parts[i++].outs) linear(pool, w.parts[i], x, rows, out + at, pitch);
    if (w.bias) {
        each_row(pool, rows, pitch, [&](int64_t r) {
            for (int64_t i = 0; i < pitch; i++) out[r * pitch + i] += w.bias[i];
        });
    }
}

const float* normed(Pool& pool, const float* x, const float* weight, float eps, int64_t rows, int64_t hidden) {
    float* to = room(workspace().normed, rows * hidden);
    each_row(pool, rows, hidden, [&](int64_t r) { rms_norm_row(x + r * hidden, weight, eps, hidden, to + r * hidden); });
    return to;
}

// Heads of one row in place: normalised if `norm` is given, then turned.
void place_heads(float* x, const float* norm, float eps, const float* cos, const float* sin, int64_t heads, int64_t dim) {
    if (norm)
        for (int64_t h = 0; h < heads; h++) rms_norm_row(x + h * dim, norm, eps, dim, x + h * dim);
    rope_row(x, cos, sin, heads, dim / 2, x);
}

}  // namespace

void attention_block(Pool& pool, const AttentionBlock& block, const Rows& rows, const Cache& cache, const float* x,
                     const float* cos, const float* sin, const int64_t* picked, int64_t count, float* out) {
    int64_t n = rows.rows, dim = cache.dim, half = dim / 2, q_width = block.heads * dim, kv_width = cache.kv_heads * dim;
    int64_t pitch = q_width + 2 * kv_width;
    Workspace& work = workspace();
    float* qkv = room(work.wide, n * pitch);
    product(pool, block.qkv, normed(pool, x, block.norm, block.eps, n, block.hidden), n, qkv);
    float* queries = room(work.queries, n * q_width);
    each_row(pool, n, q_width + kv_width, [&](int64_t r) {
        float *q = qkv + r * pitch, *k = q + q_width;
        const float *c = cos + r * half, *s = sin + r * half;
        place_heads(q, block.query_norm, block.eps, c, s, block.heads, dim);
        place_heads(k, block.key_norm, block.eps, c, s, cache.kv_heads, dim);
        std::memcpy(queries + r * q_width, q, size_t(q_width) * 4);
    });
    store_kv(pool, rows, cache, qkv + q_width, qkv + q_width + kv_width, pitch);
    float* attended = room(work.attended, n * q_width);
    attend(pool, rows, cache, queries, block.heads, block.window, attended);
    if (picked) {
        for (int64_t i = 0; i < count; i++) std::memcpy(queries + i * q_width, attended + picked[i] * q_width, size_t(q_width) * 4);
        attended = queries;
    }
    product(pool, block.output, attended, count, out);
}

void mlp_block(Pool& pool, const MlpBlock& block, const float* x, int64_t rows, float* out) {
    int64_t width = outs(block.gate_up), half = width / 2;
    float* gate_up = room(workspace().wide, rows * width);
    product(pool, block.gate_up, normed(pool, x, block.norm, block.eps, rows, block.hidden), rows, gate_up);
    float* hidden = room(workspace().attended, rows * half);
    each_row(pool, rows, half, [&](int64_t r) { silu_mul_row(gate_up + r * width, half, hidden + r * half); });
    product(pool, block.down, hidden, rows, out);
}
