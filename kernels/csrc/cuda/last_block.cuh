// The block that finishes a job which many blocks share, without another launch.
#pragma once
#include <cuda_runtime.h>
#include <stdint.h>

namespace glm53 {

// Is this block the last of `parts` to come here? Then it sees what the others wrote, and `joined` is zero again
// for the next launch. Whole block.
__device__ inline bool comes_last(int32_t* joined, int parts) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(joined, 1) == parts - 1;
        if (last) *joined = 0;
        __threadfence();
    }
    __syncthreads();
    return last;
}

}  // namespace glm53
