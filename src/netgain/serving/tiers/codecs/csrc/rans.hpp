// The entropy coder of rans.py: 32 interleaved states, 12 bits of frequency, words of 16 bits.
#pragma once

#include <cstdint>

// False unless the words end with the symbols, and the states where encoding began. Every index that comes from a payload is
// bounded by a mask, a table of full size or a comparison with the end of what may be read.
bool entropy_decode(uint32_t* states, const uint16_t* words, int64_t count, const uint8_t* kinds, int64_t n,
                    const uint32_t* slots, uint8_t* out);

// Writes words before `end`, never more than n; returns where they begin.
uint16_t* entropy_encode(const uint8_t* symbols, const uint8_t* kinds, int64_t n, const uint16_t* frequency,
                         const uint16_t* start, uint32_t* states, uint16_t* end);
