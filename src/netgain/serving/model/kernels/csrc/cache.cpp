#include "cache.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "simd.hpp"

namespace {

int8_t* rounded(const float* x, int64_t dim, int8_t* to, int64_t stride, float* scale) {
    float top = 0.0f;
    for (int64_t d = 0; d < dim; d++) top = std::fabs(x[d]) > top || x[d] != x[d] ? std::fabs(x[d]) : top;
    float inverse = top > 0 ? 127.0f / std::max(top, 1e-30f) : 0.0f;
    for (int64_t d = 0; d < dim; d++) to[d * stride] = int8_t(int32_t((x[d] * inverse + 12582912.0f) - 12582912.0f));
    *scale = top / 127.0f;
    return to;
}

template <class T, class Narrow>
void store_row(const Cache& cache, char* key_tile, char* value_tile, int64_t place, const float* key, const float* value,
               const Narrow& narrow) {
    T* k = reinterpret_cast<T*>(key_tile) + place;
    T* v = reinterpret_cast<T*>(value_tile) + place * cache.dim;
    for (int64_t d = 0; d < cache.dim; d++) k[d * cache.tokens] = narrow(key[d]);
    for (int64_t d = 0; d < cache.dim; d++) v[d] = narrow(value[d]);
}

}  // namespace

void store_row(const Rows& rows, int64_t row, const float* x, int64_t width, uint16_t* plane) {
    int64_t at = rows.positions[row], place = rows.block_at(rows.segments[row], at) * rows.block_tokens + at % rows.block_tokens;
    for (int64_t i = 0; i < width; i++) plane[place * width + i] = narrow_bf16(x[row * width + i]);
}

void store_kv(const Rows& rows, const Cache& cache, int64_t first, int64_t count, const float* keys, const float* values,
              int64_t pitch) {
    for (int64_t i = 0; i < count; i++, keys += pitch, values += pitch) {
        int64_t place = rows.positions[first + i], block = rows.block_at(rows.segments[first + i], place);
        place %= rows.block_tokens;
        for (int64_t h = 0; h < cache.kv_heads; h++) {
            const float *key = keys + h * cache.dim, *value = values + h * cache.dim;
            char *k = cache.key_tile(block, h), *v = cache.value_tile(block, h);
            switch (cache.stored) {
                case Stored::F32: store_row<float>(cache, k, v, place, key, value, [](float x) { return x; }); break;
                case Stored::BF16:
                    store_row<uint16_t>(cache, k, v, place, key, value, [](float x) { return narrow_bf16(x); });
                    break;
                case Stored::I8: {
                    float scale;
                    rounded(key, cache.dim, reinterpret_cast<int8_t*>(k) + place, cache.tokens, &scale);
                    std::memcpy(cache.key_scale(k, place), &scale, sizeof scale);
                    v += size_t(place) * cache.row();
                    rounded(value, cache.dim, reinterpret_cast<int8_t*>(v), 1, &scale);
                    std::memcpy(v + cache.dim, &scale, sizeof scale);
                }
            }
        }
    }
}
