#include "stack.hpp"

#include "elementwise.hpp"

namespace {

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

// Rows `picked` of `x`, each `width` long.
void gather(const float* x, const int64_t* picked, int64_t count, int64_t width, float* out) {
    for (int64_t i = 0; i < count; i++) std::memcpy(out + i * width, x + picked[i] * width, size_t(width) * 4);
}

// Heads of one row in place: normalised if `norm` is given, then turned.
void place_heads(float* x, const float* norm, float eps, const float* cos, const float* sin, int64_t heads, int64_t dim) {
    if (norm)
        for (int64_t h = 0; h < heads; h++) rms_norm_row(x + h * dim, norm, eps, dim, x + h * dim);
    rope_row(x, cos, sin, heads, dim / 2, x);
}

// One run of a stack: what its blocks have in common.
struct Run {
    Pool& pool;
    Workspace& work;
    int64_t hidden;

    const float* normed(const float* x, const float* weight, float eps, int64_t rows) {
        float* to = room(work.normed, rows * hidden);
        each_row(pool, rows, hidden, [&](int64_t r) { rms_norm_row(x + r * hidden, weight, eps, hidden, to + r * hidden); });
        return to;
    }

    // What is added to rows `picked` of x (null: all).
    float* attention(const AttentionBlock& block, const Rows& rows, const Cache& cache, const float* x, const float* cos,
                     const float* sin, const int64_t* picked, int64_t count) {
        int64_t n = rows.rows, dim = cache.dim, half = dim / 2;
        int64_t q_width = block.heads * dim, kv_width = cache.kv_heads * dim, pitch = q_width + 2 * kv_width;
        float* qkv = room(work.wide, n * pitch);
        product(pool, block.qkv, normed(x, block.norm, block.eps, n), n, qkv);
        float* queries = room(work.queries, std::max(n, count) * q_width);
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
            gather(attended, picked, count, q_width, queries);
            attended = queries;
        }
        float* added = room(work.added, count * hidden);
        product(pool, block.output, attended, count, added);
        return added;
    }

    float* mlp(const MlpBlock& block, const float* x, int64_t rows) {
        int64_t width = outs(block.gate_up), half = width / 2;
        float* gate_up = room(work.wide, rows * width);
        product(pool, block.gate_up, normed(x, block.norm, block.eps, rows), rows, gate_up);
        float* inner = room(work.attended, rows * half);
        each_row(pool, rows, half, [&](int64_t r) { silu_mul_row(gate_up + r * width, half, inner + r * half); });
        float* added = room(work.added, rows * hidden);
        product(pool, block.down, inner, rows, added);
        return added;
    }
};

}  // namespace

bool run(Pool& pool, Workspace& work, const Stack& stack, const Rows& rows, const Cache* caches, const float* x,
         const float* cos, const float* sin, const int64_t* picked, int64_t count, float* out) {
    std::lock_guard<std::mutex> held(work.lock);
    Run one{pool, work, stack.hidden};
    int64_t n = rows.rows, last = stack.count - 1;
    while (last >= 0 && !stack.blocks[last].attention) last--;
    for (int64_t at = 0; at < stack.count; at++) {
        const Block& block = stack.blocks[at];
        // once the last attention has written the KV of all rows, only those that are asked for matter
        const int64_t* chosen = at == last ? picked : nullptr;
        if (at == last) n = count;
        float* added = block.attention ? one.attention(*block.attention, rows, *caches++, x, cos, sin, chosen, n)
                                       : one.mlp(*block.mlp, x, n);
        if (stack.reduce && stack.reduce(added, n)) return false;
        // never the buffer that x lies in, whose rows may be picked in any order
        float* sum = at == stack.count - 1 ? out : room(work.residual[at % 2], n * stack.hidden);
        each_row(pool, n, stack.hidden, [&](int64_t r) {
            const float *old = x + (chosen ? chosen[r] : r) * stack.hidden, *more = added + r * stack.hidden;
            for (int64_t i = 0; i < stack.hidden; i++) sum[r * stack.hidden + i] = old[i] + more[i];
        });
        x = sum;
    }
    return true;
}
