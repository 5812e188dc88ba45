// Texts: the filters of several windows slide over the vectors of the words, and the strongest answer of each filter is
// a feature. An answer is a sum over the words of its window, and each term depends on one word alone. So the terms are
// computed once a batch for every word that occurs in it, and a sliding filter only adds them up. Of all windows only
// the strongest learns, so the way back costs next to nothing.
#pragma once

#include <limits>
#include <vector>

#include "buffer.h"

namespace {

// fedasmu/engines/native/library.py has the same fields in the same order.
struct Window {
  Index width, filters, weight, bias;  // offsets in the model's vector; bias < 0: none
  Index relu;
  Index groups() const { return (filters + kWidth - 1) / kWidth; }  // of as many filters as a register holds
};

struct TextDescription {
  Index length, vocabulary, depth;
  Index vectors;  // the offset of the words' vectors in the model's
  Index padding;  // the word whose vector does not learn, -1: all do
  Index count;
  const Window* windows;
};

class Text {
 public:
  explicit Text(const TextDescription& t)
      : length_(t.length), depth_(t.depth), vectors_(t.vectors), padding_(t.padding),
        windows_(t.windows, t.windows + t.count), slots_(t.vocabulary, -1), places_(kTexts * t.length),
        chunk_(kChunk * t.depth) {
    for (const Window& w : windows_) {
      features_ += w.filters;
      packed_.emplace_back(w.groups() * w.width * t.depth * kWidth);
      terms_.emplace_back(w.groups() * w.width * t.vocabulary * kWidth);
      turned_.emplace_back(w.filters * w.width * t.depth);
      gradients_.emplace_back(w.filters * w.width * t.depth);
    }
    answers_.resize(features_ * kTexts);
    choices_.resize(features_ * kTexts);
  }

  // Texts that are read together. They have many words in common, whose terms are then fetched once for all of them.
  static constexpr Index kTexts = 128;

  Index length() const { return length_; }

  // Before the first block of a batch: the weights are not those of the batch before.
  void pack_weights(const float* vector) {
    for (const Index word : words_) slots_[word] = -1;
    words_.clear();
    for (std::size_t i = 0; i < windows_.size(); ++i) {
      const Window& w = windows_[i];
      for (Index f = 0; f < w.filters; ++f)
        for (Index tap = 0; tap < w.width; ++tap)
          for (Index c = 0; c < depth_; ++c) {
            const float weight = vector[w.weight + (f * depth_ + c) * w.width + tap];
            packed_[i].data()[((f / kWidth * w.width + tap) * depth_ + c) * kWidth + f % kWidth] = weight;
            turned_[i].data()[(f * w.width + tap) * depth_ + c] = weight;
          }
    }
  }

  template <typename Word> void read(const float* vector, const Word* const* texts, Index count) {
    find_words(vector, texts, count);
    Index first = 0;
    for (std::size_t i = 0; i < windows_.size(); first += windows_[i++].filters)
      for (Index group = 0; group < windows_[i].groups(); ++group)
        for (Index s = 0; s < count; ++s) strongest(i, group, vector, s, first);
  }

  // The features of a block of the texts that were read; lanes beyond `live` repeat the last of them.
  template <int L> void forward(Index first, Index live, float* features) const {
    for (Index s = 0; s < L; ++s)
      for (Index f = 0; f < features_; ++f)
        features[f * L + s] = answers_[(first + std::min(s, live - 1)) * features_ + f];
  }

  // Adds to the gradient; that of the windows' weights stays here until the end of the batch.
  template <int L>
  void backward(const float* vector, Index first, Index live, const float* deltas, float* gradient) {
    Index feature = 0;
    for (std::size_t i = 0; i < windows_.size(); ++i) {
      const Window& w = windows_[i];
      for (Index f = 0; f < w.filters; ++f, ++feature)
        for (Index s = 0; s < live; ++s) {
          const float delta = deltas[feature * L + s];
          const Index answer = (first + s) * features_ + feature;
          if (delta == 0 || (w.relu && !(answers_[answer] > 0))) continue;
          if (w.bias >= 0) gradient[w.bias + f] += delta;
          const std::int32_t* place = places_.data() + (first + s) * length_ + choices_[answer];
          for (Index tap = 0; tap < w.width; ++tap) {
            const Index word = words_[place[tap]];
            const Index at = (f * w.width + tap) * depth_, vectors = vectors_ + word * depth_;
            add(delta, vector + vectors, gradients_[i].data() + at);
            if (word != padding_) add(delta, turned_[i].data() + at, gradient + vectors);
          }
        }
    }
  }

  // After the last block of a batch.
  void add_gradient(float* gradient) {
    for (std::size_t i = 0; i < windows_.size(); ++i) {
      const Window& w = windows_[i];
      float* from = gradients_[i].data();
      for (Index f = 0; f < w.filters; ++f)
        for (Index tap = 0; tap < w.width; ++tap)
          for (Index c = 0; c < depth_; ++c, *from++ = 0.0f)
            gradient[w.weight + (f * depth_ + c) * w.width + tap] += *from;
    }
  }

 private:
  using Floats = Simd<kWidth>::Floats;
  using Ints = Simd<kWidth>::Ints;
  static constexpr Index kChunk = 256;  // words whose terms are computed together, from the second-level cache
  static constexpr Index kAhead = 28;   // words: a rare one's terms are far from the core, and take their time

  void add(float factor, const float* __restrict from, float* __restrict to) const {
    for (Index c = 0; c < depth_; ++c) to[c] += factor * from[c];
  }

  // Gives every word of the texts a slot, and computes the terms of those that are new in this batch.
  template <typename Word> void find_words(const float* vector, const Word* const* texts, Index count) {
    const Index known = static_cast<Index>(words_.size());
    for (Index s = 0; s < count; ++s)
      for (Index t = 0; t < length_; ++t) {
        std::int32_t& slot = slots_[texts[s][t]];
        if (slot < 0) {
          slot = static_cast<std::int32_t>(words_.size());
          words_.push_back(texts[s][t]);
        }
        places_[s * length_ + t] = slot;
      }
    for (Index first = known; first < static_cast<Index>(words_.size()); first += kChunk)
      compute_terms(vector, first, std::min<Index>(kChunk, words_.size() - first));
  }

  void compute_terms(const float* vector, Index first, Index count) {
    for_tiles(count, Lanes<kWidth>::most, [&](Index n, Index tile) {
      for (Index i = 0; i < tile; ++i)
        for (Index c = 0; c < depth_; ++c)
          chunk_.data()[n * depth_ + c * tile + i] = vector[vectors_ + words_[first + n + i] * depth_ + c];
    });
    for (std::size_t i = 0; i < windows_.size(); ++i) {
      const Window& w = windows_[i];
      const Sweep s{.pixels = w.width,
                    .rows = 1,
                    .run = depth_,
                    .x_pixel = depth_ * kWidth,
                    .x_row = 0,
                    .x_step = kWidth,
                    .w_row = 0,
                    .y_pixel = kWidth,
                    .y_step = w.width * kWidth};
      for (Index group = 0; group < w.groups(); ++group)
        sweep_all<kWidth>(s, count, packed_[i].data() + group * w.width * depth_ * kWidth, chunk_.data(), depth_, 0,
                          nullptr, terms(i, group) + first * w.width * kWidth);
    }
  }

  // A word's terms for one group of filters: [slot][tap][filter].
  float* terms(std::size_t window, Index group) {
    const Index vocabulary = static_cast<Index>(slots_.size());
    return terms_[window].data() + group * vocabulary * windows_[window].width * kWidth;
  }

  void strongest(std::size_t i, Index group, const float* vector, Index s, Index first) {
    const Window& w = windows_[i];
    const std::int32_t* place = places_.data() + s * length_;
    const float* term = terms(i, group);
    // Windows within the padding at the beginning are all alike: the last of them will do.
    const Index padded = std::find_if(place, place + length_, [&](auto p) { return p != *place; }) - place;
    const Index begin = std::max<Index>(0, padded - w.width);
    Floats best = Floats{} - std::numeric_limits<float>::infinity();
    Ints which = Ints{} + static_cast<std::int32_t>(begin);
    for (Index t = begin; t + w.width <= length_; ++t) {
      const float* soon = term + place[std::min(t + kAhead, length_ - 1)] * w.width * kWidth;
      for (Index tap = 0; tap < w.width; ++tap) __builtin_prefetch(soon + tap * kWidth);
      Floats answer = {};
      for (Index tap = 0; tap < w.width; ++tap)
        answer += load<Floats>(term + (place[t + tap] * w.width + tap) * kWidth);
      const Ints better = (answer > best) | (answer != answer);  // NaN wins: a diverged model must show
      best = better ? answer : best;
      which = better ? Ints{} + static_cast<std::int32_t>(t) : which;
    }
    for (Index lane = 0; lane < std::min<Index>(kWidth, w.filters - group * kWidth); ++lane) {
      const Index f = group * kWidth + lane;
      const float answer = best[lane] + (w.bias < 0 ? 0.0f : vector[w.bias + f]);
      answers_[s * features_ + first + f] = w.relu && answer < 0 ? 0.0f : answer;
      choices_[s * features_ + first + f] = which[lane];
    }
  }

  Index length_, depth_, vectors_, padding_, features_ = 0;
  std::vector<Window> windows_;
  std::vector<std::int32_t> slots_;    // of each word, -1: it has none in this batch
  std::vector<Index> words_;           // in the order of their slots
  std::vector<std::int32_t> places_;   // the slots of the texts' words
  std::vector<float> answers_;         // the strongest: [text][feature]
  std::vector<std::int32_t> choices_;  // where the strongest window begins
  Buffer chunk_;
  std::vector<Buffer> packed_, terms_, turned_, gradients_;  // of each window
};

}  // namespace
