/* A set of (expert, row, weight) picks through gate, up, activation and down. */
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/linear.h"

namespace glm53 {

struct ExpertLayer {
  std::uint32_t hidden;
  std::uint32_t intermediate;
  std::uint32_t gate_bits;
  std::uint32_t up_bits;
  std::uint32_t down_bits;
  float act_limit;
  const glm53_expert* table;

  Linear gate(std::int32_t expert) const;
  Linear up(std::int32_t expert) const;
  Linear down(std::int32_t expert) const;
};

struct Pick {
  std::int32_t expert;
  std::int32_t row;
  float weight;
};

/* out[row] += weight * expert(x[row]) for each pick. Picks of one expert share each decoded tile.
 * The sum runs in expert order, so the result does not depend on the number of threads. */
void expert_forward(const Engine& engine, Scratch& scratch, const ExpertLayer& layer,
                    const std::vector<Pick>& picks, const float* x, float* out);

}  // namespace glm53
