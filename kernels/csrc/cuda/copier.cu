// A host thread that hands the copies of a CopyBox to the copy engine. A kernel that copies beside stock's kernels
// takes places from them, and many of them fill the card to its last place: what has none then waits for all others.
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

}  // namespace
}  // namespace glm53

// It waits for nothing on the card, because its calls and those of the thread that launches take turns: behind the
// copies the card itself writes their number to `done`. Nor does a stream wait for this thread: loading a module may
// stop its calls until the card is idle, and streams share the card's queues.
struct glm53_copier {
    glm53::CopyBox* box;
    uint64_t record_bytes;
    uint64_t done;  // device word
    int device;
    cudaStream_t stream = nullptr;
    std::atomic<uint32_t> served{0};
    std::atomic<bool> failed{false}, stopping{false};
    std::thread thread;

    bool copy(uint32_t sequence) {
        const uint32_t count = box->count < glm53::kCopyJobs ? box->count : glm53::kCopyJobs;
        for (uint32_t i = 0; i < count; ++i) {
            const glm53::CopyJob& job = box->jobs[i];
            if (glm53_copy_async(job.destination, job.source, record_bytes, stream)) return false;
        }
        return glm53::stream_write(stream, done, sequence, "the copier") == 0;
    }

    void serve() {
        cudaSetDevice(device);
        int idle = 0;
        while (!stopping.load(std::memory_order_relaxed)) {
            const uint32_t posted = __atomic_load_n(&box->posted, __ATOMIC_ACQUIRE);
            if (posted != served.load(std::memory_order_relaxed)) {
                idle = 0;
                if (!copy(posted)) failed.store(true);
                served.store(posted);
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
};

extern "C" int glm53_copier_create(uint64_t box_host, uint64_t record_bytes, uint32_t* done, glm53_copier** copier) {
    using namespace glm53;
    auto* made = new glm53_copier{};
    made->box = reinterpret_cast<CopyBox*>(box_host);
    made->record_bytes = record_bytes;
    made->done = reinterpret_cast<uint64_t>(done);
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
    made->thread = std::thread([made] { made->serve(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    *copier = made;
    return 0;
}

extern "C" int glm53_copier_destroy(glm53_copier* copier) {
    using namespace glm53;
    copier->stopping.store(true);
    copier->thread.join();
    const int status = check(cudaStreamSynchronize(copier->stream), "cudaStreamSynchronize") |
                       check(cudaStreamDestroy(copier->stream), "cudaStreamDestroy");
    delete copier;
    return status;
}

extern "C" int glm53_copier_failed(const glm53_copier* copier) { return copier->failed.load(); }

extern "C" int glm53_copier_drain(const glm53_copier* copier, int32_t limit_ms, int32_t* idle) {
    using namespace glm53;
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(limit_ms);
    const auto served = [&] { return __atomic_load_n(&copier->box->posted, __ATOMIC_ACQUIRE) == copier->served.load(); };
    while (!served() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(kNap);
    *idle = served();
    return *idle ? check(cudaStreamSynchronize(copier->stream), "cudaStreamSynchronize") : 0;
}
