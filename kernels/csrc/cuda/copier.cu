// A host thread that hands the copies of a CopyBox to the copy engine: unlike a copy kernel they take no
// place on the GPU from the stock kernels that run meanwhile.
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "../core/copy_box.h"
#include "abi_cuda.h"
#include "check.cuh"
#include "wait_value.h"

namespace glm53 {
namespace {

constexpr int kPollsBeforeNap = 200'000;  // some milliseconds: longer than a layer of decode
constexpr int kNapsBeforeSleep = 20'000;  // about a second
constexpr auto kNap = std::chrono::microseconds(50);
constexpr auto kSleep = std::chrono::milliseconds(1);
constexpr auto kTick = std::chrono::milliseconds(50);
constexpr uint32_t kPatienceTicks = 60;

}  // namespace
}  // namespace glm53

// Whatever waits for `done` is released by the processor, never by something in the copy stream: streams
// share the card's queues, and in the same queue that would come behind the very wait it is to end.
struct glm53_copier {
    glm53::CopyBox* box;
    uint64_t record_bytes;
    int device;
    cudaStream_t stream = nullptr;
    std::atomic<uint64_t> copies{0};
    std::atomic<bool> failed{false}, stopping{false};
    std::thread server, watchdog;

    // A step that was given up is done already; its late end must not move `done` back.
    void finish(uint32_t sequence) {
        uint32_t seen = __atomic_load_n(&box->done, __ATOMIC_ACQUIRE);
        while (static_cast<int32_t>(sequence - seen) > 0 &&
               !__atomic_compare_exchange_n(&box->done, &seen, sequence, false, __ATOMIC_RELEASE, __ATOMIC_ACQUIRE)) {
        }
    }

    void copy(uint32_t sequence) {
        const uint32_t count = box->count < glm53::kCopyJobs ? box->count : glm53::kCopyJobs;
        for (uint32_t i = 0; i < count; ++i) {
            const glm53::CopyJob& job = box->jobs[i];
            if (glm53_copy_async(job.destination, job.source, record_bytes, stream)) failed.store(true);
        }
        if (cudaStreamSynchronize(stream) != cudaSuccess) failed.store(true);
        finish(sequence);
        copies += count;
    }

    void serve() {
        cudaSetDevice(device);
        uint32_t served = 0;
        int idle = 0;
        while (!stopping.load(std::memory_order_relaxed)) {
            const uint32_t posted = __atomic_load_n(&box->posted, __ATOMIC_ACQUIRE);
            if (posted != served) {
                idle = 0;
                copy(posted);
                served = posted;
            } else if (++idle < glm53::kPollsBeforeNap) {
                __builtin_ia32_pause();
            } else if (idle < glm53::kPollsBeforeNap + glm53::kNapsBeforeSleep) {
                std::this_thread::sleep_for(glm53::kNap);
            } else {
                --idle;
                std::this_thread::sleep_for(glm53::kSleep);
            }
        }
    }

    // Without the right bytes a step is lost, but nobody may wait for ever: the engine looks at `failed`.
    // Ticks are counted, not time: a stopped process is no hang.
    void watch() {
        uint32_t stuck_at = 0, ticks = 0;
        while (!stopping.load(std::memory_order_relaxed)) {
            std::this_thread::sleep_for(glm53::kTick);
            const uint32_t posted = __atomic_load_n(&box->posted, __ATOMIC_ACQUIRE);
            const uint32_t done = __atomic_load_n(&box->done, __ATOMIC_ACQUIRE);
            if (static_cast<int32_t>(posted - done) <= 0 || done != stuck_at) {
                stuck_at = done;
                ticks = 0;
            } else if (++ticks >= (failed.load() ? 1 : glm53::kPatienceTicks)) {
                ticks = 0;
                failed.store(true);
                finish(posted);
            }
        }
    }
};

extern "C" int glm53_copier_create(uint64_t box_host, uint64_t record_bytes, glm53_copier** copier) {
    using namespace glm53;
    auto* made = new glm53_copier{};
    made->box = reinterpret_cast<CopyBox*>(box_host);
    made->record_bytes = record_bytes;
    int lowest = 0, highest = 0;  // streams of another priority have other queues
    if (check(cudaGetDevice(&made->device), "cudaGetDevice") ||
        check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange") ||
        check(cudaStreamCreateWithPriority(&made->stream, cudaStreamNonBlocking, highest), "cudaStreamCreate")) {
        delete made;
        return 1;
    }
    sigset_t all, before;  // signals belong to the threads that expect them
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    made->server = std::thread([made] { made->serve(); });
    made->watchdog = std::thread([made] { made->watch(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    *copier = made;
    return 0;
}

extern "C" int glm53_copier_destroy(glm53_copier* copier) {
    using namespace glm53;
    copier->stopping.store(true);
    copier->server.join();
    copier->watchdog.join();
    const int status = check(cudaStreamSynchronize(copier->stream), "cudaStreamSynchronize") |
                       check(cudaStreamDestroy(copier->stream), "cudaStreamDestroy");
    delete copier;
    return status;
}

extern "C" int glm53_copier_wait(uint64_t box_alias, uint32_t sequence, void* stream) {
    return glm53::stream_wait(stream, box_alias + offsetof(glm53::CopyBox, done), sequence, "glm53_copier_wait");
}

extern "C" uint64_t glm53_copier_copies(const glm53_copier* copier) { return copier->copies.load(); }
extern "C" int glm53_copier_failed(const glm53_copier* copier) { return copier->failed.load(); }
