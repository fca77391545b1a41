/* A persistent pool: one parallel loop at a time, shared by its workers and the calling thread.
 *
 * A loop is published as one 64-bit word (generation, next item); a worker claims an item by
 * compare-and-swap on that word, so one that wakes late can never touch a later loop by mistake, and
 * nobody waits for a worker that claimed nothing. */
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace glm53 {

class Pool {
 public:
  /* threads counts the caller. cpus is empty or has one entry per thread; entry 0 is the caller's
   * and is ignored. Refuses a cpu that this process may not use. */
  Pool(std::uint32_t threads, const std::vector<std::int32_t>& cpus);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  std::uint32_t threads() const { return static_cast<std::uint32_t>(workers_.size()) + 1; }

  /* How often a waiting thread looks again before it sleeps: the default bridges the gap between two
   * loops of one forward; more keeps workers awake (and cores busy) between forwards. */
  static constexpr std::uint32_t kDefaultPolls = 2000;
  void set_polls(std::uint32_t polls) { polls_.store(polls, std::memory_order_relaxed); }

  /* Fault injection: one worker is lost the next time it takes part. Between two jobs its thread ends;
   * in a job it claims an item and never comes back, as a thread on a dead core would. */
  enum class Loss : std::uint32_t { kNone, kBetweenJobs, kInJob };
  void lose_worker(Loss how) { loss_.store(how); }

  /* body(item) for every item in [0, items), in any order, on any thread; returns when all are done.
   * body must not throw. */
  template <class Body>
  void run(std::uint32_t items, Body& body) {
    run_loop(items, [](void* context, std::uint32_t item) { (*static_cast<Body*>(context))(item); },
             &body);
  }

 private:
  using Call = void (*)(void*, std::uint32_t);

  void run_loop(std::uint32_t items, Call call, void* context);
  void work(std::uint32_t generation, bool worker);
  bool lost(Loss how);
  void serve();
  void stop();

  std::vector<std::thread> workers_;
  alignas(64) std::atomic<std::uint64_t> loop_{0};  // generation << 32 | next item
  std::atomic<std::uint32_t> items_{0};
  std::atomic<Call> call_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<bool> stopping_{false};
  std::atomic<Loss> loss_{Loss::kNone};
  std::atomic<std::uint32_t> polls_{kDefaultPolls};
  alignas(64) std::atomic<std::uint32_t> finished_{0};
};

}  // namespace glm53
