/* The C border of libglm53_cpu.so: checks every argument, then calls; nothing is checked below. */
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "abi.h"
#include "core/check.h"
#include "cpu/experts.h"
#include "cpu/handle.h"
#include "cpu/kernels.h"
#include "cpu/linear.h"

#ifndef GLM53_SOURCE_HASH
#error "build with python -m glm53_kernels.build: it passes the hash of the sources"
#endif

thread_local char glm53::last_error[240];

namespace {

using namespace glm53;

constexpr std::uint32_t kMaxThreads = 1024;
constexpr std::uint32_t kMaxFeatures = 1u << 20;

void check_features(std::uint32_t features, const char* name) {
  GLM53_CHECK(features > 0 && features % kBlock == 0 && features <= kMaxFeatures,
              "%s is %u, not a multiple of 128 up to %u", name, features, kMaxFeatures);
}

void check_bits(std::uint32_t bits, const char* name) {
  GLM53_CHECK(bits >= 1 && bits <= 8, "%s is %u, not 1..8", name, bits);
}

Linear checked_linear(const glm53_linear* linear) {
  check_struct(linear, "linear");
  check_features(linear->in_features, "in_features");
  check_features(linear->out_features, "out_features");
  check_bits(linear->bits, "bits");
  const std::uint64_t want =
      std::uint64_t{linear->in_features} * linear->out_features / 8 * linear->bits;
  GLM53_CHECK(linear->trellis_bytes == want, "trellis has %llu bytes, %u x %u at %u bits needs %llu",
              static_cast<unsigned long long>(linear->trellis_bytes), linear->in_features,
              linear->out_features, linear->bits, static_cast<unsigned long long>(want));
  const auto* trellis = checked<std::uint16_t>(linear->trellis, "trellis");
  return {{reinterpret_cast<const std::uint8_t*>(trellis), linear->bits, linear->in_features,
           linear->out_features},
          checked<std::uint16_t>(linear->suh, "suh"),
          checked<std::uint16_t>(linear->svh, "svh")};
}

void check_expert(const glm53_expert& expert) {
  checked<std::uint16_t>(expert.gate_trellis, "gate trellis");
  checked<std::uint16_t>(expert.gate_suh, "gate suh");
  checked<std::uint16_t>(expert.gate_svh, "gate svh");
  checked<std::uint16_t>(expert.up_trellis, "up trellis");
  checked<std::uint16_t>(expert.up_suh, "up suh");
  checked<std::uint16_t>(expert.up_svh, "up svh");
  checked<std::uint16_t>(expert.down_trellis, "down trellis");
  checked<std::uint16_t>(expert.down_suh, "down suh");
  checked<std::uint16_t>(expert.down_svh, "down svh");
}

void check_no_overlap(const float* x, const float* out, std::uint64_t floats) {
  GLM53_CHECK(out + floats <= x || x + floats <= out, "x and out overlap");
}

std::vector<Pick> checked_picks(const glm53_cpu_expert_forward_args& args) {
  std::vector<Pick> picks;
  if (args.picks == 0) return picks;
  const auto* table = checked<glm53_expert>(args.table, "table");
  const auto* expert = checked<std::int32_t>(args.pick_expert, "pick_expert");
  const auto* row = checked<std::int32_t>(args.pick_row, "pick_row");
  const auto* weight = checked<float>(args.pick_weight, "pick_weight");
  picks.reserve(args.picks);
  for (std::uint32_t i = 0; i < args.picks; ++i) {
    GLM53_CHECK(expert[i] >= 0 && static_cast<std::uint32_t>(expert[i]) < args.experts,
                "pick %u names expert %d of %u", i, expert[i], args.experts);
    GLM53_CHECK(row[i] >= 0 && static_cast<std::uint32_t>(row[i]) < args.rows,
                "pick %u names row %d of %u", i, row[i], args.rows);
    check_expert(table[expert[i]]);
    picks.push_back({expert[i], row[i], weight[i]});
  }
  return picks;
}

ExpertLayer checked_layer(const glm53_cpu_expert_forward_args& args) {
  check_features(args.hidden, "hidden");
  check_features(args.intermediate, "intermediate");
  check_bits(args.gate_bits, "gate_bits");
  check_bits(args.up_bits, "up_bits");
  check_bits(args.down_bits, "down_bits");
  GLM53_CHECK(std::isfinite(args.act_limit) && args.act_limit >= 0.0f,
              "act_limit is %g, not a finite number from 0 up", static_cast<double>(args.act_limit));
  return {args.hidden, args.intermediate, args.gate_bits, args.up_bits,
          args.down_bits, args.act_limit, args.table};
}

std::unique_ptr<glm53_cpu> opened(const glm53_cpu_open_args& args) {
  GLM53_CHECK(args.threads >= 1 && args.threads <= kMaxThreads, "threads is %u, not 1..%u",
              args.threads, kMaxThreads);
  std::vector<std::int32_t> cpus;
  if (args.cpus_count != 0) {
    GLM53_CHECK(args.cpus_count == args.threads, "%u cpus for %u threads", args.cpus_count, args.threads);
    const auto* first = checked<std::int32_t>(args.cpus, "cpus");
    cpus.assign(first, first + args.cpus_count);
  }
  const bool exact = args.precision == GLM53_PRECISION_EXACT;
  GLM53_CHECK(exact || args.precision == GLM53_PRECISION_FAST, "precision %u is not one we know",
              args.precision);
  const Kernels& kernels = select_kernels(args.isa);
  return std::unique_ptr<glm53_cpu>(new glm53_cpu{
      kernels, exact ? kernels.exact : kernels.fast, {args.threads, cpus}, {}, {}, {}});
}

glm53_cpu& checked_handle(glm53_cpu* cpu) {
  GLM53_CHECK(cpu != nullptr, "the handle is null");
  return *cpu;
}

}  // namespace

uint32_t glm53_abi_version(void) { return GLM53_ABI_VERSION; }

const char* glm53_build_id(void) { return "glm53-source:" GLM53_SOURCE_HASH; }

const char* glm53_last_error(void) { return last_error; }

uint32_t glm53_struct_size(const char* name) {
  if (name == nullptr) return 0;
#define GLM53_SIZE_OF(type) \
  if (std::strcmp(name, #type) == 0) return sizeof(type)
  GLM53_SIZE_OF(glm53_linear);
  GLM53_SIZE_OF(glm53_expert);
  GLM53_SIZE_OF(glm53_cpu_open_args);
  GLM53_SIZE_OF(glm53_cpu_info);
  GLM53_SIZE_OF(glm53_cpu_linear_dequant_args);
  GLM53_SIZE_OF(glm53_cpu_linear_forward_args);
  GLM53_SIZE_OF(glm53_cpu_expert_forward_args);
  GLM53_SIZE_OF(glm53_cpu_tier_args);
  GLM53_SIZE_OF(glm53_cpu_tier_counters);
  GLM53_SIZE_OF(glm53_cache_step_args);
  GLM53_SIZE_OF(glm53_piece);
#undef GLM53_SIZE_OF
  return 0;
}

int glm53_cpu_open(const glm53_cpu_open_args* args, glm53_cpu** out) {
  return guard([&] {
    check_struct(args, "open args");
    GLM53_CHECK(out != nullptr, "out is null");
    *out = opened(*args).release();
  });
}

int glm53_cpu_close(glm53_cpu* cpu) {
  return guard([&] {
    glm53_cpu& handle = checked_handle(cpu);
    if (!handle.abandoned) delete &handle;
  });
}

int glm53_cpu_lose_worker(glm53_cpu* cpu, uint32_t in_job) {
  return guard([&] {
    glm53_cpu& handle = checked_handle(cpu);
    GLM53_CHECK(handle.pool.threads() > 1, "a pool of one thread has no worker to lose");
    handle.pool.lose_worker(in_job ? Pool::Loss::kInJob : Pool::Loss::kBetweenJobs);
  });
}

int glm53_cpu_describe(glm53_cpu* cpu, glm53_cpu_info* out) {
  return guard([&] {
    const glm53_cpu& handle = checked_handle(cpu);
    check_struct(out, "info");
    out->isa = handle.kernels.isa;
    out->threads = handle.pool.threads();
    out->best_isa = best_isa();
  });
}

int glm53_cpu_linear_dequant(glm53_cpu* cpu, const glm53_cpu_linear_dequant_args* args) {
  return guard([&] {
    glm53_cpu& handle = checked_handle(cpu);
    check_struct(args, "linear_dequant args");
    const Linear linear = checked_linear(args->linear);
    checked<float>(args->out, "out");
    const std::uint64_t want =
        std::uint64_t{linear.trellis.in_features} * linear.trellis.out_features * sizeof(float);
    GLM53_CHECK(args->out_bytes == want, "out has %llu bytes, %llu are needed",
                static_cast<unsigned long long>(args->out_bytes),
                static_cast<unsigned long long>(want));
    const std::lock_guard lock(handle.mutex);
    linear_dequant(handle.pool, handle.kernels.dense, linear, args->out);
  });
}

int glm53_cpu_linear_forward(glm53_cpu* cpu, const glm53_cpu_linear_forward_args* args) {
  return guard([&] {
    glm53_cpu& handle = checked_handle(cpu);
    check_struct(args, "linear_forward args");
    const Linear linear = checked_linear(args->linear);
    if (args->rows == 0) return;
    checked<float>(args->x, "x");
    checked<float>(args->out, "out");
    const std::lock_guard lock(handle.mutex);
    linear_forward(handle.engine(), handle.scratch, linear, args->x, args->rows, args->out);
  });
}

int glm53_cpu_expert_forward(glm53_cpu* cpu, const glm53_cpu_expert_forward_args* args) {
  return guard([&] {
    glm53_cpu& handle = checked_handle(cpu);
    check_struct(args, "expert_forward args");
    const ExpertLayer layer = checked_layer(*args);
    const std::vector<Pick> picks = checked_picks(*args);
    if (picks.empty()) return;
    checked<float>(args->x, "x");
    checked<float>(args->out, "out");
    check_no_overlap(args->x, args->out, std::uint64_t{args->rows} * args->hidden);
    const std::lock_guard lock(handle.mutex);
    expert_forward(handle.engine(), handle.scratch, layer, picks, args->x, args->out);
  });
}
