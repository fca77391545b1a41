// Move the admitted records from pinned host memory into their slots, at the link's rate: many
// 16-byte loads in flight per block, no host involvement, the job count read on the device.
#include "check.cuh"
#include "residency.cuh"

namespace glm53 {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 8;
constexpr uint64_t kChunk = static_cast<uint64_t>(kThreads) * kUnroll;  // in 16-byte words: 32 KiB

__global__ void __launch_bounds__(kThreads) gather(const glm53_residency state) {
    const uint64_t words = state.record_bytes / sizeof(uint4);
    const uint64_t chunks = (words + kChunk - 1) / kChunk;
    const uint64_t total = chunks * static_cast<uint64_t>(*state.num_jobs);
    for (uint64_t item = blockIdx.x; item < total; item += gridDim.x) {
        const glm53_copy_job job = state.jobs[item / chunks];
        const uint4* source = reinterpret_cast<const uint4*>(job.source);
        uint4* destination = reinterpret_cast<uint4*>(job.destination);
        const uint64_t first = (item % chunks) * kChunk + threadIdx.x;
        uint4 value[kUnroll];
#pragma unroll
        for (int i = 0; i < kUnroll; ++i)
            if (first + i * kThreads < words) value[i] = __ldcs(source + first + i * kThreads);
#pragma unroll
        for (int i = 0; i < kUnroll; ++i)
            if (first + i * kThreads < words) destination[first + i * kThreads] = value[i];
    }
}

}  // namespace
}  // namespace glm53

extern "C" int glm53_gather(const glm53_residency* state, int32_t blocks, void* stream) {
    if (blocks <= 0) return glm53::fail("glm53_gather", "blocks must be positive");
    glm53::gather<<<blocks, glm53::kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*state);
    return glm53::check_launch("glm53_gather");
}
