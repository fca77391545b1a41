// The run list of a decode step (core/expert_runs.h), made by the block that decides the step.
#pragma once
#include <cuda_fp16.h>

#include "../core/cache_policy.h"
#include "../core/expert_runs.h"
#include "abi_cuda.h"

namespace glm53 {

// What the GPU computes itself, for experts.cu. Whole block.
__device__ inline void list_runs(const glm53_step& step, const int32_t* expert, const int32_t* resident,
                                 const Admission* admissions, int admitted) {
    __shared__ int32_t place[kMostRuns];
    __shared__ bool first[kMostRuns];
    RunList* list = static_cast<RunList*>(step.runs);
    const int thread = threadIdx.x, n = step.num_picks, most_rows = n / step.per_row;
    if (thread < n) {
        place[thread] = expert[thread] >= 0 && resident[thread] >= 0 ? kResident : kElsewhere;
        for (int i = 0; i < admitted; ++i)
            if (admissions[i].expert == expert[thread]) place[thread] = kArriving;
    }
    __syncthreads();
    if (thread < n) {
        const __half weight = static_cast<const __half*>(step.weights)[thread];
        list->weight[thread] = place[thread] == kElsewhere ? 0.0f : __half2float(weight);
        first[thread] = begins_run(expert, place, thread, most_rows);
    }
    __syncthreads();
    if (thread < 2) list->count[thread] = runs_before(place, first, n, thread);
    if (thread < n && first[thread]) {
        const int32_t residents = place[thread] == kArriving ? runs_before(place, first, n, kResident) : 0;
        const int32_t at = residents + runs_before(place, first, thread, place[thread]);
        fill_run(expert, n, thread, most_rows, &list->run[at]);
    }
}

}  // namespace glm53
