// How a lane finds its symbols in a tile of an EXL3 trellis. A tile is a ring of 256 * bits bits in words whose
// most significant bit comes first; symbol t is the 16 bits that end at bit (t + 1) * bits. Lane l of a warp
// holds symbols 8l .. 8l+7, which are the weights a matrix instruction wants from it.
// Plain C++, so that g++ can compare it with the CPU kernels' reading.
#pragma once

#include <cstdint>

#include "host_device.h"

namespace glm53 {

// Symbols read from one pair of words: as many as always fit.
GLM53_HD constexpr int window_symbols(int bits) { return bits <= 4 ? 8 : bits == 7 ? 2 : 4; }

// The pair of words whose second one holds the last bit of symbol `last`, and how far to shift it down.
struct WindowPlace {
    int first, second, shift;
};

GLM53_HD WindowPlace window_place(int bits, int last) {
    const int end = (last + 1) * bits;  // one behind its last bit
    const int second = (end - 1) / 32;
    return {second == 0 ? 8 * bits - 1 : second - 1, second, 32 * (second + 1) - end};
}

// The 16-bit state that is `back` symbols before the last one of the window.
GLM53_HD uint32_t window_state(uint64_t window, int bits, int back) {
    return static_cast<uint32_t>(window >> (bits * back)) & 0xffffu;
}

}  // namespace glm53
