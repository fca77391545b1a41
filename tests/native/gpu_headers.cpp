// The parts of the GPU's expert kernels that are plain C++, for ctypes.
#include "core/copy_box.h"
#include "core/expert_runs.h"
#include "core/trellis_window.h"
#include "cpu/trellis.h"

using namespace glm53;

// The state of one symbol as a lane of the GPU kernels reads it.
extern "C" uint32_t lane_state(const uint8_t* tile, int bits, int symbol) {
    const int lane = symbol / 8, n = window_symbols(bits), last = 8 * lane + (symbol % 8 / n + 1) * n - 1;
    const WindowPlace place = window_place(bits, last);
    const uint64_t pair = static_cast<uint64_t>(tile_word(tile, place.first)) << 32 | tile_word(tile, place.second);
    return window_state(pair >> place.shift, bits, last - symbol);
}

extern "C" uint32_t cpu_state(const uint8_t* tile, int bits, int symbol) { return symbol_state(tile, bits, symbol); }

// Element of a matrix instruction's 16 x 16 operand (row: output column) that register and half of a lane hold.
extern "C" int operand_row(int lane, int reg) { return lane / 4 + (reg % 2) * 8; }
extern "C" int operand_column(int lane, int reg, int half) { return 2 * (lane % 4) + half + (reg / 2) * 8; }
extern "C" int input_of(int symbol) { return symbol_row(symbol); }
extern "C" int output_of(int symbol) { return symbol_column(symbol); }

// All runs of a step, as list_runs of cache_step.cu makes them: each pick on its own.
extern "C" void list(const int32_t* expert, const int32_t* place, int32_t n, int32_t most_rows, RunList* out) {
    bool first[kMostRuns];
    for (int32_t i = 0; i < n; ++i) first[i] = begins_run(expert, place, i, most_rows);
    for (int32_t p = 0; p < 2; ++p) out->count[p] = runs_before(place, first, n, p);
    for (int32_t i = 0; i < n; ++i) {
        if (!first[i]) continue;
        const int32_t residents = place[i] == kArriving ? runs_before(place, first, n, kResident) : 0;
        fill_run(expert, n, i, most_rows, &out->run[residents + runs_before(place, first, i, place[i])]);
    }
}
extern "C" int list_bytes() { return sizeof(RunList); }
extern "C" int most_runs() { return kMostRuns; }
extern "C" int run_rows() { return kRunRows; }
extern "C" int most_slices() { return kMostSlices; }
extern "C" int box_bytes() { return sizeof(CopyBox); }
extern "C" int copy_jobs() { return kCopyJobs; }
