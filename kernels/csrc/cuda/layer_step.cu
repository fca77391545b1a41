// What the host enqueues per layer of a decode step, in as few calls as can be: an operation of the driver costs the
// host 2 to 10 us, some thirty of them per layer are stock's, and in the end the GPU waits for the host.
#include "../core/expert_runs.h"
#include "abi_cuda.h"
#include "check.cuh"

namespace glm53 {
namespace {

int record(void* event, void* stream) {
    if (event == nullptr) return 0;
    return check(cudaEventRecord(static_cast<cudaEvent_t>(event), static_cast<cudaStream_t>(stream)), "cudaEventRecord");
}

int wait(void* stream, void* event) {
    return check(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(event), 0),
                 "cudaStreamWaitEvent");
}

}  // namespace
}  // namespace glm53

extern "C" int glm53_layer_begin(const glm53_residency* state, const glm53_experts* model, const glm53_step* step,
                                 const glm53_fork* fork, void* stream) {
    using namespace glm53;
    if (fork->size != sizeof(glm53_fork)) return fail("glm53_layer_begin", "the fork has another size");
    if (record(fork->routed, stream) || wait(fork->side, fork->routed) || wait(fork->side, fork->decided)) return 1;
    if (glm53_cache_step(state, step, fork->side)) return 1;
    if (record(fork->forked, fork->side) || wait(fork->copies, fork->forked)) return 1;
    if (record(fork->began, fork->copies)) return 1;
    for (int i = 0; i < fork->repeats; ++i)
        if (glm53_gather(state, fork->blocks, fork->copies)) return 1;
    if (record(fork->ended, fork->copies) || record(fork->copied, fork->copies)) return 1;
    if (glm53_experts_run(model, step, kResident, fork->side) || wait(fork->side, fork->copied)) return 1;
    if (glm53_experts_run(model, step, kArriving, fork->side)) return 1;
    return record(fork->last, fork->side) || record(fork->computed, fork->side);
}

extern "C" int glm53_layer_end(const glm53_residency* state, const glm53_experts* model, const glm53_step* step,
                               const glm53_fork* fork, float* final, void* stream) {
    using namespace glm53;
    if (wait(stream, fork->computed) || glm53_mailbox_wait(step, stream)) return 1;
    return glm53_experts_combine(state, model, step, final, stream);
}

extern "C" int glm53_look_ahead(const glm53_residency* state, const glm53_router* router, const glm53_step* step,
                                const glm53_ahead* ahead) {
    using namespace glm53;
    if (ahead->size != sizeof(glm53_ahead)) return fail("glm53_look_ahead", "the struct has another size");
    if (!step->lookahead) return fail("glm53_look_ahead", "not a look-ahead step");
    glm53_step guessed = *step;
    if (wait(ahead->stream, ahead->routed)) return 1;
    if (router != nullptr && glm53_guess(router, step->x, ahead->rows, ahead->stream)) return 1;
    if (router != nullptr && step->picks == nullptr) {
        guessed.picks = router->out;
        guessed.num_picks = router->picks;
    }
    if (wait(ahead->stream, ahead->copied) || glm53_cache_step(state, &guessed, ahead->stream)) return 1;
    return record(ahead->decided, ahead->stream);
}
