// One decode step of one layer: mark hits, admit misses by CLOCK, rewrite the pointer tables, list
// the copies. One block; the decision itself is core/clock.h on shared memory.
#include "check.cuh"
#include "residency.cuh"

namespace glm53 {
namespace {

constexpr int kThreads = 256;

__global__ void cache_step(const glm53_residency state, const int layer, const int64_t* __restrict__ picks,
                           const int num_picks, const int admit_limit) {
    extern __shared__ uint32_t bits[];
    const int words = (state.slots + 31) / 32;
    uint32_t* referenced = bits;
    uint32_t* busy = bits + words;
    __shared__ int32_t expert[kMaxPicks], resident[kMaxPicks];
    __shared__ ClockAdmission admissions[kMaxPicks];
    __shared__ ClockResult result;
    const int thread = threadIdx.x;
    const int64_t base = static_cast<int64_t>(layer) * state.experts;

    for (int w = thread; w < words; w += kThreads) {
        referenced[w] = state.referenced[w];
        busy[w] = state.locked[w];
    }
    if (thread < num_picks) {
        const int64_t id = picks[thread];
        const bool valid = id >= 0 && id < state.experts;
        expert[thread] = valid ? static_cast<int32_t>(id) : -1;
        resident[thread] = valid ? state.slot_of[base + id] : -1;
        if (valid) atomicAdd(&state.heat[base + id], 1u);
    }
    __syncthreads();
    if (thread == 0) {
        int32_t hand = *state.hand;
        result = clock_step(expert, resident, num_picks, state.experts, referenced, busy, state.owner, state.slots,
                            &hand, admit_limit, admissions);
        *state.hand = hand;
        *state.num_jobs = result.admitted;
        uint64_t* counters = state.counters;
        counters[0] += result.hits;
        counters[1] += result.admitted + result.no_victim;
        counters[2] += result.admitted;
        counters[3] += result.evicted;
        counters[4] += result.no_victim;
        counters[5] += result.invalid;
        counters[6] += 1;
    }
    __syncthreads();
    for (int w = thread; w < words; w += kThreads) state.referenced[w] = referenced[w];
    if (thread < result.admitted) {
        const ClockAdmission a = admissions[thread];
        if (a.evicted >= 0) {
            state.slot_of[a.evicted] = -1;
            point_tables(state, a.evicted / state.experts, a.evicted % state.experts, home_of(state, a.evicted));
        }
        const int64_t key = base + a.expert;
        state.owner[a.slot] = static_cast<int32_t>(key);
        state.slot_of[key] = a.slot;
        point_tables(state, layer, a.expert, state.slot_address[a.slot]);
        state.jobs[thread] = {home_of(state, key), state.slot_address[a.slot]};
    }
}

}  // namespace
}  // namespace glm53

extern "C" int glm53_cache_step(const glm53_residency* state, int32_t layer, const int64_t* picks,
                                int32_t num_picks, int32_t admit_limit, void* stream) {
    if (num_picks < 0 || num_picks > glm53::kMaxPicks) return glm53::fail("glm53_cache_step", "num_picks out of range");
    if (layer < 0 || layer >= state->layers) return glm53::fail("glm53_cache_step", "layer out of range");
    const size_t shared = 2 * sizeof(uint32_t) * ((state->slots + 31) / 32);
    glm53::cache_step<<<1, glm53::kThreads, shared, static_cast<cudaStream_t>(stream)>>>(*state, layer, picks,
                                                                                     num_picks, admit_limit);
    return glm53::check_launch("glm53_cache_step");
}
