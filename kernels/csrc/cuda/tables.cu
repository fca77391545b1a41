// Whole-table edits outside the decode step: rebuild, evict, adopt, verify.
#include "check.cuh"
#include "residency.cuh"

namespace glm53 {
namespace {

constexpr int kThreads = 256;

__global__ void tables_rebuild(const glm53_residency state, const int first_layer, const uint64_t* overrides) {
    const int layer = first_layer + blockIdx.x;
    for (int expert = threadIdx.x; expert < state.experts; expert += kThreads) {
        const int64_t key = static_cast<int64_t>(layer) * state.experts + expert;
        const uint64_t override_address = overrides ? overrides[key] : 0;
        point_tables(state, layer, expert, override_address ? override_address : residence_of(state, key));
    }
}

// One block, so that two slots of one bitset word are never edited at the same time.
__global__ void slots_evict(const glm53_residency state, const int first, const int count, const int lock) {
    for (int slot = first + threadIdx.x; slot < first + count; slot += kThreads) {
        const int32_t key = state.owner[slot];
        if (key >= 0) {
            state.slot_of[key] = -1;
            state.owner[slot] = -1;
            point_tables(state, key / state.experts, key % state.experts, home_of(state, key));
        }
        const uint32_t bit = 1u << (slot & 31);
        if (lock) {
            atomicOr(&state.locked[slot >> 5], bit);
        } else {
            atomicAnd(&state.locked[slot >> 5], ~bit);
        }
    }
}

__global__ void slots_adopt(const glm53_residency state, const int first, const int count, const int32_t* keys) {
    for (int i = threadIdx.x; i < count; i += kThreads) {
        const int slot = first + i;
        const int32_t key = keys[i];
        // An expert that decode admitted elsewhere meanwhile keeps that slot.
        if (key < 0 || state.slot_of[key] >= 0 || state.owner[slot] >= 0) continue;
        state.owner[slot] = key;
        state.slot_of[key] = slot;
        point_tables(state, key / state.experts, key % state.experts, state.slot_address[slot]);
    }
}

__global__ void verify_slots(const glm53_residency state) {
    const int slot = blockIdx.x;
    const int32_t key = state.owner[slot];
    if (key < 0) return;
    const uint4* home = reinterpret_cast<const uint4*>(home_of(state, key));
    const uint4* copy = reinterpret_cast<const uint4*>(state.slot_address[slot]);
    bool bad = threadIdx.x == 0 && state.slot_of[key] != slot;
    for (uint64_t w = threadIdx.x; w < state.record_bytes / sizeof(uint4); w += kThreads) {
        const uint4 a = home[w], b = copy[w];
        bad |= a.x != b.x || a.y != b.y || a.z != b.z || a.w != b.w;
    }
    if (__syncthreads_or(bad) && threadIdx.x == 0)
        atomicAdd(reinterpret_cast<unsigned long long*>(&state.counters[7]), 1ull);
}

__global__ void verify_tables(const glm53_residency state) {
    const int layer = blockIdx.x;
    for (int expert = threadIdx.x; expert < state.experts; expert += kThreads) {
        const int64_t key = static_cast<int64_t>(layer) * state.experts + expert;
        const uint64_t record = residence_of(state, key);
        const uint64_t* tables = state.tables + 3 * layer;
        const bool bad = reinterpret_cast<const uint64_t*>(tables[0])[expert] != record ||
                         reinterpret_cast<const uint64_t*>(tables[1])[expert] != record + state.up_offset ||
                         reinterpret_cast<const uint64_t*>(tables[2])[expert] != record + state.down_offset;
        if (bad) atomicAdd(reinterpret_cast<unsigned long long*>(&state.counters[7]), 1ull);
    }
}

}  // namespace
}  // namespace glm53

using namespace glm53;

extern "C" int glm53_tables_rebuild(const glm53_residency* state, int32_t first_layer, int32_t num_layers,
                                    const uint64_t* overrides, void* stream) {
    if (first_layer < 0 || num_layers <= 0 || first_layer + num_layers > state->layers)
        return fail("glm53_tables_rebuild", "layer range outside the model");
    tables_rebuild<<<num_layers, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*state, first_layer, overrides);
    return check_launch("glm53_tables_rebuild");
}

extern "C" int glm53_slots_evict(const glm53_residency* state, int32_t first, int32_t count, int32_t lock,
                                 void* stream) {
    if (first < 0 || count <= 0 || first + count > state->slots) return fail("glm53_slots_evict", "slot range");
    slots_evict<<<1, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*state, first, count, lock);
    return check_launch("glm53_slots_evict");
}

extern "C" int glm53_slots_adopt(const glm53_residency* state, int32_t first, int32_t count, const int32_t* keys,
                                 void* stream) {
    if (first < 0 || count <= 0 || first + count > state->slots) return fail("glm53_slots_adopt", "slot range");
    slots_adopt<<<1, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*state, first, count, keys);
    return check_launch("glm53_slots_adopt");
}

extern "C" int glm53_verify(const glm53_residency* state, void* stream) {
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    if (state->slots > 0) verify_slots<<<state->slots, kThreads, 0, s>>>(*state);
    verify_tables<<<state->layers, kThreads, 0, s>>>(*state);
    return check_launch("glm53_verify");
}
