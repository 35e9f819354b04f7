// Float matrices rounded to 4-bit blocks at load.
#pragma once

#include "pool.hpp"

// `groups` of 32 float32 -> Q4_1 blocks of 20 bytes. Returns -1, or the index of a group that float16 scales cannot keep.
int64_t quantise_q4_1(Pool& pool, const float* x, int64_t groups, uint8_t* out);
