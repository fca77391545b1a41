/* Which instruction set this process runs: CPUID decides, a caller may ask for less. */
#include "core/check.h"
#include "cpu/kernels.h"

namespace glm53 {
namespace {

const Kernels kScalar = {GLM53_ISA_SCALAR, kScalarExact, kScalarExact, kScalarDense};
const Kernels kAvx2 = {GLM53_ISA_AVX2, kAvx2Exact, kAvx2Fast, kAvx2Dense};
const Kernels kAvx512 = {GLM53_ISA_AVX512, kAvx512Exact, kAvx512Fast, kAvx2Dense};

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
}

}  // namespace

glm53_isa best_isa() {
  __builtin_cpu_init();
  if (!has_avx2()) return GLM53_ISA_SCALAR;
  return has_avx512() ? GLM53_ISA_AVX512 : GLM53_ISA_AVX2;
}

const Kernels& select_kernels(std::uint32_t isa) {
  const glm53_isa best = best_isa();
  if (isa == GLM53_ISA_AUTO) isa = best;
  GLM53_CHECK(isa >= GLM53_ISA_SCALAR && isa <= GLM53_ISA_AVX512, "isa %u is not one we know", isa);
  if (isa > static_cast<std::uint32_t>(best)) {
    refuse(GLM53_UNSUPPORTED, "this CPU lacks the instruction set asked for (isa %u)", isa);
  }
  return isa == GLM53_ISA_AVX512 ? kAvx512 : isa == GLM53_ISA_AVX2 ? kAvx2 : kScalar;
}

}  // namespace glm53
