// One band of a linear: 128 output columns times a slice of the inputs, for up to kRunRows rows, from the
// trellis as it is. Weights are decoded into the registers that a tensor-core instruction reads them from.
#pragma once
#include <cuda_fp16.h>

#include "../core/expert_runs.h"
#include "../core/trellis_window.h"

namespace glm53 {

constexpr int kBandThreads = 256;
constexpr int kBandWarps = kBandThreads / 32;
constexpr int kBlock = 128;  // features under one Hadamard transform
constexpr int kTile = 16;
constexpr int kBlockTiles = kBlock / kTile;
constexpr int kPadding = 8;  // halves between two rows of inputs, so that the rows use different banks

constexpr int ring_stages(int bits) { return bits <= 4 ? 6 : 4; }
constexpr int slice_bytes(int bits) { return kBlockTiles * 32 * bits; }  // 16 inputs times 128 columns
constexpr int ring_bytes(int bits) { return kBandWarps * ring_stages(bits) * slice_bytes(bits); }

__device__ inline void copy_16(void* shared, const void* global) {
    const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}
__device__ inline void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLeft>
__device__ void await_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// The mul1 codebook, two symbols at a time: fp16(1024 + sum of the bytes) times and plus a constant, rounded
// once (cpu/codebook.h has the definition).
__device__ inline uint32_t codebook_pair(uint32_t low, uint32_t high) {
    constexpr uint32_t kMultiplier = 0x83DCD12Du, kOnes = 0x01010101u;
    const uint32_t sum_low = __dp4a(low * kMultiplier, kOnes, 0x64006400u);
    const uint32_t pair = (__dp4a(high * kMultiplier, kOnes, 0u) << 16) + sum_low;
    const __half2 scale = __halves2half2(__ushort_as_half(0x1EEE), __ushort_as_half(0x1EEE));
    const __half2 offset = __halves2half2(__ushort_as_half(0xC931), __ushort_as_half(0xC931));
    const __half2 value = __hfma2(reinterpret_cast<const __half2&>(pair), scale, offset);
    return reinterpret_cast<const uint32_t&>(value);
}

// sum[column][row] += weights[input][column] * x[row][input], 16 x 8 += 16 x 16 * 16 x 8.
__device__ inline void multiply(float (&sum)[4], const uint32_t (&weights)[4], uint32_t x0, uint32_t x1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(weights[0]), "r"(weights[1]), "r"(weights[2]), "r"(weights[3]), "r"(x0), "r"(x1));
}

// The band of one block of threads. Warps take every eighth slice of 16 inputs; each keeps its next slices
// under way in a ring of its own.
template <int kBits>
struct Band {
    static constexpr int kStages = ring_stages(kBits), kSymbols = window_symbols(kBits), kWindows = 8 / kSymbols;
    static constexpr int kSlice = slice_bytes(kBits);

    const uint8_t* trellis;  // the first slice of the band
    size_t slice_stride;     // bytes from one slice to the next
    int slices;
    uint8_t* ring;  // this warp's
    int warp, lane;
    int first[kWindows], second[kWindows], shift[kWindows];

    __device__ Band(const uint8_t* trellis_, size_t stride, int slices_, uint8_t* rings)
        : trellis(trellis_), slice_stride(stride), slices(slices_), warp(threadIdx.x / 32), lane(threadIdx.x % 32) {
        ring = rings + warp * kStages * kSlice;
#pragma unroll
        for (int w = 0; w < kWindows; ++w) {
            const WindowPlace place = window_place(kBits, 8 * lane + (w + 1) * kSymbols - 1);
            first[w] = place.first;
            second[w] = place.second;
            shift[w] = place.shift;
        }
    }

    // Ask for this warp's i-th slice; nothing behind the last.
    __device__ void ask(int i) {
        const int slice = warp + i * kBandWarps;
        if (slice < slices) {
            const uint8_t* from = trellis + slice * slice_stride;
            uint8_t* to = ring + i % kStages * kSlice;
#pragma unroll
            for (int at = 0; at < kSlice; at += 16 * 32)
                if (at + 16 * lane < kSlice) copy_16(to + at + 16 * lane, from + at + 16 * lane);
        }
        end_copies();
    }

    // Ask for as much as the ring holds; the inputs may still be on their way to shared memory.
    __device__ void begin() {
#pragma unroll
        for (int i = 0; i < kStages - 1; ++i) ask(i);
    }

    __device__ void decode(const uint32_t* tile, uint32_t (&weights)[4]) const {
        uint32_t state[8];
#pragma unroll
        for (int w = 0; w < kWindows; ++w) {
            const uint64_t pair = static_cast<uint64_t>(tile[first[w]]) << 32 | tile[second[w]];
            const uint64_t window = pair >> shift[w];
#pragma unroll
            for (int i = 0; i < kSymbols; ++i) state[w * kSymbols + i] = window_state(window, kBits, kSymbols - 1 - i);
        }
        weights[0] = codebook_pair(state[0], state[1]);
        weights[2] = codebook_pair(state[2], state[3]);
        weights[1] = codebook_pair(state[4], state[5]);
        weights[3] = codebook_pair(state[6], state[7]);
    }

    // x: fp16 [rows][stride] in shared memory, from the band's first input on. sum[t]: 16 columns of tile t.
    __device__ void add(const __half* x, int stride, int rows, float (&sum)[kBlockTiles][4]) {
        const int row = lane / 4, pair = 2 * (lane % 4);
        const __half* own = x + row * stride + pair;
        for (int i = 0; warp + i * kBandWarps < slices; ++i) {
            ask(i + kStages - 1);
            await_copies<kStages - 1>();
            __syncwarp();
            const __half* at = own + (warp + i * kBandWarps) * kTile;
            const uint32_t x0 = row < rows ? *reinterpret_cast<const uint32_t*>(at) : 0u;
            const uint32_t x1 = row < rows ? *reinterpret_cast<const uint32_t*>(at + 8) : 0u;
            const uint32_t* tiles = reinterpret_cast<const uint32_t*>(ring + i % kStages * kSlice);
#pragma unroll
            for (int t = 0; t < kBlockTiles; ++t) {
                uint32_t weights[4];
                decode(tiles + t * 8 * kBits, weights);
                multiply(sum[t], weights, x0, x1);
            }
            __syncwarp();
        }
    }
};

// The Hadamard transform of 128 values, four neighbours per lane, scaled to keep their norm. Whole warp.
__device__ inline void hadamard(float (&v)[4]) {
    const float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
    v[0] = a + c;
    v[1] = b + d;
    v[2] = a - c;
    v[3] = b - d;
#pragma unroll
    for (int mask = 1; mask < 32; mask <<= 1) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float other = __shfl_xor_sync(0xffffffffu, v[j], mask);
            v[j] = threadIdx.x & mask ? other - v[j] : v[j] + other;
        }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] *= 0.08838834764831845f;  // 1 / sqrt(128)
}

__device__ inline void load_halves(const __half* from, float (&to)[4]) {
    const __half2* pairs = reinterpret_cast<const __half2*>(from);
    const float2 a = __half22float2(pairs[0]), b = __half22float2(pairs[1]);
    to[0] = a.x, to[1] = a.y, to[2] = b.x, to[3] = b.y;
}

__device__ inline void store_halves(const float (&from)[4], __half* to) {
    __half2* pairs = reinterpret_cast<__half2*>(to);
    pairs[0] = __floats2half2_rn(from[0], from[1]);
    pairs[1] = __floats2half2_rn(from[2], from[3]);
}

}  // namespace glm53
