// One block of samples: its memory, and its way through the layers and back.
#pragma once

#include <cmath>
#include <vector>

#include "passes.h"
#include "text.h"

namespace {

// The examples of a data set, as they lie in memory.
struct Data {
  const void* inputs;
  const float *scale, *shift;  // one a channel; null for texts
  const Index* targets;
  Index floats;  // the inputs are float, not uint8; texts are Index
};

// A loss on the features, the inputs of the last layer: mu * softplus(cos(z, previous) / t - cos(z, received) / t).
struct Contrast {
  const float *received, *previous;  // [sample][feature]
  double mu, temperature;
};

struct Batch {
  const Index* indices;  // null: 0, 1, 2, ...
  Index size;
  const float* noise;  // what the dropouts multiply by, [dropout][sample][feature]; null: they are off
  const Contrast* contrast;  // null: there is none
  Index operator[](Index i) const { return indices ? indices[i] : i; }
  Index live(Index first, Index most) const { return std::min(most, size - first); }  // samples of a block
};

struct Score {
  double loss = 0;  // a sum over samples
  Index correct = 0;
};

// The activations of one block of L samples, and how it runs through the layers.
template <int L> class Block {
 public:
  Block(const std::vector<Layer>& layers, Text* text)
      : layers_(layers), text_(text), scratch_(scratch_size(layers)), packed_(packed_size(layers)) {
    values_.emplace_back(layers.front().in.size() * L);
    deltas_.emplace_back(text ? layers.front().in.size() * L : 0);  // no one asks for the gradient of images
    for (const Layer& l : layers) {
      values_.emplace_back(l.out.size() * L);
      deltas_.emplace_back(l.out.size() * L);
      choices_.emplace_back(l.kind == Kind::kMaximum ? l.out.size() * L : 0);
    }
  }

  // Lanes past the end of the batch repeat its last sample; their loss has weight 0.
  void read(const float* vector, const Data& data, const Batch& batch, Index first) {
    if (text_)
      read_text(vector, static_cast<const Index*>(data.inputs), batch, first);
    else if (data.floats)
      read_as(static_cast<const float*>(data.inputs), data, batch, first);
    else
      read_as(static_cast<const std::uint8_t*>(data.inputs), data, batch, first);
  }

  // Before the first block of a batch, and again after every step.
  void pack_weights(const float* vector) {
    for (const Layer& l : layers_) pack<L>(l, vector, packed_.data() + l.packed);
  }

  void forward(const float* vector, const Batch& batch, Index first, bool training) {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const Layer& l = layers_[i];
      const float *x = values_[i].data(), *w = packed_.data() + l.packed;
      float* y = values_[i + 1].data();
      switch (l.kind) {
        case Kind::kConvolution: convolve<L>(l, w, bias_of(l, vector), x, y, scratch_.data()); break;
        case Kind::kLinear: linear<L>(l, w, bias_of(l, vector), x, y); break;
        case Kind::kMaximum: maximum<L>(l, x, y, training ? choice(i) : nullptr); break;
        case Kind::kFlatten: flatten<L>(l.in, x, y, false); break;
        case Kind::kDropout: drop(l, batch, first, x, y); break;
      }
    }
  }

  // Cross-entropy, and its gradient divided by the size of the batch.
  void score(const Data& data, const Batch& batch, Index first, Score& total) {
    const Index classes = layers_.back().out.channels, live = batch.live(first, L);
    const float* z = values_.back().data();
    float* d = deltas_.back().data();
    for (Index s = 0; s < L; ++s) {
      Index best = 0;
      for (Index c = 1; c < classes; ++c)
        if (z[c * L + s] > z[best * L + s]) best = c;
      const float peak = z[best * L + s];
      float all = 0;
      for (Index c = 0; c < classes; ++c) all += d[c * L + s] = std::exp(z[c * L + s] - peak);
      const Index target = data.targets[batch[first + std::min(s, live - 1)]];
      const float weight = s < live ? 1.0f / static_cast<float>(batch.size) : 0.0f;
      for (Index c = 0; c < classes; ++c) d[c * L + s] = (d[c * L + s] / all - (c == target ? 1.0f : 0.0f)) * weight;
      if (s >= live) continue;
      total.loss += std::log(all) - (z[target * L + s] - peak);
      total.correct += best == target;
    }
    if (batch.contrast) score_contrast(*batch.contrast, batch, first, total);
  }

  // The inputs of the last layer, a sample after the other.
  void features(Index live, float* to) {
    const Index count = layers_.back().in.channels;
    const float* z = values_[layers_.size() - 1].data();
    for (Index s = 0; s < live; ++s)
      for (Index f = 0; f < count; ++f) to[s * count + f] = z[f * L + s];
  }

  // Adds to the gradient. Nothing before the first layer that learns needs any.
  void backward(const float* vector, const Batch& batch, Index sample, float* gradient) {
    std::size_t first = 0;
    while (!text_ && !layers_[first].learns()) ++first;
    for (std::size_t i = layers_.size(); i-- > first;) {
      const Layer& l = layers_[i];
      const float* x = values_[i].data();
      float *d = deltas_[i + 1].data(), *dx = deltas_[i].data(), *scratch = scratch_.data();
      if (l.learns()) settle<L>(l, values_[i + 1].data(), d, scratch, gradient);
      if (l.kind == Kind::kConvolution) convolve_weights<L>(l, d, x, gradient + l.weight, scratch);
      if (l.kind == Kind::kLinear) linear_weights<L>(l, d, x, scratch, gradient + l.weight);
      if (i == first && !text_) break;
      const bool contrasted = batch.contrast && i + 1 == layers_.size();  // its gradient is in dx already
      switch (l.kind) {
        case Kind::kConvolution: convolve_back<L>(l, packed_.data() + l.packed + l.one_way(), d, dx, scratch); break;
        case Kind::kLinear: linear_back<L>(l, vector + l.weight, d, dx, contrasted); break;
        case Kind::kMaximum: maximum_back<L>(l, choice(i), d, dx); break;
        case Kind::kFlatten: flatten<L>(l.in, d, dx, true); break;
        case Kind::kDropout: drop(l, batch, sample, d, dx); break;
      }
    }
    if (text_)
      text_->backward<L>(vector, sample % Text::kTexts, batch.live(sample, L), deltas_.front().data(), gradient);
  }

 private:
  static Index scratch_size(const std::vector<Layer>& layers) {
    Index most = 0;
    for (const Layer& l : layers) most = std::max(most, ::scratch_size(l, L));
    return most;
  }

  static Index packed_size(const std::vector<Layer>& layers) {
    return layers.back().packed + layers.back().packed_size();
  }

  std::int32_t* choice(std::size_t i) { return reinterpret_cast<std::int32_t*>(choices_[i].data()); }

  // Its gradient waits where that of the last layer will be added.
  void score_contrast(const Contrast& c, const Batch& batch, Index first, Score& total) {
    const Index count = layers_.back().in.channels, live = batch.live(first, L);
    const float* z = values_[layers_.size() - 1].data();
    float* d = deltas_[layers_.size() - 1].data();
    std::fill_n(d, count * L, 0.0f);
    for (Index s = 0; s < live; ++s) {
      const float *near = c.received + (first + s) * count, *far = c.previous + (first + s) * count;
      double zz = 0, nn = 0, ff = 0, zn = 0, zf = 0;
      for (Index f = 0; f < count; ++f) {
        const double v = z[f * L + s], n = near[f], w = far[f];
        zz += v * v, nn += n * n, ff += w * w, zn += v * n, zf += v * w;
      }
      const double size = length(zz), of_near = length(nn), of_far = length(ff);
      const double to_near = zn / (size * of_near), to_far = zf / (size * of_far);
      const double margin = (to_far - to_near) / c.temperature;
      total.loss += c.mu * (std::max(margin, 0.0) + std::log1p(std::exp(-std::abs(margin))));
      const double slope = c.mu / ((1 + std::exp(-margin)) * c.temperature * size * static_cast<double>(batch.size));
      for (Index f = 0; f < count; ++f)
        d[f * L + s] = static_cast<float>(
            slope * (far[f] / of_far - near[f] / of_near - (to_far - to_near) * z[f * L + s] / size));
    }
  }

  static double length(double square) { return std::max(std::sqrt(square), 1e-8); }  // as in PyTorch

  static void drop(const Layer& l, const Batch& batch, Index first, const float* from, float* to) {
    const Index features = l.out.channels, live = batch.live(first, L);
    if (!batch.noise) return static_cast<void>(std::copy_n(from, features * L, to));
    for (Index s = 0; s < L; ++s) {
      const float* noise = batch.noise + l.noise * batch.size + (first + std::min(s, live - 1)) * features;
      for (Index f = 0; f < features; ++f) to[f * L + s] = from[f * L + s] * noise[f];
    }
  }

  void read_text(const float* vector, const Index* inputs, const Batch& batch, Index first) {
    if (first % Text::kTexts == 0) {
      const Index count = std::min(Text::kTexts, batch.size - first);
      const Index* texts[Text::kTexts];
      for (Index s = 0; s < count; ++s) texts[s] = inputs + batch[first + s] * text_->length();
      text_->read(vector, texts, count);
    }
    text_->forward<L>(first % Text::kTexts, batch.live(first, L), values_.front().data());
  }

  // Samples lie one after the other in the data and side by side in a block: a transposition, a line at a time. A line
  // is an image's row of one channel, or all the features where there is no image.
  template <class Number> void read_as(const Number* inputs, const Data& data, const Batch& batch, Index first) {
    const Map& map = layers_.front().in;
    const bool image = map.height * map.width > 1;
    const Index live = batch.live(first, L), lines = image ? map.channels * map.height : 1;
    const Index length = image ? map.width : map.channels, size = lines * length;
    const Number* sample[L];
    for (Index s = 0; s < L; ++s) sample[s] = inputs + batch[first + std::min(s, live - 1)] * size;
    for (Index line = 0; line < lines; ++line) {
      const Index channel = line / map.height, y = line % map.height;
      float* to = values_.front().data() + (map.at(y, 0) + channel) * L;
      for (Index x = 0; x < length; x += kWidth) {
        const Index count = std::min<Index>(kWidth, length - x);
        float square[L * kWidth], turned[kWidth * L];
        for (Index s = 0; s < L; ++s)
          for (Index i = 0; i < count; ++i)
            square[s * kWidth + i] = static_cast<float>(sample[s][line * length + x + i]);
        transpose(square, L, count, kWidth, L, turned);
        for (Index i = 0; i < count; ++i) {
          const float scale = data.scale[image ? channel : x + i], shift = data.shift[image ? channel : x + i];
          float* place = to + (x + i) * (image ? map.channels : 1) * L;
          for (Index s = 0; s < L; ++s) place[s] = turned[i * L + s] * scale + shift;
        }
      }
    }
  }

  const std::vector<Layer>& layers_;
  Text* text_;  // null: the first layer reads the data themselves
  Buffer scratch_, packed_;
  std::vector<Buffer> values_, deltas_, choices_;
};

}  // namespace
