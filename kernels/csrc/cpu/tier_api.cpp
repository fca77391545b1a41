/* The C border of the CPU tier, and of the cache decision for tests on machines without a GPU. */
#include "core/clock.h"
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

int glm53_cpu_clock_step(const glm53_clock_step_args* args) {
  return guard([&] {
    check_struct(args, "clock_step args");
    GLM53_CHECK(args->num_picks >= 0 && args->num_picks <= kMaxPicks, "num_picks is %d", args->num_picks);
    GLM53_CHECK(args->slots > 0, "slots is %d", args->slots);
    const ClockResult r = clock_step(
        checked<int32_t>(args->picks, "picks"), checked<int32_t>(args->resident, "resident"), args->num_picks,
        args->experts, const_cast<uint32_t*>(checked<uint32_t>(args->referenced, "referenced")),
        const_cast<uint32_t*>(checked<uint32_t>(args->busy, "busy")), checked<int32_t>(args->owner, "owner"),
        args->slots, const_cast<int32_t*>(checked<int32_t>(args->hand, "hand")),
        ClockPolicy{args->admit_limit, args->gpu_share, args->dither},
        checked<uint32_t>(args->priority, "priority"),
        reinterpret_cast<ClockAdmission*>(const_cast<int32_t*>(checked<int32_t>(args->admissions, "admissions"))));
    int32_t* result = const_cast<int32_t*>(checked<int32_t>(args->result, "result"));
    result[0] = r.hits, result[1] = r.admitted, result[2] = r.evicted, result[3] = r.no_victim,
    result[4] = r.invalid;
  });
}

}  // extern "C"
