// Normalisation: over a batch, which needs all of its blocks, and over the groups of each sample.
// Both are y = x * scale + shift, with numbers that come from the means and squares of x; arrays of such numbers are
// [channel][lane].
#pragma once

#include <cmath>
#include <vector>

#include "layer.h"

namespace {

// The mean over the pixels, and the sum of squares about it.
template <int L> void moments(const Map& map, const float* x, float* mean, float* squares) {
  using Floats = typename Lanes<L>::Floats;
  constexpr Index width = Lanes<L>::width;
  const Index count = map.channels * L;
  const float share = 1.0f / static_cast<float>(map.height * map.width);
  std::fill_n(mean, count, 0.0f);
  std::fill_n(squares, count, 0.0f);
  const auto for_pixels = [&](auto body) {
    for (Index row = 0; row < map.height; ++row)
      for (Index column = 0; column < map.width; ++column) {
        const float* pixel = x + map.at(row, column) * L;
        for (Index i = 0; i < count; i += width) body(load<Floats>(pixel + i), i);
      }
  };
  for_pixels([&](Floats v, Index i) { store(mean + i, load<Floats>(mean + i) + v); });
  for (Index i = 0; i < count; i += width) store(mean + i, load<Floats>(mean + i) * share);
  for_pixels([&](Floats v, Index i) {
    const Floats off = v - load<Floats>(mean + i);
    store(squares + i, load<Floats>(squares + i) + off * off);
  });
}

template <int L> void normalise(const Layer& l, const float* x, const float* scale, const float* shift, float* y) {
  using Floats = typename Lanes<L>::Floats;
  for (Index row = 0; row < l.out.height; ++row)
    for (Index column = 0; column < l.out.width; ++column) {
      const float* from = x + l.in.at(row, column) * L;
      float* to = y + l.out.at(row, column) * L;
      for (Index i = 0; i < l.out.channels * L; i += Lanes<L>::width) {
        Floats v = load<Floats>(from + i) * load<Floats>(scale + i) + load<Floats>(shift + i);
        if (l.relu) v = Floats{} > v ? Floats{} : v;
        store(to + i, v);
      }
    }
}

// Masks d by the layer's ReLU; sums over the pixels d, and d times x about `mean`.
template <int L>
void moments_back(const Layer& l, const float* x, const float* mean, const float* y, float* d, float* sum,
                  float* product) {
  using Floats = typename Lanes<L>::Floats;
  const Index count = l.out.channels * L;
  std::fill_n(sum, count, 0.0f);
  std::fill_n(product, count, 0.0f);
  for (Index row = 0; row < l.out.height; ++row)
    for (Index column = 0; column < l.out.width; ++column) {
      const Index at = l.out.at(row, column) * L;
      const float* from = x + l.in.at(row, column) * L;
      for (Index i = 0; i < count; i += Lanes<L>::width) {
        Floats delta = load<Floats>(d + at + i);
        if (l.relu) store(d + at + i, delta = load<Floats>(y + at + i) > Floats{} ? delta : Floats{});
        store(sum + i, load<Floats>(sum + i) + delta);
        store(product + i, load<Floats>(product + i) + delta * (load<Floats>(from + i) - load<Floats>(mean + i)));
      }
    }
}

// dx = scale * d + slope * (x - mean) + shift. dx may be d, if their maps are alike.
struct Slopes {
  const float *mean, *scale, *slope, *shift;
};

template <int L> void normalise_back(const Layer& l, const float* x, const float* d, const Slopes& s, float* dx) {
  using Floats = typename Lanes<L>::Floats;
  for (Index row = 0; row < l.out.height; ++row)
    for (Index column = 0; column < l.out.width; ++column) {
      const float *from = x + l.in.at(row, column) * L, *delta = d + l.out.at(row, column) * L;
      float* to = dx + l.in.at(row, column) * L;
      for (Index i = 0; i < l.out.channels * L; i += Lanes<L>::width)
        store(to + i, load<Floats>(s.scale + i) * load<Floats>(delta + i) + load<Floats>(s.shift + i) +
                          load<Floats>(s.slope + i) * (load<Floats>(from + i) - load<Floats>(s.mean + i)));
    }
}

inline float parameter(const float* vector, Index offset, Index channel, float otherwise) {
  return offset < 0 ? otherwise : vector[offset + channel];
}

// One batch normalisation. A batch goes: begin, gather every block, settle, forward every block; and back: gather_back
// every block, settle_back, back every block. In evaluation: recall, forward.
class BatchNorm {
 public:
  explicit BatchNorm(const Layer& l)
      : layer_(l), mean_(l.in.channels), squares_(l.in.channels), sum_(l.in.channels), product_(l.in.channels),
        deviation_(l.in.channels), scale_(l.in.channels), shift_(l.in.channels) {}

  void begin() {
    count_ = 0;
    for (auto* sums : {&mean_, &squares_, &sum_, &product_}) std::fill(sums->begin(), sums->end(), 0.0);
  }

  // Every lane has a mean of its own, and two sets of numbers are joined as Chan, Golub and LeVeque do (1983): the sum
  // of squares alone would lose all digits where the mean is large.
  template <int L> void gather(const float* x, Index live, float* scratch) {
    const double pixels = static_cast<double>(layer_.in.height * layer_.in.width);
    float *mean = scratch, *squares = scratch + channels() * L;
    moments<L>(layer_.in, x, mean, squares);
    for (Index c = 0; c < channels(); ++c) {
      double before = count_;
      for (Index s = 0; s < live; ++s, before += pixels) {
        const double off = mean[c * L + s] - mean_[c];
        mean_[c] += off * pixels / (before + pixels);
        squares_[c] += squares[c * L + s] + off * off * before * pixels / (before + pixels);
      }
    }
    count_ += pixels * static_cast<double>(live);
  }

  // `running` is the model's vector if its running statistics learn from this batch, otherwise null.
  void settle(const float* vector, float* running) {
    for (Index c = 0; c < channels(); ++c) {
      prepare(vector, c, squares_[c] / count_);
      if (!running) continue;
      mix(running[layer_.mean + c], mean_[c]);
      mix(running[layer_.variance + c], squares_[c] / (count_ - 1));
    }
  }

  void recall(const float* vector) {
    for (Index c = 0; c < channels(); ++c) {
      mean_[c] = vector[layer_.mean + c];
      prepare(vector, c, vector[layer_.variance + c]);
    }
  }

  template <int L> void forward(const float* x, float* y, float* scratch) {
    float *scale = scratch, *shift = scratch + channels() * L;
    for (Index i = 0; i < channels() * L; ++i) scale[i] = scale_[i / L], shift[i] = shift_[i / L];
    normalise<L>(layer_, x, scale, shift, y);
  }

  template <int L> void gather_back(const float* x, const float* y, float* d, float* scratch) {
    float *mean = scratch, *sum = scratch + channels() * L, *product = sum + channels() * L;
    for (Index i = 0; i < channels() * L; ++i) mean[i] = static_cast<float>(mean_[i / L]);
    moments_back<L>(layer_, x, mean, y, d, sum, product);
    for (Index i = 0; i < channels() * L; ++i) sum_[i / L] += sum[i], product_[i / L] += product[i];
  }

  void settle_back(float* gradient) {
    for (Index c = 0; c < channels(); ++c) {
      if (layer_.weight >= 0) gradient[layer_.weight + c] += static_cast<float>(product_[c] / deviation_[c]);
      if (layer_.bias >= 0) gradient[layer_.bias + c] += static_cast<float>(sum_[c]);
    }
  }

  // Lanes past the end of the batch must not learn: they were never counted.
  template <int L> void back(const float* x, const float* d, Index live, float* dx, float* scratch) {
    const Index count = channels() * L;
    float *mean = scratch, *scale = mean + count, *slope = scale + count, *shift = slope + count;
    for (Index i = 0; i < count; ++i) {
      const Index c = i / L;
      const double alive = i % L < live ? scale_[c] : 0.0;
      mean[i] = static_cast<float>(mean_[c]);
      scale[i] = static_cast<float>(alive);
      slope[i] = static_cast<float>(-alive * product_[c] / (count_ * deviation_[c] * deviation_[c]));
      shift[i] = static_cast<float>(-alive * sum_[c] / count_);
    }
    normalise_back<L>(layer_, x, d, {mean, scale, slope, shift}, dx);
  }

 private:
  Index channels() const { return layer_.in.channels; }

  void prepare(const float* vector, Index c, double variance) {
    deviation_[c] = std::sqrt(variance + layer_.eps);
    const double scale = parameter(vector, layer_.weight, c, 1.0f) / deviation_[c];
    scale_[c] = static_cast<float>(scale);
    shift_[c] = static_cast<float>(parameter(vector, layer_.bias, c, 0.0f) - mean_[c] * scale);
  }

  void mix(float& running, double now) const {
    running = static_cast<float>((1 - layer_.momentum) * running + layer_.momentum * now);
  }

  const Layer& layer_;
  double count_ = 0;
  std::vector<double> mean_, squares_, sum_, product_, deviation_;
  std::vector<float> scale_, shift_;
};

// A group's channels of one sample have a mean and a deviation of their own, which stay in `notes` for the way back.
template <int L>
void group_norm(const Layer& l, const float* vector, const float* x, float* y, float* notes, float* scratch) {
  const Index count = l.in.channels * L, members = l.in.channels / l.groups;
  const float pixels = static_cast<float>(l.in.height * l.in.width), size = pixels * static_cast<float>(members);
  float *mean = notes, *deviation = notes + count;
  float *scale = scratch, *shift = scratch + count;
  moments<L>(l.in, x, scale, shift);  // until they are known, each channel's mean and squares
  for (Index group = 0; group < l.groups; ++group)
    for (Index s = 0; s < L; ++s) {
      const Index first = group * members * L + s, end = first + members * L;
      float middle = 0, squares = 0;
      for (Index i = first; i < end; i += L) middle += scale[i] / static_cast<float>(members);
      for (Index i = first; i < end; i += L)
        squares += shift[i] + pixels * (scale[i] - middle) * (scale[i] - middle);
      const float spread = std::sqrt(squares / size + static_cast<float>(l.eps));
      for (Index i = first; i < end; i += L) {
        mean[i] = middle, deviation[i] = spread;
        scale[i] = parameter(vector, l.weight, i / L, 1.0f) / spread;
        shift[i] = parameter(vector, l.bias, i / L, 0.0f) - middle * scale[i];
      }
    }
  normalise<L>(l, x, scale, shift, y);
}

template <int L>
void group_norm_back(const Layer& l, const float* vector, const float* x, const float* y, const float* notes, float* d,
                     float* gradient, float* dx, float* scratch) {
  const Index count = l.in.channels * L, members = l.in.channels / l.groups;
  const float size = static_cast<float>(members * l.in.height * l.in.width);
  const float *mean = notes, *deviation = notes + count;
  float *scale = scratch, *slope = scratch + count, *shift = slope + count;
  moments_back<L>(l, x, mean, y, d, shift, slope);  // until they are known, each channel's sum and product
  for (Index c = 0; c < l.in.channels; ++c)
    for (Index i = c * L; i < c * L + L; ++i) {
      if (l.weight >= 0) gradient[l.weight + c] += slope[i] / deviation[i];
      if (l.bias >= 0) gradient[l.bias + c] += shift[i];
    }
  if (!dx) return;
  for (Index group = 0; group < l.groups; ++group)
    for (Index s = 0; s < L; ++s) {
      const Index first = group * members * L + s, end = first + members * L;
      float sum = 0, product = 0;
      for (Index i = first; i < end; i += L) {
        scale[i] = parameter(vector, l.weight, i / L, 1.0f) / deviation[i];
        sum += scale[i] * shift[i], product += scale[i] * slope[i];
      }
      for (Index i = first; i < end; i += L) {
        shift[i] = -sum / size;
        slope[i] = -product / (size * deviation[i] * deviation[i]);
      }
    }
  normalise_back<L>(l, x, d, {mean, scale, slope, shift}, dx);
}

}  // namespace
