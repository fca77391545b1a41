/* The C border of the CPU tier, and of the cache decision for tests on machines without a GPU. */
#include <vector>

#include "core/cache_policy.h"
#include "cpu/tier.h"

struct glm53_cpu_tier {
  glm53::Tier tier;
};

namespace {

using namespace glm53;

}  // namespace

extern "C" {

int glm53_cpu_tier_mailbox_bytes(uint32_t hidden, uint64_t* out) {
  return guard([&] {
    GLM53_CHECK(out != nullptr, "out is null");
    *out = mailbox_bytes(hidden);
  });
}

int glm53_cpu_tier_open(glm53_cpu* cpu, const glm53_cpu_tier_args* args, glm53_cpu_tier** out) {
  return guard([&] {
    check_struct(args, "tier args");
    GLM53_CHECK(cpu != nullptr && out != nullptr, "cpu or out is null");
    GLM53_CHECK(args->hidden % 128 == 0 && args->intermediate % 128 == 0 && args->hidden > 0 &&
                    args->intermediate > 0 && args->layers > 0 && args->experts > 0,
                "a tier needs layers, experts and sizes that are multiples of 128");
    for (std::uint32_t bits : {args->gate_bits, args->up_bits, args->down_bits})
      GLM53_CHECK(bits >= 1 && bits <= 8, "bits are %u, not 1..8", bits);
    const auto* tables = checked<glm53_expert>(args->tables, "tables");
    GLM53_CHECK(reinterpret_cast<std::uintptr_t>(args->mailbox) % 64 == 0 && args->mailbox != nullptr,
                "mailbox is null or not aligned to 64 bytes");
    const TierShape shape{args->layers,    args->experts, args->hidden,    args->intermediate,
                          args->gate_bits, args->up_bits, args->down_bits, args->act_limit,
                          args->watchdog_ms};
    *out = new glm53_cpu_tier{{*cpu, shape, tables, static_cast<Mailbox*>(args->mailbox)}};
  });
}

int glm53_cpu_tier_close(glm53_cpu_tier* tier, int32_t* ended) {
  return guard([&] {
    GLM53_CHECK(tier != nullptr && ended != nullptr, "tier or ended is null");
    *ended = tier->tier.end();
    if (*ended) delete tier;
  });
}

int glm53_cpu_tier_stats(glm53_cpu_tier* tier, glm53_cpu_tier_counters* out) {
  return guard([&] {
    GLM53_CHECK(tier != nullptr, "tier is null");
    check_struct(out, "tier counters");
    const TierCounters c = tier->tier.counters();
    out->aborted = tier->tier.aborted();
    out->jobs = c.jobs;
    out->experts = c.experts;
    out->picks = c.picks;
    out->busy_ns = c.busy_ns;
    out->max_busy_ns = c.max_busy_ns;
    out->timeouts = c.timeouts;
  });
}

int glm53_cpu_tier_reset(glm53_cpu_tier* tier, int32_t* accepted) {
  return guard([&] {
    GLM53_CHECK(tier != nullptr && accepted != nullptr, "tier or accepted is null");
    *accepted = tier->tier.reset();
  });
}

int glm53_cpu_cache_step(const glm53_cache_step_args* args) {
  return guard([&] {
    check_struct(args, "cache_step args");
    const int32_t n = args->num_picks, slots = args->slots;
    GLM53_CHECK(n >= 0 && n <= kMaxPicks, "num_picks is %d", n);
    GLM53_CHECK(slots > 0, "slots is %d", slots);
    GLM53_CHECK(args->measured >= 0 && args->measured <= slots, "measured is %d of %d slots", args->measured, slots);
    const auto* picks = checked<int32_t>(args->picks, "picks");
    auto* heat = const_cast<uint32_t*>(checked<uint32_t>(args->heat, "heat"));
    auto* last = const_cast<uint32_t*>(checked<uint32_t>(args->last, "last"));
    auto* hand = const_cast<int32_t*>(checked<int32_t>(args->hand, "hand"));
    GLM53_CHECK(*hand >= 0 && *hand < slots, "hand is %d", *hand);
    std::vector<uint64_t> known(args->measured);
    const SlotWarmth warmth = {checked<int32_t>(args->owner, "owner"), heat,         last,  args->now,
                               slots,                                  known.data(), *hand, args->measured};
    for (int32_t i = 0; i < args->measured; ++i) known[i] = warmth.measure((*hand + i) % slots);
    uint32_t priority[kMaxPicks], after[kMaxPicks];
    const int64_t base = static_cast<int64_t>(args->layer) * args->experts;
    const auto counts = [&](int32_t i) { return !args->lookahead && picks[i] >= 0 && picks[i] < args->experts; };
    for (int32_t i = 0; i < n; ++i) {
      priority[i] = args->lookahead ? kMaxPicks - i : 0;
      if (counts(i)) priority[i] = aged_heat(heat[base + picks[i]], args->now - last[base + picks[i]]);
      after[i] = heat_after(priority[i], count_at_first(picks, n, i));
    }
    for (int32_t i = 0; i < n; ++i) {
      if (!counts(i) || !count_at_first(picks, n, i)) continue;
      heat[base + picks[i]] = after[i];
      last[base + picks[i]] = args->now;
    }
    const StepQuestion question = {picks,          checked<int32_t>(args->resident, "resident"),
                                   priority,       n,
                                   args->experts,  args->admit_limit,
                                   args->gpu_share, args->dither};
    auto* admissions = reinterpret_cast<Admission*>(const_cast<int32_t*>(checked<int32_t>(args->admissions, "admissions")));
    const StepResult r =
        decide(question, warmth, const_cast<uint32_t*>(checked<uint32_t>(args->busy, "busy")), hand, admissions);
    for (int32_t i = 0; i < r.admitted; ++i) admissions[i].evicted = args->owner[admissions[i].slot];
    int32_t* result = const_cast<int32_t*>(checked<int32_t>(args->result, "result"));
    result[0] = r.hits, result[1] = r.admitted, result[2] = r.evicted, result[3] = r.no_victim,
    result[4] = r.invalid;
  });
}

}  // extern "C"
