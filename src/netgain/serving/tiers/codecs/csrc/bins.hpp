// KV as symbols: the numbers of bins whose middles and widths tables.py holds, or an escape for what is in none of them.
#pragma once

#include <cstdint>

#include "numbers.hpp"

constexpr int kEscape = 63;

// What the arrays of tables.py say about the layers at hand: [layers, 2, channels], and by_anchor [layers, 2].
struct Planes {
    int64_t layers, heads, dim, tokens;
    const uint8_t* by_anchor;
    const float *centre, *first, *others;  // of a bin: its middle, its width for the first token and for the others
};

// Symbols of the KV at `in`; false where it is no KV.
template <class T>
bool to_symbols(const typename T::Stored* in, const Planes& planes, uint8_t* out);

// KV of symbols; `kept` are the numbers outside all bins, of which as many as there are escapes must be there.
template <class T>
void from_symbols(const uint8_t* symbols, const Planes& planes, const typename T::Stored* kept, typename T::Stored* out);

int64_t escapes_in(const uint8_t* symbols, int64_t n);
