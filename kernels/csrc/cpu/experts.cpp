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
  Batch(const Engine& engine, Scratch& scratch, const ExpertLayer& layer, std::span<const Pick> picks)
      : engine_(engine), layer_(layer), picks_(picks), groups_(group_by_expert(picks)) {
    const std::size_t n = picks.size(), wide = layer.hidden, narrow = layer.intermediate;
    const std::size_t rotated_wide = Rotated::floats(n, wide), rotated_narrow = Rotated::floats(n, narrow);
    gate_in_ = scratch.take(2 * rotated_wide + rotated_narrow + n * (wide + 2 * narrow));
    up_in_ = gate_in_ + rotated_wide;
    down_in_ = up_in_ + rotated_wide;
    gate_ = down_in_ + rotated_narrow;
    up_ = gate_ + n * narrow;
    y_ = up_ + n * narrow;
  }

  void forward(const float* x) {
    rotate_inputs(x);
    gate_and_up();
    down();
  }

  /* out[row] += weight * y, pick by pick; each item owns one column block of every row. */
  void add_to(float* out) {
    auto one_block = [&](std::uint32_t block) {
      const std::size_t column = std::size_t{block} * kBlock;
      for (std::size_t i = 0; i < picks_.size(); ++i) {
        const float* from = y_ + i * layer_.hidden + column;
        float* to = out + std::size_t(picks_[i].row) * layer_.hidden + column;
        for (std::uint32_t c = 0; c < kBlock; ++c) to[c] += picks_[i].weight * from[c];
      }
    };
    engine_.pool.run(layer_.hidden / kBlock, one_block);
  }

 private:
  /* A group's part of a buffer of rotated inputs. */
  static Rotated rotated(float* buffer, const Group& group, std::size_t features) {
    return {buffer + Rotated::floats(group.first, features), group.count};
  }

  /* One item is one group's gate or up inputs: the rows of a group are few. */
  void rotate_inputs(const float* x) {
    auto one_input = [&](std::uint32_t item) {
      const Group& group = groups_[item / 2];
      const bool gate = item % 2 == 0;
      const Linear linear = gate ? layer_.gate(group.expert) : layer_.up(group.expert);
      const Rotated to = rotated(gate ? gate_in_ : up_in_, group, layer_.hidden);
      for (std::uint32_t r = 0; r < group.count; ++r) {
        const float* row = x + std::size_t(picks_[group.first + r].row) * layer_.hidden;
        engine_.arithmetic.rotate_in(row, linear.suh, to.at(0, r), to.stride(), layer_.hidden);
      }
    };
    engine_.pool.run(2 * static_cast<std::uint32_t>(groups_.size()), one_input);
  }

  /* One item is 128 intermediate columns of one expert: gate, up, activation, and the input
   * rotation of down, which needs exactly these 128. */
  void gate_and_up() {
    const std::uint32_t blocks = layer_.intermediate / kBlock;
    auto one_band = [&](std::uint32_t item) {
      const Group& group = groups_[item / blocks];
      const std::uint32_t block = item % blocks;
      const std::size_t row = layer_.intermediate, column = std::size_t{block} * kBlock;
      float* gate = gate_ + group.first * row + column;
      float* up = up_ + group.first * row + column;
      linear_band(engine_, layer_.gate(group.expert), block, rotated(gate_in_, group, layer_.hidden), gate, row);
      linear_band(engine_, layer_.up(group.expert), block, rotated(up_in_, group, layer_.hidden), up, row);
      const std::uint16_t* suh = layer_.down(group.expert).suh + column;
      const Rotated to = rotated(down_in_, group, row);
      for (std::uint32_t r = 0; r < group.count; ++r) {
        engine_.dense.activate(gate + r * row, up + r * row, layer_.act_limit, kBlock);
        engine_.arithmetic.rotate_in(gate + r * row, suh, to.at(block, r), to.stride(), kBlock);
      }
    };
    engine_.pool.run(static_cast<std::uint32_t>(groups_.size()) * blocks, one_band);
  }

  void down() {
    const std::uint32_t blocks = layer_.hidden / kBlock;
    auto one_band = [&](std::uint32_t item) {
      const Group& group = groups_[item / blocks];
      const std::uint32_t block = item % blocks;
      float* y = y_ + group.first * std::size_t{layer_.hidden} + std::size_t{block} * kBlock;
      linear_band(engine_, layer_.down(group.expert), block,
                  rotated(down_in_, group, layer_.intermediate), y, layer_.hidden);
    };
    engine_.pool.run(static_cast<std::uint32_t>(groups_.size()) * blocks, one_band);
  }

  const Engine& engine_;
  const ExpertLayer& layer_;
  const std::span<const Pick> picks_;
  const std::vector<Group> groups_;
  float* gate_in_;  // rotated, per group [block][row]
  float* up_in_;
  float* down_in_;
  float* gate_;     // [picks][intermediate], then the activation
  float* up_;       // [picks][intermediate]
  float* y_;        // [picks][hidden]
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

void expert_forward(const Engine& engine, Scratch& scratch, const ExpertLayer& layer,
                    const std::vector<Pick>& picks, const float* x, float* out) {
  std::vector<Pick> sorted = picks;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Pick& a, const Pick& b) { return a.expert < b.expert; });
  const std::span<const Pick> all = sorted;
  for (std::size_t first = 0; first < all.size(); first += kMaxBatch) {
    Batch batch(engine, scratch, layer, all.subspan(first, std::min(kMaxBatch, all.size() - first)));
    batch.forward(x);
    batch.add_to(out);
  }
}

}  // namespace glm53
