/* Which instruction set this process runs: CPUID decides, a caller may ask for less. */
#include "core/check.h"
#include "cpu/kernels.h"

namespace glm53 {

glm53_isa best_isa() { return GLM53_ISA_SCALAR; }

const Kernels& select_kernels(std::uint32_t isa) {
  if (isa == GLM53_ISA_AUTO) isa = best_isa();
  GLM53_CHECK(isa >= GLM53_ISA_SCALAR && isa <= GLM53_ISA_AVX512, "isa %u is not one we know", isa);
  if (isa > static_cast<std::uint32_t>(best_isa())) {
    refuse(GLM53_UNSUPPORTED, "this CPU or this build lacks the instruction set asked for (isa %u)", isa);
  }
  return kScalarKernels;
}

}  // namespace glm53
