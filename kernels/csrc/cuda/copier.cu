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

namespace glm53 {
namespace {

constexpr int kPollsBeforeNap = 200'000;  // some milliseconds: longer than a layer of decode
constexpr int kNapsBeforeSleep = 20'000;  // about a second
constexpr auto kNap = std::chrono::microseconds(50);
constexpr auto kSleep = std::chrono::milliseconds(1);

}  // namespace
}  // namespace glm53

// No stream waits for these copies: loading a module may stop this thread's calls until the card is idle,
// and streams share the card's queues, so a waiting stream could wait for ever.
struct glm53_copier {
    glm53::CopyBox* box;
    uint64_t record_bytes;
    int device;
    cudaStream_t stream = nullptr;
    std::atomic<bool> failed{false}, stopping{false};
    std::thread thread;

    void copy(uint32_t sequence) {
        const uint32_t count = box->count < glm53::kCopyJobs ? box->count : glm53::kCopyJobs;
        for (uint32_t i = 0; i < count; ++i) {
            const glm53::CopyJob& job = box->jobs[i];
            if (glm53_copy_async(job.destination, job.source, record_bytes, stream)) return failed.store(true);
        }
        if (cudaStreamSynchronize(stream) != cudaSuccess) return failed.store(true);
        __atomic_store_n(&box->done, sequence, __ATOMIC_RELEASE);
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

    bool all_done() const {
        return __atomic_load_n(&box->posted, __ATOMIC_ACQUIRE) == __atomic_load_n(&box->done, __ATOMIC_ACQUIRE);
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
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(limit_ms);
    while (!(*idle = copier->all_done()) && !copier->failed.load() && std::chrono::steady_clock::now() < until)
        std::this_thread::sleep_for(glm53::kNap);
    return 0;
}
