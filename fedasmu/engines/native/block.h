// One block of samples: its memory, and its way through the layers and back.
#pragma once

#include <vector>

#include "data.h"
#include "graph.h"
#include "norm.h"
#include "pointwise.h"
#include "text.h"

namespace {

// What blocks of L samples share: the packed weights, and memory that nothing is kept in.
template <int L> struct Workspace {
  explicit Workspace(const Graph& graph)
      : packed(graph.packed_size()), sums(graph.sums_size()), scratch(scratch_size(graph)), aside(graph.largest() * L) {}

  // Before the first block of a batch, and again after every step. `lone`: there is no other block.
  void pack_weights(const Graph& graph, const float* vector, bool lone) {
    lone_ = lone;
    for (const Layer& l : graph.layers())
      if (!fleeting(l)) pack<L>(l, vector, packed.data() + l.packed);
  }

  // Whether a layer's transformed weights, and their gradient, are used so little that they are not worth keeping.
  bool fleeting(const Layer& l) const { return lone_ && l.in_one_strip(); }

  // After the last block of a batch: what has added up becomes part of the gradient.
  void settle_weights(const Graph& graph, float* gradient) {
    for (const Layer& l : graph.layers())
      if (l.tile() && !fleeting(l))
        with_winograd(l, [&](auto way) {
          winograd_gradient<decltype(way)>(l.in.channels, l.out.channels, sums.data() + l.sums, gradient + l.weight);
        });
  }

  static Index scratch_size(const Graph& graph) {
    Index most = 0;
    for (const Layer& l : graph.layers()) most = std::max({most, ::scratch_size(l, L), 4 * l.in.channels * L});
    return most;
  }

  Buffer packed, sums, scratch, aside;

 private:
  bool lone_ = false;
};

// The activations of one block of L samples, and how it runs through the layers.
template <int L> class Block {
 public:
  Block(const Graph& graph, std::vector<BatchNorm>& norms, Text* text, Workspace<L>& work)
      : graph_(graph), norms_(norms), text_(text), work_(work) {
    for (Index t = 0; t < graph.tensors(); ++t) values_.emplace_back(graph.tensor(t).size() * L);
    for (const Index size : graph.gradient_sizes()) deltas_.emplace_back(size * L);
    for (const Layer& l : graph.layers()) notes_.emplace_back(notes_size(l));
  }

  // Lanes past the end of the batch repeat its last sample; their loss has weight 0.
  void read(const float* vector, const Data& data, const Batch& batch, Index first) {
    if (text_ && data.wide)
      read_text(vector, static_cast<const Index*>(data.inputs), batch, first);
    else if (text_)
      read_text(vector, static_cast<const std::int32_t*>(data.inputs), batch, first);
    else if (data.wide)
      read_as<L>(static_cast<const float*>(data.inputs), data, batch, first, graph_.tensor(0), value(0));
    else
      read_as<L>(static_cast<const std::uint8_t*>(data.inputs), data, batch, first, graph_.tensor(0), value(0));
  }

  // Through the layers from `begin` up to `end`. `learning`: the way back will follow.
  void forward(const float* vector, const Batch& batch, Index first, Index begin, Index end, bool learning) {
    for (Index i = begin; i < end; ++i) {
      const Layer& l = layers()[i];
      const float *x = value(l.from), *w = vector + l.weight;
      const float* packed = work_.fleeting(l) ? nullptr : work_.packed.data() + l.packed;
      float *y = value(i + 1), *scratch = work_.scratch.data();
      switch (l.kind) {
        case Kind::kConvolution: convolve<L>(l, w, packed, bias_of(l, vector), x, y, scratch); break;
        case Kind::kLinear: linear<L>(l, packed, bias_of(l, vector), x, y); break;
        case Kind::kMaximum: maximum<L>(l, x, y, learning ? choice(i) : nullptr); break;
        case Kind::kFlatten: flatten<L>(l.in, x, y, false); break;
        case Kind::kDropout: drop(l, batch, first, x, y); break;
        case Kind::kAverage: average<L>(l, x, y); break;
        case Kind::kShortcut: shortcut<L>(l, x, y); break;
        case Kind::kSum: sum<L>(l, graph_.tensor(l.other), x, value(l.other), y); break;
        case Kind::kBatchNorm: norm(i).template forward<L>(x, y, scratch); break;
        case Kind::kGroupNorm: group_norm<L>(l, vector, x, y, notes_[i].data(), scratch); break;
      }
    }
  }

  // This block's part in the statistics of the batch normalisation at layer i.
  void gather(Index i, Index live) {
    norm(i).template gather<L>(value(layers()[i].from), live, work_.scratch.data());
  }
  void gather_back(Index i) {
    norm(i).template gather_back<L>(value(layers()[i].from), value(i + 1), delta(i + 1), work_.scratch.data());
  }

  // Cross-entropy, and its gradient divided by the size of the batch.
  void score(const Data& data, const Batch& batch, Index first, Score& total) {
    const Index classes = layers().back().out.channels, live = batch.live(first, L);
    const float* z = values_.back().data();
    float* d = delta(graph_.tensors() - 1);
    for (Index s = 0; s < L; ++s) {
      Index best = 0;
      for (Index c = 0; c < classes; ++c) {
        d[c * L + s] = z[c * L + s] + (batch.shift ? batch.shift[c] : 0.0f);
        if (d[c * L + s] > d[best * L + s]) best = c;
      }
      const Index target = data.targets[batch[first + std::min(s, live - 1)]];
      const float peak = d[best * L + s], wanted = d[target * L + s] - peak;
      float all = 0;
      for (Index c = 0; c < classes; ++c) {
        d[c * L + s] = std::exp(d[c * L + s] - peak);
        all += d[c * L + s];
      }
      const float weight = s < live ? 1.0f / static_cast<float>(batch.size) : 0.0f;
      for (Index c = 0; c < classes; ++c) d[c * L + s] = (d[c * L + s] / all - (c == target ? 1.0f : 0.0f)) * weight;
      if (s >= live) continue;
      total.loss += std::log(all) - wanted;
      total.correct += best == target;
    }
    if (batch.contrast) score_contrast(*batch.contrast, batch, first, total);
  }

  // The inputs of the last layer, a sample after the other.
  void features(Index live, float* to) {
    const Index count = layers().back().in.channels;
    const float* z = value(layers().back().from);
    for (Index s = 0; s < live; ++s)
      for (Index f = 0; f < count; ++f) to[s * count + f] = z[f * L + s];
  }

  // Back through the layers from `end` down to `begin`: adds to the gradient.
  void backward(const float* vector, const Batch& batch, Index first, Index begin, Index end, float* gradient) {
    for (Index i = end; i-- > begin;)
      if (graph_.way(i).used) back(i, vector, batch, first, gradient);
  }

  void backward_text(const float* vector, const Batch& batch, Index first, float* gradient) {
    text_->backward<L>(vector, first % Text::kTexts, batch.live(first, L), delta(0), gradient);
  }

 private:
  const std::vector<Layer>& layers() const { return graph_.layers(); }
  float* value(Index t) { return values_[t].data(); }
  float* delta(Index t) { return graph_.gradient_place(t) < 0 ? nullptr : deltas_[graph_.gradient_place(t)].data(); }
  std::int32_t* choice(Index i) { return reinterpret_cast<std::int32_t*>(notes_[i].data()); }
  BatchNorm& norm(Index i) { return norms_[graph_.norm(i)]; }

  // What a layer remembers for the way back: the choices of a maximum, the means and deviations of groups.
  static Index notes_size(const Layer& l) {
    if (l.kind == Kind::kMaximum) return l.out.size() * L;
    return l.kind == Kind::kGroupNorm ? 2 * l.out.channels * L : 0;
  }

  void back(Index i, const float* vector, const Batch& batch, Index first, float* gradient) {
    const Layer& l = layers()[i];
    const Way& way = graph_.way(i);
    const float *x = value(l.from), *y = value(i + 1);
    float *d = delta(i + 1), *scratch = work_.scratch.data();
    const bool fleeting = work_.fleeting(l);
    if (l.learns()) settle<L>(l, y, d, scratch, gradient);
    if (l.kind == Kind::kConvolution)
      convolve_weights<L>(l, d, x, fleeting ? nullptr : work_.sums.data() + l.sums, gradient + l.weight, scratch);
    if (l.kind == Kind::kLinear) linear_weights<L>(l, d, x, scratch, gradient + l.weight);
    if (l.kind == Kind::kSum) return back_sum(i);
    const bool contrasted = batch.contrast && i + 1 == static_cast<Index>(layers().size());
    const bool add = way.adds || contrasted;  // the contrast's gradient is there already
    const bool adding = l.learns();           // the others write aside what is to be added
    float *dx = way.deep ? delta(l.from) : nullptr, *to = dx && add && !adding ? work_.aside.data() : dx;
    if (l.kind == Kind::kGroupNorm)
      group_norm_back<L>(l, vector, x, y, notes_[i].data(), d, gradient, to, scratch);
    if (!dx) return;
    switch (l.kind) {
      case Kind::kConvolution:
        convolve_back<L>(l, vector + l.weight, fleeting ? nullptr : work_.packed.data() + l.packed + l.one_way(), d, to,
                         add, scratch);
        break;
      case Kind::kLinear: linear_back<L>(l, vector + l.weight, d, to, add); break;
      case Kind::kMaximum: maximum_back<L>(l, choice(i), d, to); break;
      case Kind::kFlatten: flatten<L>(l.in, d, to, true); break;
      case Kind::kDropout: drop(l, batch, first, d, to); break;
      case Kind::kAverage: average_back<L>(l, d, to); break;
      case Kind::kShortcut: shortcut_back<L>(l, d, to); break;
      case Kind::kBatchNorm: norm(i).template back<L>(x, d, batch.live(first, L), to, scratch); break;
      case Kind::kGroupNorm:
      case Kind::kSum: break;
    }
    if (to != dx) hand_on<L>(l.in, to, l.in, dx, true);
  }

  void back_sum(Index i) {
    const Layer& l = layers()[i];
    const Way& way = graph_.way(i);
    float* d = delta(i + 1);
    if (l.relu) mask<L>(l.out, value(i + 1), d);
    if (way.deep && delta(l.from) != d) hand_on<L>(l.out, d, l.in, delta(l.from), way.adds);
    if (way.deep_other) hand_on<L>(l.out, d, graph_.tensor(l.other), delta(l.other), way.adds_other);
  }

  // Its gradient waits where that of the last layer will be added.
  void score_contrast(const Contrast& c, const Batch& batch, Index first, Score& total) {
    const Index count = layers().back().in.channels, live = batch.live(first, L);
    const float* z = value(layers().back().from);
    float* d = delta(layers().back().from);
    std::fill_n(d, count * L, 0.0f);
    for (Index s = 0; s < live; ++s)
      total.loss += contrast<L>(c, first + s, count, static_cast<double>(batch.size), z + s, d + s);
  }

  static void drop(const Layer& l, const Batch& batch, Index first, const float* from, float* to) {
    const Index features = l.out.channels, live = batch.live(first, L);
    if (!batch.noise) {
      std::copy_n(from, features * L, to);
      return;
    }
    for (Index s = 0; s < L; ++s) {
      const float* noise = batch.noise + l.noise * batch.size + (first + std::min(s, live - 1)) * features;
      for (Index f = 0; f < features; ++f) to[f * L + s] = from[f * L + s] * noise[f];
    }
  }

  template <typename Word>
  void read_text(const float* vector, const Word* inputs, const Batch& batch, Index first) {
    if (first % Text::kTexts == 0) {
      const Index count = std::min(Text::kTexts, batch.size - first);
      const Word* texts[Text::kTexts];
      for (Index s = 0; s < count; ++s) texts[s] = inputs + batch[first + s] * text_->length();
      text_->read(vector, texts, count);
    }
    text_->forward<L>(first % Text::kTexts, batch.live(first, L), values_.front().data());
  }

  const Graph& graph_;
  std::vector<BatchNorm>& norms_;
  Text* text_;  // null: the first layer reads the data themselves
  Workspace<L>& work_;
  std::vector<Buffer> values_, deltas_, notes_;
};

}  // namespace
