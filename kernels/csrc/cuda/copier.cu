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

}  // namespace
}  // namespace glm53

struct glm53_copier {
    glm53::CopyBox* box;
    uint64_t done_alias, record_bytes;
    int device;
    cudaStream_t stream = nullptr;
    std::atomic<uint64_t> copies{0};
    std::atomic<bool> failed{false}, stopping{false};
    std::thread thread;

    // Without the right bytes the step is lost, but nobody may wait for ever: the engine looks at `failed`.
    void give_up(uint32_t sequence) {
        failed.store(true);
        __atomic_store_n(&box->done, sequence, __ATOMIC_RELEASE);
    }

    void issue(uint32_t sequence) {
        const uint32_t count = box->count < glm53::kCopyJobs ? box->count : glm53::kCopyJobs;
        for (uint32_t i = 0; i < count; ++i) {
            const glm53::CopyJob& job = box->jobs[i];
            if (glm53_copy_async(job.destination, job.source, record_bytes, stream)) return give_up(sequence);
        }
        if (glm53::stream_write(stream, done_alias, sequence, "glm53_copier")) return give_up(sequence);
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
                issue(posted);
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
};

extern "C" int glm53_copier_create(uint64_t box_host, uint64_t box_alias, uint64_t record_bytes,
                                   glm53_copier** copier) {
    using namespace glm53;
    auto* made = new glm53_copier{};
    made->box = reinterpret_cast<CopyBox*>(box_host);
    made->done_alias = box_alias + offsetof(CopyBox, done);
    made->record_bytes = record_bytes;
    if (check(cudaGetDevice(&made->device), "cudaGetDevice") ||
        check(cudaStreamCreateWithFlags(&made->stream, cudaStreamNonBlocking), "cudaStreamCreate")) {
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

extern "C" int glm53_copier_wait(uint64_t box_alias, uint32_t sequence, void* stream) {
    return glm53::stream_wait(stream, box_alias + offsetof(glm53::CopyBox, done), sequence, "glm53_copier_wait");
}

extern "C" uint64_t glm53_copier_copies(const glm53_copier* copier) { return copier->copies.load(); }
extern "C" int glm53_copier_failed(const glm53_copier* copier) { return copier->failed.load(); }
