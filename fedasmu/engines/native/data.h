// The examples: how they lie in memory, which of them are a batch, and how a block reads them.
#pragma once

#include "contrast.h"

namespace {

// The examples of a data set, as they lie in memory.
struct Data {
  const void* inputs;
  const float *scale, *shift;  // one a channel; null for texts
  const Index* targets;
  Index wide;  // the inputs are float, not uint8; the words of texts are Index, not std::int32_t
};

struct Batch {
  const Index* indices;  // null: 0, 1, 2, ...
  Index size;
  const float* noise;        // what the dropouts multiply by, [dropout][sample][feature]; null: they are off
  const Contrast* contrast;  // null: there is none
  const float* shift;        // added to each class's output before the loss; null: nothing is
  Index operator[](Index i) const { return indices ? indices[i] : i; }
  Index live(Index first, Index most) const { return std::min(most, size - first); }  // samples of a block
};

struct Score {
  double loss = 0;  // a sum over samples
  Index correct = 0;
};

// Samples lie one after the other in the data and side by side in a block: a transposition, a line at a time. A line
// is an image's row of one channel, or all the features where there is no image.
template <int L, class Number>
void read_as(const Number* inputs, const Data& data, const Batch& batch, Index first, const Map& map, float* values) {
  const bool image = map.height * map.width > 1;
  const Index live = batch.live(first, L), lines = image ? map.channels * map.height : 1;
  const Index length = image ? map.width : map.channels, size = lines * length;
  const Number* sample[L];
  for (Index s = 0; s < L; ++s) sample[s] = inputs + batch[first + std::min(s, live - 1)] * size;
  for (Index line = 0; line < lines; ++line) {
    const Index channel = line / map.height, y = line % map.height;
    float* to = values + (map.at(y, 0) + channel) * L;
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

}  // namespace
