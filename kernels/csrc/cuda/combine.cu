// Fast mode's other half: wait for the CPU tier without a polling kernel, then add its sum.
#include <cuda.h>

#include "../core/mailbox.h"
#include "check.cuh"
#include "residency.cuh"

namespace glm53 {
namespace {

constexpr int kThreads = 256;

__global__ void combine(const glm53_residency state, const glm53_step step, float* __restrict__ final,
                        const int quads) {
    const int i = blockIdx.x * kThreads + threadIdx.x;
    if (*state.num_cpu == 0 || i >= quads) return;
    const float4* out = reinterpret_cast<const float4*>(step.mailbox + mailbox_out(step.hidden));
    float4 sum = reinterpret_cast<float4*>(final)[i];
    const float4 part = __ldcv(out + i);
    sum.x += part.x;
    sum.y += part.y;
    sum.z += part.z;
    sum.w += part.w;
    reinterpret_cast<float4*>(final)[i] = sum;
}

using WaitValue = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);

WaitValue find_wait_value() {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t status =
        cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &function, 12000, cudaEnableDefault, &found);
    if (status != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
    return reinterpret_cast<WaitValue>(function);
}

}  // namespace
}  // namespace glm53

extern "C" int glm53_mailbox_wait(const glm53_step* step, void* stream) {
    using namespace glm53;
    static const WaitValue wait_value = find_wait_value();
    if (wait_value == nullptr) return fail("glm53_mailbox_wait", "this driver has no cuStreamWaitValue32");
    const CUdeviceptr address = step->mailbox + offsetof(Mailbox, done);
    const CUresult status =
        wait_value(static_cast<CUstream>(stream), address, step->sequence, CU_STREAM_WAIT_VALUE_GEQ);
    return status == CUDA_SUCCESS ? 0 : fail("glm53_mailbox_wait", "cuStreamWaitValue32 was refused");
}

extern "C" int glm53_combine(const glm53_residency* state, const glm53_step* step, float* final, void* stream) {
    using namespace glm53;
    if (step->per_row <= 0 || step->hidden % 4) return fail("glm53_combine", "per_row or hidden");
    const int quads = step->num_picks / step->per_row * static_cast<int>(step->hidden) / 4;
    if (quads == 0) return 0;
    combine<<<(quads + kThreads - 1) / kThreads, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*state, *step,
                                                                                                final, quads);
    return check_launch("glm53_combine");
}
