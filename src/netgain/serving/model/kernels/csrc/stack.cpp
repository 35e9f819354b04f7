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
    linear(pool, w.parts, w.count, x, rows, out);
    if (w.bias) {
        int64_t pitch = outs(w);
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

// Few rows share one pass over the weights, every operation being spread over all threads. Many rows are cut into chunks,
// each of which one thread takes through all operations while what it works on stays in its own cache.
constexpr int64_t CHUNK = 32;
constexpr int64_t SILU = 4;  // what an element of it costs, counted in those of a norm

bool in_chunks(const Pool& pool, int64_t rows) { return rows >= 2 * CHUNK * pool.threads(); }

// body(pool, first row, rows), where the pool is the one that the body may use.
template <class Body>
void each_chunk(Pool& pool, int64_t rows, const Body& body) {
    if (!in_chunks(pool, rows)) return body(pool, 0, rows);
    int64_t chunks = (rows + CHUNK - 1) / CHUNK;
    pool.each(int(chunks), [&](int i) {
        body(Pool::alone(), rows * i / chunks, rows * (i + 1) / chunks - rows * i / chunks);
    });
}

// What a thread keeps of the chunk it is at.
struct Chunk {
    std::vector<float> normed, wide, inner;

    static Chunk& mine() {
        static thread_local Chunk one;
        return one;
    }
};

// The tiles of the picked rows alone, in room for all of them.
int64_t picked_tiles(const Rows& rows, const int64_t* picked, int64_t count, std::vector<int32_t>& tiles) {
    tiles.clear();
    for (int64_t i = 0; i < count; i++) {
        bool extends = i && picked[i] == picked[i - 1] + 1 && rows.segments[picked[i]] == rows.segments[picked[i - 1]] &&
                       tiles.back() < TILE_ROWS;
        if (extends)
            tiles.back()++;
        else
            tiles.insert(tiles.end(), {int32_t(picked[i]), 1});
    }
    return int64_t(tiles.size()) / 2;
}

// The first tile of every chunk of rows, and the count of tiles.
void chunk_tiles(const Rows& rows, std::vector<int32_t>& firsts) {
    firsts.clear();
    for (int64_t tile = 0, begin = -CHUNK; tile < rows.tile_count; tile++)
        if (rows.tiles[2 * tile] >= begin + CHUNK) firsts.push_back(int32_t(tile)), begin = rows.tiles[2 * tile];
    firsts.push_back(int32_t(rows.tile_count));
}

// One run of a stack: what its blocks have in common.
struct Run {
    Pool& pool;
    Workspace& work;
    int64_t hidden;

    const float* normed(Pool& own, const float* x, const float* weight, float eps, int64_t rows) {
        float* to = room(Chunk::mine().normed, rows * hidden);
        each_row(own, rows, hidden, [&](int64_t r) { rms_norm_row(x + r * hidden, weight, eps, hidden, to + r * hidden); });
        return to;
    }

    // What is added to rows `picked` of x (null: all).
    float* attention(const AttentionBlock& block, const Rows& rows, const Cache& cache, const float* x, const float* cos,
                     const float* sin, const int64_t* picked, int64_t count) {
        int64_t n = rows.rows, dim = cache.dim, half = dim / 2;
        int64_t q_width = block.heads * dim, kv_width = cache.kv_heads * dim, pitch = q_width + 2 * kv_width;
        float* queries = room(work.queries, std::max(n, count) * q_width);
        each_chunk(pool, n, [&](Pool& own, int64_t first, int64_t size) {
            float* qkv = room(Chunk::mine().wide, size * pitch);
            product(own, block.qkv, normed(own, x + first * hidden, block.norm, block.eps, size), size, qkv);
            each_row(own, size, pitch, [&](int64_t r) {
                float *q = qkv + r * pitch, *k = q + q_width;
                const float *c = cos + (first + r) * half, *s = sin + (first + r) * half;
                place_heads(q, block.query_norm, block.eps, c, s, block.heads, dim);
                place_heads(k, block.key_norm, block.eps, c, s, cache.kv_heads, dim);
                std::memcpy(queries + (first + r) * q_width, q, size_t(q_width) * 4);
                store_kv(rows, cache, first + r, 1, k, k + kv_width, pitch);
            });
        });

        float *attended = room(work.attended, n * q_width), *added = room(work.added, count * hidden);
        Rows seen = rows;
        if (picked) {
            seen.tile_count = picked_tiles(rows, picked, count, work.tiles);
            seen.tiles = work.tiles.data();
        }
        Attention job{seen, cache, queries, block.heads, block.window, attended};
        if (!picked && in_chunks(pool, n)) {
            chunk_tiles(rows, work.tiles);
            const int32_t* firsts = work.tiles.data();
            pool.each(int(work.tiles.size()) - 1, [&](int i) {
                attend_tiles(job, firsts[i], firsts[i + 1]);
                int64_t first = rows.tiles[2 * firsts[i]], last = firsts[i + 1] - 1;
                int64_t end = rows.tiles[2 * last] + rows.tiles[2 * last + 1];
                product(Pool::alone(), block.output, attended + first * q_width, end - first, added + first * hidden);
            });
            return added;
        }
        attend(pool, job);
        if (picked) {
            gather(attended, picked, count, q_width, queries);
            attended = queries;
        }
        product(pool, block.output, attended, count, added);
        return added;
    }

    float* mlp(const MlpBlock& block, const float* x, int64_t rows) {
        int64_t width = outs(block.gate_up), half = width / 2;
        float* added = room(work.added, rows * hidden);
        each_chunk(pool, rows, [&](Pool& own, int64_t first, int64_t size) {
            float* gate_up = room(Chunk::mine().wide, size * width);
            product(own, block.gate_up, normed(own, x + first * hidden, block.norm, block.eps, size), size, gate_up);
            float* inner = room(Chunk::mine().inner, size * half);
            each_row(own, size, SILU * half, [&](int64_t r) { silu_mul_row(gate_up + r * width, half, inner + r * half); });
            product(own, block.down, inner, size, added + first * hidden);
        });
        return added;
    }
};

}  // namespace

bool run(Pool& pool, Workspace& work, const Stack& stack, const Rows& rows, const Cache* caches, const float* x,
         const float* cos, const float* sin, const int64_t* picked, int64_t count, const Taps& taps, float* out) {
    std::lock_guard<std::mutex> held(work.lock);
    Run one{pool, work, stack.hidden};
    int64_t n = rows.rows, last = stack.count - 1;
    while (last >= 0 && !stack.blocks[last].attention) last--;
    bool late = taps.count && taps.blocks[taps.count - 1] >= last;  // a tap behind the last attention sees all rows, too
    int64_t tap = 0, end = stack.count - 1;
    for (int64_t at = 0; at < stack.count; at++) {
        const Block& block = stack.blocks[at];
        // once the last attention has written the KV of all rows, only those that are asked for matter
        const int64_t* chosen = at == last && !late ? picked : nullptr;
        if (at == last && !late) n = count;
        float* added = block.attention ? one.attention(*block.attention, rows, *caches++, x, cos, sin, chosen, n)
                                       : one.mlp(*block.mlp, x, n);
        if (stack.reduce && stack.reduce(added, n)) return false;
        // never the buffer that x lies in, whose rows may be picked in any order
        float* sum = at == end && !late ? out : room(work.residual[at % 2], n * stack.hidden);
        each_row(pool, n, stack.hidden, [&](int64_t r) {
            const float *old = x + (chosen ? chosen[r] : r) * stack.hidden, *more = added + r * stack.hidden;
            for (int64_t i = 0; i < stack.hidden; i++) sum[r * stack.hidden + i] = old[i] + more[i];
        });
        x = sum;
        if (tap < taps.count && taps.blocks[tap] == at) {
            for (int64_t r = 0; r < n; r++)
                std::memcpy(taps.out + (r * taps.count + tap) * stack.hidden, x + r * stack.hidden, size_t(stack.hidden) * 4);
            tap++;
        }
    }
    if (late && picked)
        gather(x, picked, count, stack.hidden, out);
    else if (late)
        std::memcpy(out, x, size_t(count * stack.hidden) * 4);
    return true;
}
