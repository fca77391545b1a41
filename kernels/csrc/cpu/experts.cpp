#include "cpu/experts.h"

#include <algorithm>
#include <atomic>
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

/* Counts the finished parts of each block. Who finishes the last one goes on with the block, and sees
 * what the others wrote. */
class Join {
 public:
  Join(std::size_t blocks, std::uint32_t parts) : done_(blocks), parts_(parts) {}

  bool is_last(std::size_t block) {
    return done_[block].fetch_add(1, std::memory_order_acq_rel) + 1 == parts_;
  }

 private:
  std::vector<std::atomic<std::uint32_t>> done_;
  const std::uint32_t parts_;
};

class Batch {
 public:
  Batch(const Engine& engine, Scratch& scratch, const ExpertLayer& layer, std::span<const Pick> picks)
      : engine_(engine), layer_(layer), picks_(picks), groups_(group_by_expert(picks)) {
    const std::size_t n = picks.size(), wide = layer.hidden, narrow = layer.intermediate;
    const std::size_t rotated_wide = Rotated::floats(n, wide), rotated_narrow = Rotated::floats(n, narrow);
    const std::size_t gate_floats = wide_slices() * n * narrow, y_floats = narrow_slices() * n * wide;
    gate_in_ = scratch.take(2 * rotated_wide + rotated_narrow + 2 * gate_floats + y_floats);
    up_in_ = gate_in_ + rotated_wide;
    down_in_ = up_in_ + rotated_wide;
    gate_ = down_in_ + rotated_narrow;
    up_ = gate_ + gate_floats;
    y_ = up_ + gate_floats;
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

  /* One item is one slice of gate or up, for 128 intermediate columns of one expert. The last of a
   * block's items applies the activation and the input rotation of down, which needs exactly these 128. */
  void gate_and_up() {
    const std::uint32_t blocks = layer_.intermediate / kBlock, parts = 2 * wide_slices();
    Join join(groups_.size() * blocks, parts);
    auto one_part = [&](std::uint32_t item) {
      const std::uint32_t part = item % parts, of_group = item / parts;
      const Group& group = groups_[of_group / blocks];
      const std::uint32_t block = of_group % blocks;
      const bool gate = part % 2 == 0;
      const Linear linear = gate ? layer_.gate(group.expert) : layer_.up(group.expert);
      float* y = column(gate ? gate_ : up_, group, layer_.intermediate, block);
      band_slice(engine_, linear, block, Slice::of(layer_.hidden, part / 2),
                 rotated(gate ? gate_in_ : up_in_, group, layer_.hidden),
                 y + part / 2 * picks_.size() * layer_.intermediate, layer_.intermediate);
      if (join.is_last(of_group)) finish_activation(group, block);
    };
    engine_.pool.run(static_cast<std::uint32_t>(groups_.size()) * blocks * parts, one_part);
  }

  void finish_activation(const Group& group, std::uint32_t block) {
    const std::size_t row = layer_.intermediate, slice = picks_.size() * row;
    float* gate = column(gate_, group, row, block);
    float* up = column(up_, group, row, block);
    finish_band(engine_, layer_.gate(group.expert), block, group.count, gate, row, slice);
    finish_band(engine_, layer_.up(group.expert), block, group.count, up, row, slice);
    const std::uint16_t* suh = layer_.down(group.expert).suh + block * kBlock;
    const Rotated to = rotated(down_in_, group, row);
    for (std::uint32_t r = 0; r < group.count; ++r) {
      engine_.dense.activate(gate + r * row, up + r * row, layer_.act_limit, kBlock);
      engine_.arithmetic.rotate_in(gate + r * row, suh, to.at(block, r), to.stride(), kBlock);
    }
  }

  void down() {
    const std::uint32_t blocks = layer_.hidden / kBlock, parts = narrow_slices();
    const std::size_t slice = picks_.size() * layer_.hidden;
    Join join(groups_.size() * blocks, parts);
    auto one_part = [&](std::uint32_t item) {
      const std::uint32_t part = item % parts, of_group = item / parts;
      const Group& group = groups_[of_group / blocks];
      const std::uint32_t block = of_group % blocks;
      const Linear linear = layer_.down(group.expert);
      float* y = column(y_, group, layer_.hidden, block);
      band_slice(engine_, linear, block, Slice::of(layer_.intermediate, part),
                 rotated(down_in_, group, layer_.intermediate), y + part * slice, layer_.hidden);
      if (join.is_last(of_group)) {
        finish_band(engine_, linear, block, group.count, y, layer_.hidden, slice);
      }
    };
    engine_.pool.run(static_cast<std::uint32_t>(groups_.size()) * blocks * parts, one_part);
  }

  std::uint32_t wide_slices() const { return Slice::count(layer_.hidden); }
  std::uint32_t narrow_slices() const { return Slice::count(layer_.intermediate); }

  /* A group's first row of a buffer [picks][features], at a block of its columns. */
  static float* column(float* buffer, const Group& group, std::size_t features, std::uint32_t block) {
    return buffer + group.first * features + std::size_t{block} * kBlock;
  }

  const Engine& engine_;
  const ExpertLayer& layer_;
  const std::span<const Pick> picks_;
  const std::vector<Group> groups_;
  float* gate_in_;  // rotated, per group [block][row]
  float* up_in_;
  float* down_in_;
  float* gate_;     // [slices][picks][intermediate], then the activation
  float* up_;       // [slices][picks][intermediate]
  float* y_;        // [slices][picks][hidden]
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
