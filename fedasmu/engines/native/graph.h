// How the layers hang together: who reads which tensor, what needs a gradient and where it is kept.
// Tensor 0 is the input, tensor i + 1 what layer i writes.
#pragma once

#include <vector>

#include "passes.h"

namespace {

// What a layer does on the way back.
struct Way {
  bool used = false;                      // anything at all: it has parameters, or something before it has
  bool deep = false, deep_other = false;  // it hands a gradient on to the first, to the second of its inputs
  bool adds = false, adds_other = false;  // to what a later reader of that input has left there
};

class Graph {
 public:
  // `learned`: the input itself is made of parameters, so it needs a gradient.
  Graph(const Description* descriptions, Index count, bool learned) {
    for (Index i = 0; i < count; ++i) layers_.push_back(layer_of(descriptions[i]));
    place_tensors(descriptions);
    find_ways(learned);
    place_gradients();
    cuts_.push_back(0);
    for (Index i = 0; i < count; ++i) {
      if (i > 0) layers_[i].packed = layers_[i - 1].packed + layers_[i - 1].packed_size();
      if (i > 0) layers_[i].sums = layers_[i - 1].sums + layers_[i - 1].sums_size();
      if (i > 0) layers_[i].noise = layers_[i - 1].noise_after();
      if (layers_[i].kind == Kind::kBatchNorm) cuts_.push_back(i);
    }
    cuts_.push_back(count);
  }

  const std::vector<Layer>& layers() const { return layers_; }
  const Map& tensor(Index t) const { return tensors_[t]; }
  Index tensors() const { return static_cast<Index>(tensors_.size()); }
  const Way& way(Index layer) const { return ways_[layer]; }

  // Between two cuts a block of samples goes on alone; at a cut it waits for the others of its batch, since the layer
  // that begins there, a batch normalisation, needs them all.
  const std::vector<Index>& cuts() const { return cuts_; }
  bool cut() const { return cuts_.size() > 2; }
  Index norm(Index layer) const {  // which of the batch normalisations it is
    return std::find(cuts_.begin() + 1, cuts_.end(), layer) - cuts_.begin() - 1;
  }

  // Gradients live from the last reader of their tensor to its writer; then another takes their place.
  const std::vector<Index>& gradient_sizes() const { return sizes_; }
  Index gradient_place(Index t) const { return places_[t]; }  // -1: it has none
  Index packed_size() const { return layers_.back().packed + layers_.back().packed_size(); }
  Index sums_size() const { return layers_.back().sums + layers_.back().sums_size(); }
  Index largest() const {
    Index most = 0;
    for (const Map& map : tensors_) most = std::max(most, map.size());
    return most;
  }

 private:
  static Layer layer_of(const Description& d) {
    return {d.kind,       d.from,      d.other,     {d.in[0], d.in[1], d.in[2]}, {d.out[0], d.out[1], d.out[2]},
            d.kernel[0],  d.kernel[1], d.stride[0], d.stride[1],                 d.padding[0],
            d.padding[1], d.weight,    d.bias,      d.mean,                      d.variance,
            d.groups,     d.front,     d.relu != 0, d.eps,                       d.momentum};
  }

  static bool pointwise(const Layer& l) {
    return l.kind == Kind::kSum || l.kind == Kind::kBatchNorm || l.kind == Kind::kGroupNorm;
  }

  // A tensor has the ring of zeros that its readers want, and what goes in and out of a pointwise layer has the same.
  void place_tensors(const Description* descriptions) {
    tensors_.push_back(layers_.front().in);
    for (const Layer& l : layers_) tensors_.push_back(l.out);
    for (Index i = static_cast<Index>(layers_.size()); i-- > 0;) {
      const Layer& l = layers_[i];
      const Index* own = descriptions[i].padding;
      widen(tensors_[l.from], {0, 0, 0, own[0], own[1], own[2], own[3]});
      if (!pointwise(l)) continue;
      widen(tensors_[l.from], tensors_[i + 1]);
      if (l.other >= 0) widen(tensors_[l.other], tensors_[i + 1]);
    }
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      layers_[i].in = tensors_[layers_[i].from];
      layers_[i].out = tensors_[i + 1];
    }
  }

  static void widen(Map& map, const Map& ring) {
    map.top = std::max(map.top, ring.top);
    map.left = std::max(map.left, ring.left);
    map.bottom = std::max(map.bottom, ring.bottom);
    map.right = std::max(map.right, ring.right);
  }

  void find_ways(bool learned) {
    std::vector<bool> needed(tensors_.size()), written(tensors_.size());
    needed[0] = learned;
    ways_.resize(layers_.size());
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const Layer& l = layers_[i];
      ways_[i].deep = needed[l.from];
      ways_[i].deep_other = l.other >= 0 && needed[l.other];
      needed[i + 1] = ways_[i].used = l.weight >= 0 || l.bias >= 0 || ways_[i].deep || ways_[i].deep_other;
    }
    for (std::size_t i = layers_.size(); i-- > 0;) {
      const Layer& l = layers_[i];
      ways_[i].adds = written[l.from];
      written[l.from] = written[l.from] || ways_[i].deep;
      if (l.other < 0) continue;
      ways_[i].adds_other = written[l.other];
      written[l.other] = written[l.other] || ways_[i].deep_other;
    }
  }

  void place_gradients() {
    std::vector<Index> readers(tensors_.size()), spare;
    for (const Layer& l : layers_) {
      ++readers[l.from];
      if (l.other >= 0) ++readers[l.other];
    }
    places_.assign(tensors_.size(), -1);
    place_gradient(tensors() - 1, spare);
    for (Index i = static_cast<Index>(layers_.size()); i-- > 0;) {
      const Layer& l = layers_[i];
      if (!ways_[i].used) continue;
      // A pointwise layer's input alone wants to know its gradient: it is left where it came in.
      const bool shared = pointwise(l) && ways_[i].deep && readers[l.from] == 1 && l.in == l.out;
      if (ways_[i].deep_other) place_gradient(l.other, spare);
      if (shared)
        places_[l.from] = places_[i + 1];
      else {
        if (ways_[i].deep) place_gradient(l.from, spare);
        spare.push_back(places_[i + 1]);
      }
    }
  }

  void place_gradient(Index t, std::vector<Index>& spare) {
    if (places_[t] >= 0) return;
    if (spare.empty()) {
      spare.push_back(static_cast<Index>(sizes_.size()));
      sizes_.push_back(0);
    }
    places_[t] = spare.back();
    spare.pop_back();
    sizes_[places_[t]] = std::max(sizes_[places_[t]], tensors_[t].size());
  }

  std::vector<Layer> layers_;
  std::vector<Map> tensors_;
  std::vector<Way> ways_;
  std::vector<Index> cuts_, places_, sizes_;
};

}  // namespace
