// KV as entropy-coded symbols, with the numbers outside all bins beside them. Sizes were checked by the caller.
#include <cstring>

#include "bins.hpp"
#include "rans.hpp"

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
