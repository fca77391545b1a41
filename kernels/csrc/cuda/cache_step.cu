// One decode step of one layer: mark hits, admit misses, rewrite the pointer tables, list
// the copies, and post what the CPU computes. One block; the decision itself is core/cache_policy.h.
#include <cuda_fp16.h>

#include <algorithm>

#include "../core/copy_box.h"
#include "../core/mailbox.h"
#include "check.cuh"
#include "residency.cuh"
#include "run_list.cuh"

namespace glm53 {
namespace {

constexpr int kThreads = 256;
constexpr int kMostMeasured = 2048;  // slots whose warmth is in shared memory: 16 KiB
constexpr uint64_t kMostWaitNs = 3'000'000;  // for copies that never end: a copy takes a tenth of it
static_assert(kThreads >= kMaxPicks && kMailboxPicks >= kMaxPicks);

__device__ void vacate(const glm53_residency& state, const Admission& a) {
    if (a.evicted < 0) return;
    state.slot_of[a.evicted] = -1;
    point_tables(state, a.evicted / state.experts, a.evicted % state.experts, home_of(state, a.evicted));
}

__device__ void admit(const glm53_residency& state, int layer, const Admission& a, int job) {
    vacate(state, a);
    const int64_t key = static_cast<int64_t>(layer) * state.experts + a.expert;
    state.owner[a.slot] = static_cast<int32_t>(key);
    state.slot_of[key] = a.slot;
    point_tables(state, layer, a.expert, state.slot_address[a.slot]);
    state.jobs[job] = {home_of(state, key), state.slot_address[a.slot]};
}

__device__ uint64_t nanoseconds() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// Are the copies done that were looked ahead last? They may end beside this kernel.
__device__ bool copies_ended(const glm53_residency& state) {
    return *static_cast<const volatile uint32_t*>(state.copied) == static_cast<uint32_t>(state.pending[1]);
}

// A step that picks what is being copied waits for it: the rest of that copy is shorter than another one.
// Whole block. Nothing that the copying thread needs comes behind this kernel, and the wait is bounded.
__device__ void await_wanted(const glm53_residency& state, const glm53_step& step) {
    const int thread = threadIdx.x;
    if (state.pending[0] == 0 || step.lookahead) return;
    bool wanted = false;
    if (thread < step.num_picks && step.picks[thread] >= 0 && step.picks[thread] < state.experts) {
        const int64_t key = static_cast<int64_t>(step.layer) * state.experts + step.picks[thread];
        for (int i = 0; i < state.pending[0]; ++i) wanted |= state.pending[2 + 2 * i] == key;
    }
    wanted = __syncthreads_or(wanted);
    if (thread == 0 && wanted && !copies_ended(state)) {
        state.counters[9] += 1;
        const uint64_t until = nanoseconds() + kMostWaitNs;
        while (!copies_ended(state) && nanoseconds() < until) __nanosleep(200);
    }
}

// Copies that are done become resident; those under way stay out of everybody's way. Whole block.
__device__ void settle(const glm53_residency& state) {
    __shared__ int32_t arrived;
    const int thread = threadIdx.x;
    if (state.pending[0] == 0) return;
    if (thread == 0) {
        arrived = copies_ended(state) ? state.pending[0] : 0;
        __threadfence();  // the bytes were written before the number that was read
    }
    __syncthreads();
    if (thread < arrived) {
        const int32_t key = state.pending[2 + 2 * thread], slot = state.pending[3 + 2 * thread];
        atomicAnd(&state.locked[slot >> 5], ~(1u << (slot & 31)));
        if (state.slot_of[key] < 0) {  // or decode brought it to another slot meanwhile
            state.slot_of[key] = slot;
            state.owner[slot] = key;
            point_tables(state, key / state.experts, key % state.experts, state.slot_address[slot]);
        }
    }
    __syncthreads();
    if (thread == 0 && arrived) {
        state.pending[0] = 0;
        state.counters[8] += arrived;
    }
    __syncthreads();
}

// Hand a look-ahead step's copies to the host thread behind the copy box.
__device__ void post_copies(const glm53_step& step, const glm53_residency& state,
                            const Admission* admissions, int admitted) {
    CopyBox* box = reinterpret_cast<CopyBox*>(state.copy_box);
    const int thread = threadIdx.x;
    if (thread < admitted) {
        const Admission& a = admissions[thread];
        const int64_t key = static_cast<int64_t>(step.layer) * state.experts + a.expert;
        vacate(state, a);
        state.owner[a.slot] = -1;
        atomicOr(&state.locked[a.slot >> 5], 1u << (a.slot & 31));
        state.pending[2 + 2 * thread] = static_cast<int32_t>(key);
        state.pending[3 + 2 * thread] = a.slot;
        box->jobs[thread] = {home_of(state, key), state.slot_address[a.slot]};
    }
    if (thread == 0 && admitted) {
        state.pending[0] = admitted;
        state.pending[1] = static_cast<int32_t>(step.sequence);
        box->count = admitted;
    }
    __threadfence_system();
    __syncthreads();
    if (thread == 0 && admitted) *reinterpret_cast<volatile uint32_t*>(&box->posted) = step.sequence;
}

// The rows for the CPU, before it is known whether there is anything for it: they are long on their way.
__device__ void post_rows(const glm53_step& step) {
    const __half2* from = static_cast<const __half2*>(step.x);
    float4* to = reinterpret_cast<float4*>(step.mailbox + mailbox_x(step.hidden));
    const int quads = step.num_picks / step.per_row * static_cast<int>(step.hidden) / 4;
    for (int i = threadIdx.x; i < quads; i += kThreads) {
        const float2 a = __half22float2(from[2 * i]), b = __half22float2(from[2 * i + 1]);
        to[i] = make_float4(a.x, a.y, b.x, b.y);
    }
}

// Picks whose expert is neither resident nor admitted: they and their weights go to the mailbox,
// their weights here become 0, which the stock kernels skip without reading.
__device__ void post(const glm53_step& step, const glm53_residency& state, const int32_t* expert,
                     const int32_t* resident, const Admission* admissions, int admitted) {
    __shared__ int32_t posted;
    Mailbox* box = reinterpret_cast<Mailbox*>(step.mailbox);
    const int thread = threadIdx.x;
    if (thread == 0) posted = 0;
    __syncthreads();
    bool cpu = thread < step.num_picks && expert[thread] >= 0 && resident[thread] < 0;
    for (int i = 0; cpu && i < admitted; ++i) cpu = admissions[i].expert != expert[thread];
    if (cpu) {
        const int at = atomicAdd(&posted, 1);
        __half* weights = static_cast<__half*>(step.weights);
        box->expert[at] = expert[thread];
        box->row[at] = thread / step.per_row;
        box->weight[at] = __half2float(weights[thread]);
        if (!step.runs) weights[thread] = __float2half(0.0f);
    }
    __syncthreads();
    if (thread == 0) *state.num_cpu = posted;
    if (posted == 0) {
        if (thread == 0) {
            __threadfence_system();
            *reinterpret_cast<volatile uint32_t*>(&box->done) = step.sequence;
        }
        return;
    }
    if (thread == 0) {
        box->layer = step.layer;
        box->rows = step.num_picks / step.per_row;
        box->picks = posted;
    }
    __threadfence_system();
    __syncthreads();
    if (thread == 0) *reinterpret_cast<volatile uint32_t*>(&box->posted) = step.sequence;
}

// How many slots behind the hand the whole block measures, so that one thread can decide without reading
// device memory: a full window for every admission, and as many slots that hits keep.
int slots_to_measure(const glm53_residency& state, const glm53_step& step) {
    const int admissions = std::min(step.num_picks, step.admit_limit);
    if (admissions <= 0) return 0;
    return std::min({state.slots, kMostMeasured, kWindow * admissions + step.num_picks});
}

__global__ void cache_step(const glm53_residency state, const glm53_step step, const int measured) {
    extern __shared__ uint64_t known[];
    const int words = (state.slots + 31) / 32;
    uint32_t* busy = reinterpret_cast<uint32_t*>(known + measured);
    __shared__ int32_t expert[kMaxPicks], resident[kMaxPicks];
    __shared__ uint32_t priority[kMaxPicks];
    __shared__ Admission admissions[kMaxPicks];
    __shared__ StepResult result;
    const int thread = threadIdx.x;
    const int64_t base = static_cast<int64_t>(step.layer) * state.experts;

    if (step.mailbox) post_rows(step);
    await_wanted(state, step);
    settle(state);
    if (step.lookahead && state.pending[0] != 0) return;  // the last copies are still under way
    const uint32_t now = static_cast<uint32_t>(state.counters[6] / static_cast<uint32_t>(state.layers));
    const SlotWarmth warmth = {state.owner, state.heat, state.last, now, state.slots, known, *state.hand, measured};
    for (int w = thread; w < words; w += kThreads) busy[w] = state.locked[w];
    // From the last thread down: the first ones wait for the picks meanwhile.
    for (int i = kThreads - 1 - thread; i < measured; i += kThreads) {
        const int slot = warmth.first + i;
        known[i] = warmth.measure(slot < state.slots ? slot : slot - state.slots);
    }
    if (thread < step.num_picks) {
        const int64_t id = step.picks[thread];
        const bool valid = id >= 0 && id < state.experts;
        expert[thread] = valid ? static_cast<int32_t>(id) : -1;
        resident[thread] = valid ? state.slot_of[base + id] : -1;
        if (step.lookahead) {
            priority[thread] = kMaxPicks - thread;
        } else {
            priority[thread] = valid ? aged_heat(state.heat[base + id], now - state.last[base + id]) : 0;
        }
    }
    __syncthreads();
    // The kernels of the layer before may still read these slots.
    if (step.lookahead && thread < step.num_protected) {
        const int64_t id = step.protected_picks[thread];
        const bool valid = id >= 0 && id < state.experts;
        const int32_t slot = valid ? state.slot_of[base - state.experts + id] : -1;
        if (slot >= 0) atomicOr(&busy[slot / 32], 1u << (slot % 32));
    }
    if (!step.lookahead && thread < step.num_picks && expert[thread] >= 0) {
        const int picked = count_at_first(expert, step.num_picks, thread);
        if (picked) {
            state.heat[base + expert[thread]] = heat_after(priority[thread], picked);
            state.last[base + expert[thread]] = now;
        }
    }
    __syncthreads();
    if (thread == 0) {
        int32_t hand = warmth.first;
        const float share = step.mailbox ? step.gpu_share : 1.0f;
        const StepQuestion question = {expert, resident, priority, step.num_picks, state.experts, step.admit_limit,
                                       share, step.dither};
        result = decide(question, warmth, busy, &hand, admissions);
        *state.hand = hand;
    }
    if (thread == 0 && !step.lookahead) {
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
    if (thread < result.admitted) admissions[thread].evicted = state.owner[admissions[thread].slot];
    if (step.lookahead) return post_copies(step, state, admissions, result.admitted);
    if (step.mailbox) post(step, state, expert, resident, admissions, result.admitted);
    if (step.runs) list_runs(step, expert, resident, admissions, result.admitted);
    if (thread < result.admitted) admit(state, step.layer, admissions[thread], thread);
}

__global__ void settle_only(const glm53_residency state) { settle(state); }

}  // namespace
}  // namespace glm53

extern "C" int glm53_settle(const glm53_residency* state, void* stream) {
    glm53::settle_only<<<1, glm53::kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*state);
    return glm53::check_launch("glm53_settle");
}

extern "C" int glm53_cache_step(const glm53_residency* state, const glm53_step* step, void* stream) {
    using namespace glm53;
    if (step->size != sizeof(glm53_step)) return fail("glm53_cache_step", "step has another size");
    if (step->num_picks < 0 || step->num_picks > kMaxPicks) return fail("glm53_cache_step", "num_picks out of range");
    if (step->layer < 0 || step->layer >= state->layers) return fail("glm53_cache_step", "layer out of range");
    if (step->lookahead && (!state->copy_box || step->layer < 1 || step->admit_limit > kCopyJobs ||
                            step->num_protected < 0 || step->num_protected > kMaxPicks))
        return fail("glm53_cache_step", "a look-ahead needs a copy box, a layer before it, and a small limit");
    if (step->mailbox && (step->per_row <= 0 || step->num_picks % step->per_row || step->hidden % 8 ||
                          step->num_picks / step->per_row > kMailboxRows))
        return fail("glm53_cache_step", "rows do not fit the mailbox");
    if (step->runs && (step->lookahead || step->num_picks > kMostRuns || step->per_row <= 0 ||
                       step->num_picks % step->per_row || step->num_picks / step->per_row > kRunRows))
        return fail("glm53_cache_step", "picks do not fit the run list");
    const int measured = slots_to_measure(*state, *step);
    const size_t shared = sizeof(uint64_t) * measured + sizeof(uint32_t) * ((state->slots + 31) / 32);
    cache_step<<<1, kThreads, shared, static_cast<cudaStream_t>(stream)>>>(*state, *step, measured);
    return check_launch("glm53_cache_step");
}
