// The routed experts of a decode step of fast mode, computed by us: those in their slots while the others are
// copied, those others as soon as they have arrived. Stock's kernels, which exact mode uses, start once all
// are there; and they keep less of the weights under way.
//
// Two kernels: gate_up leaves act = rotate(silu(gate) * up) per pick, down leaves y per pick. Each item is a band
// (band.cuh) of a slice of the inputs; whoever finishes the last slice of a column block adds the slices up in
// their order, so results do not depend on timing.
#include <algorithm>

#include "abi_cuda.h"
#include "band.cuh"
#include "check.cuh"
#include "last_block.cuh"

namespace glm53 {
namespace {

constexpr int kBlocksPerProcessor = 3;

// Inputs `first` .. `first + count - 1` of slice `part`, in whole blocks of 128.
struct Slice {
    int first, count;
    __device__ Slice(int features, int part, int parts) {
        const int blocks = features / kBlock, begin = part * blocks / parts;
        first = begin * kBlock;
        count = (part + 1) * blocks / parts * kBlock - first;
    }
};

int slices_of(int features, int place) { return std::min(place == kArriving ? kMostSlices : kSlices, features / kBlock); }

// Of one slice, at most.
int most_inputs(int features, int slices) { return (features / kBlock + slices - 1) / slices * kBlock; }

// What a launch is about: a place, the rows of the step, and how the sums are cut.
struct Part {
    int place, rows, slices, most;
};

// Where an expert's tensor lies, from exllamav3's pointer table.
template <typename T>
__device__ const T* tensor(const uint64_t* table, int expert) {
    return reinterpret_cast<const T*>(table[expert]);
}

struct Shared {
    __half* x;       // [rows][stride]
    uint8_t* rings;  // afterwards the warps' sums: float [warps][rows][128]
    int stride;
    __device__ Shared(uint8_t* memory, int rows, int most) : stride(most + kPadding) {
        x = reinterpret_cast<__half*>(memory);
        rings = memory + sizeof(__half) * rows * stride;
    }
};

// Add the warps' sums up into partial[row of the run][128]. Whole block.
__device__ void add_warps(const float (&sum)[kBlockTiles][4], const ExpertRun& run, float* warps, float* partial,
                          int stride) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = lane / 4, row = 2 * (lane % 4);
    __syncthreads();  // the ring is read to its end
#pragma unroll
    for (int t = 0; t < kBlockTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int r = row + i % 2;
            if (r < run.rows) warps[(warp * run.rows + r) * kBlock + t * kTile + column + i / 2 * 8] = sum[t][i];
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < run.rows * kBlock; i += kBandThreads) {
        float total = 0.0f;
        for (int w = 0; w < kBandWarps; ++w) total += warps[w * run.rows * kBlock + i];
        __stcg(partial + static_cast<size_t>(run.pick[i / kBlock]) * stride + i % kBlock, total);
    }
}

// Four neighbouring columns of a pick: the slices' sum, transformed back and scaled. Whole warp.
__device__ void finish(const float* partial, size_t slice_stride, int parts, const __half* svh, float (&value)[4]) {
    float scale[4];
    load_halves(svh, scale);
    for (int j = 0; j < 4; ++j) value[j] = 0.0f;
    for (int part = 0; part < parts; ++part) {
        const float4 more = __ldcg(reinterpret_cast<const float4*>(partial + part * slice_stride));
        value[0] += more.x, value[1] += more.y, value[2] += more.z, value[3] += more.w;
    }
    hadamard(value);
    for (int j = 0; j < 4; ++j) value[j] *= scale[j];
}

// The step's inputs of one run, rotated for one projection, into shared memory. Whole block.
__device__ void rotate_inputs(const glm53_step& step, const ExpertRun& run, const __half* suh, const Slice& slice,
                              const Shared& shared) {
    const int lane = threadIdx.x % 32, blocks = slice.count / kBlock;
    for (int i = threadIdx.x / 32; i < run.rows * blocks; i += kBandWarps) {
        const int row = i / blocks, at = i % blocks * kBlock + 4 * lane;
        const __half* x = static_cast<const __half*>(step.x) + static_cast<size_t>(run.pick[row] / step.per_row) * step.hidden;
        float value[4], scale[4];
        load_halves(x + slice.first + at, value);
        load_halves(suh + slice.first + at, scale);
        for (int j = 0; j < 4; ++j) value[j] *= scale[j];
        hadamard(value);
        store_halves(value, shared.x + row * shared.stride + at);
    }
}

// act of one column block of a run: stock clamps silu(gate) from above, up on both sides.
__device__ void activate(const glm53_experts& model, const ExpertRun& run, int column, int parts) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32;
    if (row >= run.rows) return;
    const int at = column * kBlock + 4 * lane;
    const size_t whole = static_cast<size_t>(kMostRuns) * model.intermediate;
    const float* partial = model.partial + static_cast<size_t>(run.pick[row]) * model.intermediate + at;
    float gate[4], up[4], scale[4];
    finish(partial, whole, parts, tensor<__half>(model.gate_svh, run.expert) + at, gate);
    finish(partial + parts * whole, whole, parts, tensor<__half>(model.up_svh, run.expert) + at, up);
    load_halves(tensor<__half>(model.down_suh, run.expert) + at, scale);
    for (int j = 0; j < 4; ++j) {
        float silu = gate[j] / (1.0f + __expf(-gate[j]));
        if (model.act_limit != 0.0f) {
            silu = fminf(silu, model.act_limit);
            up[j] = fmaxf(-model.act_limit, fminf(up[j], model.act_limit));
        }
        gate[j] = silu * up[j] * scale[j];
    }
    hadamard(gate);
    store_halves(gate, static_cast<__half*>(model.act) + static_cast<size_t>(run.pick[row]) * model.intermediate + at);
}

template <int kBits>
__global__ void __launch_bounds__(kBandThreads)
    gate_up(const glm53_experts model, const glm53_step step, const Part cut) {
    extern __shared__ __align__(16) uint8_t memory[];
    const RunList& list = *static_cast<const RunList*>(step.runs);
    const int columns = model.intermediate / kBlock, parts = cut.slices;
    const int each = columns * 2 * parts, begin = cut.place == kArriving ? list.count[kResident] : 0;
    const Shared shared(memory, cut.rows, cut.most);
    const size_t tile_row = static_cast<size_t>(model.intermediate / kTile) * 32 * kBits;
    for (int item = blockIdx.x; item < list.count[cut.place] * each; item += gridDim.x) {
        const int of_run = item % each, part = of_run % parts, up = of_run / parts % 2, column = of_run / parts / 2;
        const int number = begin + item / each;
        const ExpertRun& run = list.run[number];
        const Slice slice(model.hidden, part, parts);
        const uint8_t* trellis = tensor<uint8_t>(up ? model.up_trellis : model.gate_trellis, run.expert);
        Band<kBits> band(trellis + slice.first / kTile * tile_row + column * kBlockTiles * 32 * kBits, tile_row,
                         slice.count / kTile, shared.rings);
        band.begin();
        rotate_inputs(step, run, tensor<__half>(up ? model.up_suh : model.gate_suh, run.expert), slice, shared);
        __syncthreads();
        float sum[kBlockTiles][4] = {};
        band.add(shared.x, shared.stride, run.rows, sum);
        float* partial = model.partial + static_cast<size_t>(up * parts + part) * kMostRuns * model.intermediate;
        add_warps(sum, run, reinterpret_cast<float*>(shared.rings), partial + column * kBlock, model.intermediate);
        if (comes_last(model.joined + number * columns + column, 2 * parts)) activate(model, run, column, parts);
        __syncthreads();
    }
}

template <int kBits>
__global__ void __launch_bounds__(kBandThreads)
    down(const glm53_experts model, const glm53_step step, const Part cut) {
    extern __shared__ __align__(16) uint8_t memory[];
    const RunList& list = *static_cast<const RunList*>(step.runs);
    const int columns = model.hidden / kBlock, parts = cut.slices, each = columns * parts;
    const int begin = cut.place == kArriving ? list.count[kResident] : 0;
    const Shared shared(memory, cut.rows, cut.most);
    const size_t tile_row = static_cast<size_t>(model.hidden / kTile) * 32 * kBits;
    const size_t whole = static_cast<size_t>(kMostRuns) * model.hidden;
    for (int item = blockIdx.x; item < list.count[cut.place] * each; item += gridDim.x) {
        const int part = item % each % parts, column = item % each / parts, number = begin + item / each;
        const ExpertRun& run = list.run[number];
        const Slice slice(model.intermediate, part, parts);
        const uint8_t* trellis = tensor<uint8_t>(model.down_trellis, run.expert);
        Band<kBits> band(trellis + slice.first / kTile * tile_row + column * kBlockTiles * 32 * kBits, tile_row,
                         slice.count / kTile, shared.rings);
        band.begin();
        for (int i = threadIdx.x; i < run.rows * slice.count / 8; i += kBandThreads) {
            const int row = i / (slice.count / 8), at = i % (slice.count / 8) * 8;
            const __half* act = static_cast<const __half*>(model.act) + static_cast<size_t>(run.pick[row]) * model.intermediate;
            *reinterpret_cast<uint4*>(shared.x + row * shared.stride + at) =
                *reinterpret_cast<const uint4*>(act + slice.first + at);
        }
        __syncthreads();
        float sum[kBlockTiles][4] = {};
        band.add(shared.x, shared.stride, run.rows, sum);
        add_warps(sum, run, reinterpret_cast<float*>(shared.rings), model.partial + part * whole + column * kBlock,
                  model.hidden);
        const int row = threadIdx.x / 32, at = column * kBlock + 4 * (threadIdx.x % 32);
        if (comes_last(model.joined + number * columns + column, parts) && row < run.rows) {
            const size_t pick = static_cast<size_t>(run.pick[row]) * model.hidden + at;
            float value[4];
            finish(model.partial + pick, whole, parts, tensor<__half>(model.down_svh, run.expert) + at, value);
            *reinterpret_cast<float4*>(model.y + pick) = make_float4(value[0], value[1], value[2], value[3]);
        }
        __syncthreads();
    }
}

using Kernel = void (*)(glm53_experts, glm53_step, Part);
constexpr Kernel kGateUp[] = {gate_up<1>, gate_up<2>, gate_up<3>, gate_up<4>,
                              gate_up<5>, gate_up<6>, gate_up<7>, gate_up<8>};
constexpr Kernel kDown[] = {down<1>, down<2>, down<3>, down<4>, down<5>, down<6>, down<7>, down<8>};

size_t shared_bytes(int bits, int rows, int most) {
    const size_t sums = sizeof(float) * kBandWarps * rows * kBlock;
    return sizeof(__half) * rows * (most + kPadding) + std::max<size_t>(ring_bytes(bits), sums);
}

int launch(Kernel kernel, int bits, int features, int columns, const glm53_experts& model, const glm53_step& step,
           int place, cudaStream_t stream) {
    const int slices = slices_of(features, place);
    const Part cut = {place, step.num_picks / step.per_row, slices, most_inputs(features, slices)};
    const int blocks = std::min(columns * slices * step.num_picks, kBlocksPerProcessor * model.processors);
    kernel<<<blocks, kBandThreads, shared_bytes(bits, cut.rows, cut.most), stream>>>(model, step, cut);
    return check_launch("glm53_experts_run");
}

}  // namespace
}  // namespace glm53

extern "C" int glm53_experts_prepare(const glm53_experts* model) {
    using namespace glm53;
    if (model->size != sizeof(glm53_experts)) return fail("glm53_experts_prepare", "the struct has another size");
    if (model->hidden <= 0 || model->hidden % kBlock || model->intermediate <= 0 || model->intermediate % kBlock)
        return fail("glm53_experts_prepare", "sizes must be multiples of 128");
    if (model->bits < 1 || model->bits > 8 || model->down_bits < 1 || model->down_bits > 8)
        return fail("glm53_experts_prepare", "bits must be 1 to 8");
    const struct { const void* kernel; int bits, features; } used[] = {
        {reinterpret_cast<const void*>(kGateUp[model->bits - 1]), model->bits, model->hidden},
        {reinterpret_cast<const void*>(kDown[model->down_bits - 1]), model->down_bits, model->intermediate},
    };
    for (const auto& one : used) {
        const int most = most_inputs(one.features, slices_of(one.features, kResident));
        const int bytes = static_cast<int>(shared_bytes(one.bits, kRunRows, most));
        if (check(cudaFuncSetAttribute(one.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                  "glm53_experts_prepare"))
            return 1;
    }
    return 0;
}

extern "C" int glm53_experts_run(const glm53_experts* model, const glm53_step* step, int32_t place, void* stream) {
    using namespace glm53;
    if (step->num_picks == 0) return 0;
    if (place != kResident && place != kArriving) return fail("glm53_experts_run", "there are two places");
    const auto on = static_cast<cudaStream_t>(stream);
    const int wide = model->intermediate / kBlock * 2, narrow = model->hidden / kBlock;
    return launch(kGateUp[model->bits - 1], model->bits, model->hidden, wide, *model, *step, place, on) ||
           launch(kDown[model->down_bits - 1], model->down_bits, model->intermediate, narrow, *model, *step, place, on);
}
