#include "bins.hpp"

#include <algorithm>
#include <vector>

namespace {

constexpr float kSink = 0.3f;
constexpr int kMost = 31;

uint8_t symbol_of(float x, float base, float inverse) {
    float bin = __builtin_nearbyintf((x - base) * inverse);
    return bin >= -float(kMost) && bin <= float(kMost) ? uint8_t(int32_t(bin) + kMost) : uint8_t(kEscape);
}

// Which tokens are attention sinks; see bins.py.
template <class T>
std::vector<uint8_t> sinks_of(const typename T::Stored* in, const Planes& p) {
    const int64_t values = p.heads * p.dim * p.tokens;
    std::vector<int64_t> little(size_t(p.tokens));
    std::vector<float> most(size_t(p.tokens));
    for (int64_t layer = 0; layer < p.layers; layer++)
        for (int64_t head = 0; head < p.heads; head++) {
            const auto* v = in + (2 * layer + 1) * values + head * p.dim * p.tokens;
            float all = 0.0f;
            for (int64_t t = 0; t < p.tokens; t++) {
                int32_t magnitude = 0;
                for (int64_t d = 0; d < p.dim; d++)
                    magnitude = std::max(magnitude, int32_t(bits_of(T::get(v[t * p.dim + d])) & 0x7FFFFFFF));
                most[size_t(t)] = float_of(uint32_t(magnitude));
                all = std::max(all, most[size_t(t)]);
            }
            for (int64_t t = 0; t < p.tokens; t++) little[size_t(t)] += most[size_t(t)] < kSink * all;
        }
    std::vector<uint8_t> sinks(size_t(p.tokens));
    for (int64_t t = 0; t < p.tokens; t++) sinks[size_t(t)] = 2 * little[size_t(t)] > p.layers * p.heads;
    return sinks;
}

// Numbers of one row of symbols; `kept` are those outside all bins, of which as many as there are escapes must be there.
template <class T, class At>
void from_row(const uint8_t* s, int64_t n, const typename T::Stored*& kept, typename T::Stored* out, const At& at) {
    for (int64_t i = 0; i < n; i++) out[i] = T::put(at(i, float(int32_t(s[i])) - float(kMost)));
    if (escapes_in(s, n))
        for (int64_t i = 0; i < n; i++)
            if (s[i] == kEscape) out[i] = *kept++;
}

}  // namespace

int64_t escapes_in(const uint8_t* s, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) count += s[i] == kEscape;
    return count;
}

template <class T>
bool to_symbols(const typename T::Stored* in, const Planes& p, uint8_t* out) {
    const int64_t channels = p.heads * p.dim, values = channels * p.tokens;
    std::vector<float> base(size_t(p.dim)), inverse(size_t(p.dim));
    const std::vector<uint8_t> sinks = sinks_of<T>(in, p);
    const bool any = std::any_of(sinks.begin(), sinks.end(), [](uint8_t sink) { return sink; });
    for (int64_t plane = 0; plane < 2 * p.layers; plane++, in += values, out += values) {
        int32_t magnitude = 0;
        for (int64_t i = 0; i < values; i++)
            magnitude = std::max(magnitude, int32_t(bits_of(T::get(in[i])) & 0x7FFFFFFF));
        if (magnitude > int32_t(bits_of(kLargest))) return false;
        const bool anchored = p.by_anchor[plane];
        const float* centre = p.centre + plane * channels;
        const float* first = p.first + plane * channels;
        const float* others = p.others + plane * channels;
        auto anchor = [&](float x, uint8_t symbol, int64_t channel) {
            if (!anchored) return centre[channel];
            return symbol == kEscape ? x : (float(int32_t(symbol)) - float(kMost)) * first[channel] + centre[channel];
        };
        if (plane % 2 == 0) {
            for (int64_t channel = 0; channel < channels; channel++) {
                const auto* x = in + channel * p.tokens;
                uint8_t* s = out + channel * p.tokens;
                s[0] = sinks[0] ? uint8_t(kEscape) : symbol_of(T::get(x[0]), centre[channel], 1.0f / first[channel]);
                const float from = anchor(T::get(x[0]), s[0], channel), by = 1.0f / others[channel];
                for (int64_t t = 1; t < p.tokens; t++) s[t] = symbol_of(T::get(x[t]), from, by);
                for (int64_t t = 1; any && t < p.tokens; t++)
                    if (sinks[size_t(t)]) s[t] = uint8_t(kEscape);
            }
        } else {
            for (int64_t head = 0; head < p.heads; head++) {
                const auto* x = in + head * p.dim * p.tokens;
                uint8_t* s = out + head * p.dim * p.tokens;
                for (int64_t d = 0; d < p.dim; d++) {
                    const int64_t channel = head * p.dim + d;
                    s[d] = sinks[0] ? uint8_t(kEscape) : symbol_of(T::get(x[d]), centre[channel], 1.0f / first[channel]);
                    base[size_t(d)] = anchor(T::get(x[d]), s[d], channel);
                    inverse[size_t(d)] = 1.0f / others[channel];
                }
                for (int64_t t = 1; t < p.tokens; t++)
                    for (int64_t d = 0; d < p.dim; d++)
                        s[t * p.dim + d] = symbol_of(T::get(x[t * p.dim + d]), base[size_t(d)], inverse[size_t(d)]);
                for (int64_t t = 1; any && t < p.tokens; t++)
                    if (sinks[size_t(t)]) std::memset(s + t * p.dim, kEscape, size_t(p.dim));
            }
        }
    }
    return true;
}

template <class T>
void from_symbols(const uint8_t* s, const Planes& p, const typename T::Stored* kept, typename T::Stored* out) {
    const int64_t channels = p.heads * p.dim, values = channels * p.tokens;
    std::vector<float> base(size_t(p.dim));
    for (int64_t plane = 0; plane < 2 * p.layers; plane++, s += values, out += values) {
        const bool anchored = p.by_anchor[plane];
        const float* centre = p.centre + plane * channels;
        const float* first = p.first + plane * channels;
        const float* others = p.others + plane * channels;
        // the anchor is not rounded to what is stored: the encoder measured from the same float32
        auto anchor = [&](uint8_t symbol, typename T::Stored stored, int64_t channel) {
            if (!anchored) return centre[channel];
            if (symbol == kEscape) return T::get(stored);
            return (float(int32_t(symbol)) - float(kMost)) * first[channel] + centre[channel];
        };
        if (plane % 2 == 0) {
            for (int64_t channel = 0; channel < channels; channel++) {
                const uint8_t* row = s + channel * p.tokens;
                auto* x = out + channel * p.tokens;
                const float middle = centre[channel], begin = first[channel], step = others[channel];
                from_row<T>(row, 1, kept, x, [&](int64_t, float bin) { return bin * begin + middle; });
                const float from = anchor(row[0], x[0], channel);
                from_row<T>(row + 1, p.tokens - 1, kept, x + 1, [&](int64_t, float bin) { return bin * step + from; });
            }
        } else {
            for (int64_t head = 0; head < p.heads; head++) {
                const int64_t from = head * p.dim;
                const uint8_t* row = s + from * p.tokens;
                auto* x = out + from * p.tokens;
                from_row<T>(row, p.dim, kept, x, [&](int64_t d, float bin) { return bin * first[from + d] + centre[from + d]; });
                for (int64_t d = 0; d < p.dim; d++) base[size_t(d)] = anchor(row[d], x[d], from + d);
                for (int64_t t = 1; t < p.tokens; t++)
                    from_row<T>(row + t * p.dim, p.dim, kept, x + t * p.dim,
                                [&](int64_t d, float bin) { return bin * others[from + d] + base[size_t(d)]; });
            }
        }
    }
}

template bool to_symbols<Bf16>(const Bf16::Stored*, const Planes&, uint8_t*);
template bool to_symbols<F32>(const F32::Stored*, const Planes&, uint8_t*);
template void from_symbols<Bf16>(const uint8_t*, const Planes&, const Bf16::Stored*, Bf16::Stored*);
template void from_symbols<F32>(const uint8_t*, const Planes&, const F32::Stored*, F32::Stored*);
