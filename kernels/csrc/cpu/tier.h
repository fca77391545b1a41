/* The CPU tier of fast mode: a thread that computes what the GPU posts in a Mailbox.
 *
 * The thread polls while decode is going on and naps when nothing was posted for a while. A watchdog
 * counts its own ticks without progress, so that a stopped process does not look like a hang; when it
 * gives up it releases the GPU's wait by itself, and the tier stays aborted until it is reset. */
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "core/mailbox.h"
#include "cpu/handle.h"

namespace glm53 {

struct TierShape {
  std::uint32_t layers, experts, hidden, intermediate;
  std::uint32_t gate_bits, up_bits, down_bits;
  float act_limit;
  std::uint32_t watchdog_ms;
};

struct TierCounters {
  std::uint64_t jobs, experts, picks, busy_ns, empty_ns, max_busy_ns, timeouts;
};

class Tier {
 public:
  /* tables has layers * experts entries and is copied; mailbox must outlive the tier. */
  Tier(glm53_cpu& cpu, const TierShape& shape, const glm53_expert* tables, Mailbox* mailbox);
  ~Tier() = default;
  Tier(const Tier&) = delete;
  Tier& operator=(const Tier&) = delete;

  TierCounters counters() const;
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  /* Stop both threads. False when a job did not come back in the watchdog's time: the thread that waits
   * for it goes on, so this object, the pool and the mailbox must stay where they are. Call it once. */
  bool end();
  /* Accept jobs again. False while a job that was given up is still to be computed. */
  bool reset();

 private:
  void serve();
  void watch();
  void compute(std::uint32_t sequence);
  void finish(std::uint32_t sequence);

  glm53_cpu& cpu_;
  const TierShape shape_;
  const std::vector<glm53_expert> tables_;
  Mailbox* const mailbox_;
  std::atomic<bool> stopping_{false}, aborted_{false}, served_all_{false};
  std::atomic<std::uint32_t> served_{0};  // the last job whose computation ended
  std::atomic<std::uint64_t> jobs_{0}, experts_{0}, picks_{0}, busy_ns_{0}, empty_ns_{0}, max_busy_ns_{0},
      timeouts_{0};
  std::thread server_, watchdog_;
};

}  // namespace glm53
