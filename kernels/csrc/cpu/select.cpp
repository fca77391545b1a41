/* Which instruction set this process runs: CPUID decides, a caller may ask for less. */
#include "core/check.h"
#include "cpu/kernels.h"

namespace glm53 {

glm53_isa best_isa() {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  return avx2 ? GLM53_ISA_AVX2 : GLM53_ISA_SCALAR;
}

const Kernels& select_kernels(std::uint32_t isa) {
  const glm53_isa best = best_isa();
  if (isa == GLM53_ISA_AUTO) isa = best;
  GLM53_CHECK(isa >= GLM53_ISA_SCALAR && isa <= GLM53_ISA_AVX512, "isa %u is not one we know", isa);
  if (isa > static_cast<std::uint32_t>(best)) {
    refuse(GLM53_UNSUPPORTED, "this CPU or this build lacks the instruction set asked for (isa %u)", isa);
  }
  return isa == GLM53_ISA_AVX2 ? kAvx2Kernels : kScalarKernels;
}

}  // namespace glm53
