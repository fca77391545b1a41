#include "cpu/pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include "core/check.h"

namespace glm53 {
namespace {

constexpr std::uint32_t kNoItem = 0xffffffffu;

void relax() { __builtin_ia32_pause(); }

std::uint32_t generation_of(std::uint64_t loop) { return static_cast<std::uint32_t>(loop >> 32); }

/* Workers must not steal the process's signals: they start with all of them blocked. */
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

void pin(std::thread& thread, std::int32_t cpu) {
  GLM53_CHECK(cpu >= 0 && cpu < CPU_SETSIZE, "cpu %d does not exist", cpu);
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  GLM53_CHECK(pthread_setaffinity_np(thread.native_handle(), sizeof set, &set) == 0,
              "cpu %d is not available to this process", cpu);
}

}  // namespace

Pool::Pool(std::uint32_t threads, const std::vector<std::int32_t>& cpus) {
  const BlockedSignals blocked;
  try {
    workers_.reserve(threads);
    for (std::uint32_t i = 1; i < threads; ++i) {
      workers_.emplace_back([this] { serve(); });
      if (!cpus.empty()) pin(workers_.back(), cpus[i]);
    }
  } catch (...) {
    stop();
    throw;
  }
}

Pool::~Pool() { stop(); }

void Pool::stop() {
  stopping_.store(true);
  loop_.fetch_add(std::uint64_t{1} << 32);
  loop_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::run_loop(std::uint32_t items, Call call, void* context) {
  if (workers_.empty() || items < 2) {
    for (std::uint32_t item = 0; item < items; ++item) call(context, item);
    return;
  }
  // Close the last loop before its fields change: a late worker then fails to claim from either.
  const std::uint32_t closed = generation_of(loop_.load(std::memory_order_relaxed)) + 1;
  const std::uint32_t generation = closed + 1;
  loop_.store(std::uint64_t{closed} << 32 | kNoItem, std::memory_order_release);
  items_.store(items, std::memory_order_release);
  call_.store(call, std::memory_order_release);
  context_.store(context, std::memory_order_release);
  finished_.store(0, std::memory_order_release);
  loop_.store(std::uint64_t{generation} << 32, std::memory_order_release);
  loop_.notify_all();
  work(generation, false);
  for (std::uint32_t polls = 0;; ++polls) {
    const std::uint32_t finished = finished_.load(std::memory_order_acquire);
    if (finished == items) return;
    if (polls < polls_.load(std::memory_order_relaxed)) {
      relax();
    } else {
      finished_.wait(finished, std::memory_order_acquire);
    }
  }
}

bool Pool::lost(Loss how) {
  return loss_.load(std::memory_order_relaxed) == how && loss_.compare_exchange_strong(how, Loss::kNone);
}

void Pool::work(std::uint32_t generation, bool worker) {
  std::uint64_t loop = loop_.load(std::memory_order_acquire);
  for (;;) {
    const std::uint32_t items = items_.load(std::memory_order_acquire);
    const Call call = call_.load(std::memory_order_acquire);
    void* const context = context_.load(std::memory_order_acquire);
    const std::uint32_t item = static_cast<std::uint32_t>(loop);
    if (generation_of(loop) != generation || item >= items) return;
    if (!loop_.compare_exchange_weak(loop, loop + 1, std::memory_order_acq_rel)) continue;
    if (worker && lost(Loss::kInJob)) {
      for (;;) pause();
    }
    call(context, item);
    if (finished_.fetch_add(1, std::memory_order_acq_rel) + 1 == items) finished_.notify_one();
    loop = loop_.load(std::memory_order_acquire);
  }
}

void Pool::serve() {
  std::uint32_t seen = 0;
  while (!stopping_.load()) {
    std::uint64_t loop = loop_.load(std::memory_order_acquire);
    for (std::uint32_t polls = 0;
         polls < polls_.load(std::memory_order_relaxed) && generation_of(loop) == seen; ++polls) {
      relax();
      loop = loop_.load(std::memory_order_acquire);
    }
    if (generation_of(loop) == seen) {
      loop_.wait(loop, std::memory_order_acquire);
      continue;
    }
    seen = generation_of(loop);
    if (lost(Loss::kBetweenJobs)) return;
    work(seen, true);
  }
}

}  // namespace glm53
