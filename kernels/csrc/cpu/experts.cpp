#include "cpu/experts.h"

#include <algorithm>
#include <span>

namespace glm53 {
namespace {

/* Bounds the scratch memory of a long prompt; the tiles of an expert are decoded once per batch. */
constexpr std::size_t kMaxBatch = 512;

Linear make_linear(const void* trellis, std::uint32_t bits, std::uint32_t in, std::uint32_t out,
                   const void* suh, const void* svh) {
  return {{static_cast<const std::uint8_t*>(trellis), bits, in, out},
          static_cast<const std::uint16_t*>(suh),
          static_cast<const std::uint16_t*>(svh)};
}

/* Picks first .. first+count-1 of the batch name the same expert. */
struct Group {
  std::int32_t expert;
  std::uint32_t first;
  std::uint32_t count;
};

std::vector<Group> group_by_expert(std::span<const Pick> picks) {
  std::vector<Group> groups;
  for (std::uint32_t i = 0; i < picks.size(); ++i) {
    if (groups.empty() || groups.back().expert != picks[i].expert) {
      groups.push_back({picks[i].expert, i, 0});
    }
    ++groups.back().count;
  }
  return groups;
}

class Batch {
 public:
  Batch(Pool& pool, const Kernels& kernels, Scratch& scratch, const ExpertLayer& layer,
        std::span<const Pick> picks)
      : pool_(pool), kernels_(kernels), layer_(layer), picks_(picks), groups_(group_by_expert(picks)) {
    const std::size_t n = picks.size();
    gate_in_ = scratch.take(n * (3 * std::size_t{layer.hidden} + 3 * std::size_t{layer.intermediate}));
    up_in_ = gate_in_ + n * layer.hidden;
    y_ = up_in_ + n * layer.hidden;
    gate_ = y_ + n * layer.hidden;
    up_ = gate_ + n * layer.intermediate;
    down_in_ = up_ + n * layer.intermediate;
  }

  void forward(const float* x) {
    rotate_inputs(x);
    gate_and_up();
    down();
  }

  /* out[row] += weight * y, pick by pick; each item owns one column block of every row. */
  void add_to(float* out) {
    auto one_block = [&](std::uint32_t block) {
      for (std::size_t i = 0; i < picks_.size(); ++i) {
        const float* from = y_ + i * layer_.hidden + std::size_t{block} * kBlock;
        float* to = out + std::size_t(picks_[i].row) * layer_.hidden + std::size_t{block} * kBlock;
        for (std::uint32_t c = 0; c < kBlock; ++c) to[c] += picks_[i].weight * from[c];
      }
    };
    pool_.run(layer_.hidden / kBlock, one_block);
  }

 private:
  void rotate_inputs(const float* x) {
    auto one_pick = [&](std::uint32_t item) {
      const Pick& pick = picks_[item / 2];
      const Linear linear = item % 2 == 0 ? layer_.gate(pick.expert) : layer_.up(pick.expert);
      float* to = (item % 2 == 0 ? gate_in_ : up_in_) + std::size_t{item / 2} * layer_.hidden;
      kernels_.rotate_in(x + std::size_t(pick.row) * layer_.hidden, linear.suh, to, layer_.hidden);
    };
    pool_.run(2 * static_cast<std::uint32_t>(picks_.size()), one_pick);
  }

  /* One item is 128 intermediate columns of one expert: gate, up, activation, and the input
   * rotation of down, which needs exactly these 128. */
  void gate_and_up() {
    const std::uint32_t blocks = layer_.intermediate / kBlock;
    auto one_band = [&](std::uint32_t item) {
      const Group& group = groups_[item / blocks];
      const std::uint32_t block = item % blocks;
      const std::size_t row = layer_.intermediate, column = std::size_t{block} * kBlock;
      const std::size_t in = group.first * std::size_t{layer_.hidden}, at = group.first * row + column;
      linear_band(kernels_, layer_.gate(group.expert), block, gate_in_ + in, group.count, gate_ + at, row);
      linear_band(kernels_, layer_.up(group.expert), block, up_in_ + in, group.count, up_ + at, row);
      const std::uint16_t* suh = layer_.down(group.expert).suh + column;
      for (std::size_t i = at; i < at + group.count * row; i += row) {
        kernels_.activate(gate_ + i, up_ + i, layer_.act_limit, kBlock);
        kernels_.rotate_in(gate_ + i, suh, down_in_ + i, kBlock);
      }
    };
    pool_.run(static_cast<std::uint32_t>(groups_.size()) * blocks, one_band);
  }

  void down() {
    const std::uint32_t blocks = layer_.hidden / kBlock;
    auto one_band = [&](std::uint32_t item) {
      const Group& group = groups_[item / blocks];
      const std::uint32_t block = item % blocks;
      linear_band(kernels_, layer_.down(group.expert), block,
                  down_in_ + group.first * std::size_t{layer_.intermediate}, group.count,
                  y_ + group.first * std::size_t{layer_.hidden} + std::size_t{block} * kBlock,
                  layer_.hidden);
    };
    pool_.run(static_cast<std::uint32_t>(groups_.size()) * blocks, one_band);
  }

  Pool& pool_;
  const Kernels& kernels_;
  const ExpertLayer& layer_;
  const std::span<const Pick> picks_;
  const std::vector<Group> groups_;
  float* gate_in_;   // [picks][hidden], rotated for gate
  float* up_in_;     // [picks][hidden], rotated for up
  float* y_;         // [picks][hidden]
  float* gate_;      // [picks][intermediate], then the activation
  float* up_;        // [picks][intermediate]
  float* down_in_;   // [picks][intermediate], rotated for down
};

}  // namespace

Linear ExpertLayer::gate(std::int32_t expert) const {
  const glm53_expert& e = table[expert];
  return make_linear(e.gate_trellis, gate_bits, hidden, intermediate, e.gate_suh, e.gate_svh);
}

Linear ExpertLayer::up(std::int32_t expert) const {
  const glm53_expert& e = table[expert];
  return make_linear(e.up_trellis, up_bits, hidden, intermediate, e.up_suh, e.up_svh);
}

Linear ExpertLayer::down(std::int32_t expert) const {
  const glm53_expert& e = table[expert];
  return make_linear(e.down_trellis, down_bits, intermediate, hidden, e.down_suh, e.down_svh);
}

void expert_forward(Pool& pool, const Kernels& kernels, Scratch& scratch, const ExpertLayer& layer,
                    const std::vector<Pick>& picks, const float* x, float* out) {
  std::vector<Pick> sorted = picks;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Pick& a, const Pick& b) { return a.expert < b.expert; });
  const std::span<const Pick> all = sorted;
  for (std::size_t first = 0; first < all.size(); first += kMaxBatch) {
    Batch batch(pool, kernels, scratch, layer, all.subspan(first, std::min(kMaxBatch, all.size() - first)));
    batch.forward(x);
    batch.add_to(out);
  }
}

}  // namespace glm53
