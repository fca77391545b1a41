// Fast mode's other half: wait for the CPU tier without a polling kernel, then add its sum.
#include "../core/expert_runs.h"
#include "../core/mailbox.h"
#include "check.cuh"
#include "residency.cuh"
#include "wait_value.h"

namespace glm53 {
namespace {

constexpr int kThreads = 256;
constexpr int kFewThreads = 64;  // more blocks: each thread waits for a word per pick

__device__ void add(float4& sum, const float4& part, float weight = 1.0f) {
    sum.x += weight * part.x;
    sum.y += weight * part.y;
    sum.z += weight * part.z;
    sum.w += weight * part.w;
}

__global__ void combine(const glm53_residency state, const glm53_step step, float* __restrict__ final,
                        const int quads) {
    const int i = blockIdx.x * kThreads + threadIdx.x;
    if (*state.num_cpu == 0 || i >= quads) return;
    const float4* out = reinterpret_cast<const float4*>(step.mailbox + mailbox_out(step.hidden));
    float4 sum = reinterpret_cast<float4*>(final)[i];
    add(sum, __ldcv(out + i));
    reinterpret_cast<float4*>(final)[i] = sum;
}

// Stock's sum holds no routed expert: add the picks that the GPU computed, in their order, and the CPU's sum.
__global__ void combine_experts(const glm53_residency state, const glm53_experts model, const glm53_step step,
                                float* __restrict__ final) {
    const RunList& list = *static_cast<const RunList*>(step.runs);
    const int row = blockIdx.y, quads = model.hidden / 4, i = blockIdx.x * kFewThreads + threadIdx.x;
    if (i >= quads) return;
    float4* to = reinterpret_cast<float4*>(final) + static_cast<size_t>(row) * quads + i;
    float4 sum = *to;
    for (int pick = row * step.per_row; pick < (row + 1) * step.per_row; ++pick) {
        const float weight = list.weight[pick];
        if (weight == 0.0f) continue;
        add(sum, reinterpret_cast<const float4*>(model.y)[static_cast<size_t>(pick) * quads + i], weight);
    }
    if (*state.num_cpu != 0) {
        const float4* out = reinterpret_cast<const float4*>(step.mailbox + mailbox_out(step.hidden));
        add(sum, __ldcv(out + static_cast<size_t>(row) * quads + i));
    }
    *to = sum;
}

}  // namespace
}  // namespace glm53

extern "C" int glm53_experts_combine(const glm53_residency* state, const glm53_experts* model, const glm53_step* step,
                                     float* final, void* stream) {
    using namespace glm53;
    if (!step->runs || !step->mailbox || step->per_row <= 0) return fail("glm53_experts_combine", "not such a step");
    if (step->num_picks == 0) return 0;
    const dim3 blocks((model->hidden / 4 + kFewThreads - 1) / kFewThreads, step->num_picks / step->per_row);
    combine_experts<<<blocks, kFewThreads, 0, static_cast<cudaStream_t>(stream)>>>(*state, *model, *step, final);
    return check_launch("glm53_experts_combine");
}

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
