// Fast mode's other half: wait for the CPU tier without a polling kernel, then add its sum.
#include "../core/mailbox.h"
#include "check.cuh"
#include "residency.cuh"
#include "wait_value.h"

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

}  // namespace
}  // namespace glm53

extern "C" int glm53_mailbox_wait(const glm53_step* step, void* stream) {
    using namespace glm53;
    return stream_wait(stream, step->mailbox + offsetof(Mailbox, done), step->sequence, "glm53_mailbox_wait");
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
