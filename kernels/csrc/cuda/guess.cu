// Guess the next layer's experts: its router on this layer's input, in one launch, because what a launch takes of
// the host's time is what fast mode waits for. The blocks score an expert each warp, or sixteen neighbours each
// block, as the gate lies in memory; the last one to finish names the best.
//
// It runs beside other kernels: few blocks, and no waiting for each other.
#include <cuda_fp16.h>

#include <algorithm>

#include "abi_cuda.h"
#include "check.cuh"
#include "last_block.cuh"

namespace glm53 {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kWide = 8;   // halves of one 16-byte load
constexpr int kAhead = 4;  // such loads that each thread keeps under way
constexpr int kSector = 16;  // neighbouring experts: what 32 bytes, the least that memory moves, hold
constexpr int kMostRows = 8;
constexpr int kMostExperts = 1024;
constexpr int kMostGuessed = 16;

__device__ void unpack(const uint4& packed, float (&value)[kWide]) {
    const __half2* pairs = reinterpret_cast<const __half2*>(&packed);
#pragma unroll
    for (int i = 0; i < kWide / 2; ++i) {
        const float2 pair = __half22float2(pairs[i]);
        value[2 * i] = pair.x;
        value[2 * i + 1] = pair.y;
    }
}

__device__ uint4 load_wide(const __half* from) { return __ldg(reinterpret_cast<const uint4*>(from)); }

// The best row decides. fmaxf prefers any number to a NaN: a broken row leaves the guess to the others.
template <int kRows>
__device__ void keep_score(const glm53_router& router, int expert, const float (&logit)[kRows]) {
    float best = logit[0];
#pragma unroll
    for (int r = 1; r < kRows; ++r) best = fmaxf(best, logit[r]);
    const __half* bias = static_cast<const __half*>(router.bias);
    const float score = 1.0f / (1.0f + expf(-best)) + (bias != nullptr ? __half2float(bias[expert]) : 0.0f);
    __stcg(router.scores + expert, score);
}

// A gate whose inputs are neighbours: one expert per warp. Rows beyond `rows` repeat the last one.
template <int kRows>
__device__ void score_by_warp(const glm53_router& router, const __half* __restrict__ x, int rows) {
    constexpr int kStep = 32 * kWide;
    const int expert = blockIdx.x * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (expert >= router.experts) return;
    const __half* gate = static_cast<const __half*>(router.gate) + expert * router.gate_expert_stride;
    float sum[kRows] = {};
    for (int first = lane * kWide; first < router.hidden; first += kAhead * kStep) {
        uint4 packed[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i)
            if (first + i * kStep < router.hidden) packed[i] = load_wide(gate + first + i * kStep);
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            const int input = first + i * kStep;
            if (input >= router.hidden) break;
            float weight[kWide], value[kWide];
            unpack(packed[i], weight);
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                unpack(load_wide(x + static_cast<int64_t>(min(r, rows - 1)) * router.hidden + input), value);
#pragma unroll
                for (int j = 0; j < kWide; ++j) sum[r] += weight[j] * value[j];
            }
        }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r)
        for (int offset = 16; offset > 0; offset /= 2) sum[r] += __shfl_xor_sync(0xFFFFFFFFu, sum[r], offset);
    if (lane == 0) keep_score(router, expert, sum);
}

// This thread's share of the inputs for the eight experts from `expert` on: every 128th input.
template <int kRows>
__device__ void add_inputs(const glm53_router& router, const __half* __restrict__ x, int rows, int expert,
                           float (&sum)[kRows][kWide]) {
    constexpr int kStep = kThreads / 2;
    const __half* gate = static_cast<const __half*>(router.gate) + expert;
    for (int first = threadIdx.x / 2; first < router.hidden; first += kAhead * kStep) {
        uint4 packed[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i)
            if (first + i * kStep < router.hidden)
                packed[i] = load_wide(gate + (first + i * kStep) * router.gate_input_stride);
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            const int input = first + i * kStep;
            if (input >= router.hidden) break;
            float weight[kWide];
            unpack(packed[i], weight);
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                const float value = __half2float(x[static_cast<int64_t>(min(r, rows - 1)) * router.hidden + input]);
#pragma unroll
                for (int j = 0; j < kWide; ++j) sum[r][j] += weight[j] * value;
            }
        }
    }
}

// A gate whose experts are neighbours: sixteen of them per block, eight per thread of a pair.
template <int kRows>
__device__ void score_by_sector(const glm53_router& router, const __half* __restrict__ x, int rows) {
    __shared__ float sums[kWarps][kRows][kSector];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = lane % 2 * kWide;
    const int first = blockIdx.x * kSector;
    float sum[kRows][kWide] = {};
    if (first + column < router.experts) add_inputs(router, x, rows, first + column, sum);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int j = 0; j < kWide; ++j) {
            for (int offset = 16; offset > 1; offset /= 2)  // lanes of the same column
                sum[r][j] += __shfl_xor_sync(0xFFFFFFFFu, sum[r][j], offset);
            if (lane < 2) sums[warp][r][column + j] = sum[r][j];
        }
    }
    __syncthreads();
    const int expert = first + threadIdx.x;
    if (threadIdx.x >= kSector || expert >= router.experts) return;
    float logit[kRows] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r)
        for (int w = 0; w < kWarps; ++w) logit[r] += sums[w][r][threadIdx.x];
    keep_score(router, expert, logit);
}

// Greater is better. No two experts have the same: of equal scores the lower id wins, and a NaN loses to all.
__device__ uint64_t rank_key(float score, int expert) {
    const uint32_t bits = __float_as_uint(score);
    const uint32_t ordered = isnan(score) ? 0u : bits ^ (bits >> 31 ? 0xFFFFFFFFu : 0x80000000u);
    return static_cast<uint64_t>(ordered) << 32 | ~static_cast<uint32_t>(expert);
}

// An expert's place is the number of those that are better: the places are distinct, and none stays empty.
__device__ void name_best(const glm53_router& router) {
    __shared__ uint64_t keys[kMostExperts];
    for (int e = threadIdx.x; e < router.experts; e += kThreads) keys[e] = rank_key(__ldcg(router.scores + e), e);
    __syncthreads();
    for (int e = threadIdx.x; e < router.experts; e += kThreads) {
        const uint64_t mine = keys[e];
        int better = 0;
#pragma unroll 8
        for (int other = 0; other < router.experts; ++other) better += keys[other] > mine;
        if (better < router.picks) router.out[better] = e;
    }
}

template <int kRows>
__global__ void __launch_bounds__(kThreads) guess(const glm53_router router, const __half* __restrict__ x,
                                                  const int rows) {
    if (router.gate_input_stride == 1)
        score_by_warp<kRows>(router, x, rows);
    else
        score_by_sector<kRows>(router, x, rows);
    if (comes_last(router.joined, gridDim.x)) name_best(router);
}

// Why the kernel cannot read such a router, or null.
const char* misfit(const glm53_router& router) {
    if (router.experts < 1 || router.experts > kMostExperts) return "experts out of range";
    if (router.picks < 1 || router.picks > std::min(kMostGuessed, router.experts)) return "picks out of range";
    if (router.hidden < kWide || router.hidden % kWide) return "hidden must be a multiple of 8";
    const bool rows_of_inputs = router.gate_input_stride == 1;
    if (!rows_of_inputs && router.gate_expert_stride != 1) return "one stride of the gate must be 1";
    if (!rows_of_inputs && router.experts % kWide) return "such a gate needs a multiple of 8 experts";
    const int64_t stride = rows_of_inputs ? router.gate_expert_stride : router.gate_input_stride;
    if (stride % kWide || stride < (rows_of_inputs ? router.hidden : router.experts)) return "a stride of the gate";
    if (reinterpret_cast<uintptr_t>(router.gate) % sizeof(uint4)) return "the gate is not aligned";
    return nullptr;
}

template <int kRows>
void launch(const glm53_router& router, const void* x, int rows, void* stream) {
    const int per_block = router.gate_input_stride == 1 ? kWarps : kSector;
    const int blocks = (router.experts + per_block - 1) / per_block;
    guess<kRows><<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(router, static_cast<const __half*>(x),
                                                                             rows);
}

}  // namespace
}  // namespace glm53

extern "C" int glm53_guess(const glm53_router* router, const void* x, int32_t rows, void* stream) {
    using namespace glm53;
    if (router->size != sizeof(glm53_router)) return fail("glm53_guess", "the router has another size");
    if (const char* why = misfit(*router)) return fail("glm53_guess", why);
    if (rows < 1 || rows > kMostRows) return fail("glm53_guess", "rows out of range");
    if (reinterpret_cast<uintptr_t>(x) % sizeof(uint4)) return fail("glm53_guess", "x is not aligned");
    if (rows == 1)
        launch<1>(*router, x, rows, stream);
    else if (rows == 2)
        launch<2>(*router, x, rows, stream);
    else if (rows <= 4)
        launch<4>(*router, x, rows, stream);
    else
        launch<kMostRows>(*router, x, rows, stream);
    return check_launch("glm53_guess");
}
