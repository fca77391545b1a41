#include "cpu/tier.h"

#include <signal.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "core/check.h"
#include "cpu/experts.h"

namespace glm53 {
namespace {

constexpr int kPollsBeforeNap = 200'000;  // some milliseconds: longer than a layer of decode
constexpr std::uint32_t kPoolPolls = 100'000;    // the workers stay awake between two layers
constexpr auto kNap = std::chrono::microseconds(50);
constexpr auto kTick = std::chrono::milliseconds(50);

std::uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return std::uint64_t(t.tv_sec) * 1'000'000'000u + std::uint64_t(t.tv_nsec);
}

std::uint32_t load(const std::uint32_t& word) { return __atomic_load_n(&word, __ATOMIC_ACQUIRE); }

}  // namespace

Tier::Tier(glm53_cpu& cpu, const TierShape& shape, const glm53_expert* tables, Mailbox* mailbox)
    : cpu_(cpu),
      shape_(shape),
      tables_(tables, tables + std::size_t{shape.layers} * shape.experts),
      mailbox_(mailbox) {
  cpu_.pool.set_polls(kPoolPolls);
  std::memset(static_cast<void*>(mailbox_), 0, mailbox_bytes(shape.hidden));
  sigset_t all, before;  // signals belong to the threads that expect them
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  server_ = std::thread([this] { serve(); });
  watchdog_ = std::thread([this] { watch(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

bool Tier::end() {
  stopping_.store(true);
  watchdog_.join();
  const std::uint64_t until = now_ns() + 1'000'000u * (std::uint64_t{shape_.watchdog_ms} + 1000u);
  while (!served_all_.load() && now_ns() < until) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (!served_all_.load()) {
    cpu_.abandoned.store(true);
    server_.detach();
    return false;
  }
  server_.join();
  cpu_.pool.set_polls(Pool::kDefaultPolls);
  return true;
}

TierCounters Tier::counters() const {
  return {jobs_, experts_, picks_, busy_ns_, empty_ns_, max_busy_ns_, timeouts_};
}

bool Tier::reset() {
  if (served_.load(std::memory_order_acquire) != load(mailbox_->posted)) return false;
  aborted_.store(false, std::memory_order_release);
  return true;
}

void Tier::serve() {
  int polls = 0;
  while (!stopping_.load(std::memory_order_relaxed)) {
    const std::uint32_t posted = load(mailbox_->posted);
    if (posted == served_.load(std::memory_order_relaxed)) {
      if (++polls < kPollsBeforeNap) {
        __builtin_ia32_pause();
      } else {
        std::this_thread::sleep_for(kNap);
      }
      continue;
    }
    polls = 0;
    compute(posted);
    finish(posted);
    served_.store(posted, std::memory_order_release);
  }
  served_all_.store(true);
}

/* An aborted job was finished by the watchdog already; a late result must not move `done` back. */
void Tier::finish(std::uint32_t sequence) {
  std::uint32_t seen = load(mailbox_->done);
  while (static_cast<std::int32_t>(sequence - seen) > 0 &&
         !__atomic_compare_exchange_n(&mailbox_->done, &seen, sequence, false, __ATOMIC_RELEASE,
                                      __ATOMIC_ACQUIRE)) {
  }
}

void Tier::compute(std::uint32_t) {
  const std::uint64_t started = now_ns();
  const Mailbox& box = *mailbox_;
  const std::uint32_t rows = std::min<std::uint32_t>(box.rows, kMailboxRows);
  const std::uint32_t count = std::min<std::uint32_t>(box.picks, kMailboxPicks);
  const auto* base = reinterpret_cast<const std::uint8_t*>(mailbox_);
  const auto* x = reinterpret_cast<const float*>(base + mailbox_x(shape_.hidden));
  auto* out = reinterpret_cast<float*>(reinterpret_cast<std::uint8_t*>(mailbox_) + mailbox_out(shape_.hidden));
  const std::size_t values = std::size_t{rows} * shape_.hidden;
  std::fill(out, out + values, 0.0f);
  std::vector<Pick> picks;
  picks.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) picks.push_back({box.expert[i], box.row[i], box.weight[i]});
  std::sort(picks.begin(), picks.end(), [](const Pick& a, const Pick& b) {
    return a.expert != b.expert ? a.expert < b.expert : a.row < b.row;
  });
  std::uint64_t distinct = 0;
  for (std::uint32_t i = 0; i < count; ++i) distinct += i == 0 || picks[i].expert != picks[i - 1].expert;
  if (box.layer < shape_.layers && count > 0) {
    const ExpertLayer layer{shape_.hidden,    shape_.intermediate, shape_.gate_bits,
                            shape_.up_bits,   shape_.down_bits,    shape_.act_limit,
                            tables_.data() + std::size_t{box.layer} * shape_.experts};
    const std::lock_guard lock(cpu_.mutex);
    expert_forward(cpu_.engine(), cpu_.scratch, layer, picks, x, out);
  }
  const std::uint64_t took = now_ns() - started;
  jobs_ += 1;
  experts_ += distinct;
  picks_ += count;
  busy_ns_ += took;
  if (took > max_busy_ns_.load()) max_busy_ns_.store(took);
}

void Tier::watch() {
  const std::uint32_t limit = std::max(1u, shape_.watchdog_ms / 50);
  std::uint32_t stuck_at = 0, ticks = 0;
  while (!stopping_.load(std::memory_order_relaxed)) {
    std::this_thread::sleep_for(kTick);
    const std::uint32_t posted = load(mailbox_->posted), done = load(mailbox_->done);
    if (static_cast<std::int32_t>(posted - done) <= 0 || done != stuck_at) {
      stuck_at = done;
      ticks = 0;
      continue;
    }
    // The other layers of a failed step are let go at once.
    if (++ticks < (aborted() ? 1 : limit)) continue;
    ticks = 0;
    timeouts_ += 1;
    aborted_.store(true, std::memory_order_release);
    finish(posted);
  }
}

}  // namespace glm53
