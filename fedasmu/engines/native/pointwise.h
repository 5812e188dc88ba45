// The layers without weights at work on one block of samples: pooling, sums, and what only moves numbers.
#pragma once

#include "layer.h"

namespace {

// `choice` remembers which element of the window was the largest, the first among equals; -1: ReLU cut it off.
// A ReLU of its own is a window of one.
template <int L> void maximum(const Layer& l, const float* x, float* y, std::int32_t* choice) {
  using Floats = typename Lanes<L>::Floats;
  using Ints = typename Lanes<L>::Ints;
  const Index count = l.out.channels * L;
  for (Index row = 0; row < l.out.height; ++row)
    for (Index column = 0; column < l.out.width; ++column) {
      const float* window = x + l.in.at(row * l.stride_y, column * l.stride_x) * L;
      const Index at = l.out.at(row, column) * L;
      for (Index i = 0; i < count; i += Lanes<L>::width) {
        Floats best = load<Floats>(window + i);
        Ints which = {};
        for (Index ky = 0; ky < l.kernel_y; ++ky)
          for (Index kx = 0; kx < l.kernel_x; ++kx) {
            const Floats v = load<Floats>(window + (ky * l.in.row() + kx * l.in.channels) * L + i);
            const Ints better = (v > best) | (v != v);  // NaN wins
            best = better ? v : best;
            which = better ? Ints{} + static_cast<std::int32_t>(ky * l.kernel_x + kx) : which;
          }
        if (l.relu) {
          const Ints cut = best <= Floats{};
          best = cut ? Floats{} : best;
          which = cut ? Ints{} - 1 : which;
        }
        store(y + at + i, best);
        if (choice) store(choice + (row * l.out.width + column) * count + i, which);
      }
    }
}

// Zeros where windows overlap, which then add, and where no window reaches.
template <int L> void clear(const Layer& l, float* dx) {
  const bool once = l.stride_y == l.kernel_y && l.stride_x == l.kernel_x;
  const bool all = l.out.height * l.stride_y == l.in.height && l.out.width * l.stride_x == l.in.width;
  if (!once || !all) std::fill_n(dx, l.in.size() * L, 0.0f);
}

template <int L> void maximum_back(const Layer& l, const std::int32_t* choice, const float* d, float* dx) {
  using Floats = typename Lanes<L>::Floats;
  using Ints = typename Lanes<L>::Ints;
  const bool overlap = l.stride_y < l.kernel_y || l.stride_x < l.kernel_x;
  clear<L>(l, dx);
  const Index count = l.out.channels * L;
  for (Index row = 0; row < l.out.height; ++row)
    for (Index column = 0; column < l.out.width; ++column) {
      float* window = dx + l.in.at(row * l.stride_y, column * l.stride_x) * L;
      for (Index i = 0; i < count; i += Lanes<L>::width) {
        const Floats delta = load<Floats>(d + l.out.at(row, column) * L + i);
        const Ints which = load<Ints>(choice + (row * l.out.width + column) * count + i);
        for (Index ky = 0; ky < l.kernel_y; ++ky)
          for (Index kx = 0; kx < l.kernel_x; ++kx) {
            float* to = window + (ky * l.in.row() + kx * l.in.channels) * L + i;
            const Floats v = which == Ints{} + static_cast<std::int32_t>(ky * l.kernel_x + kx) ? delta : Floats{};
            store(to, overlap ? v + load<Floats>(to) : v);
          }
      }
    }
}

// Averages over windows.
template <int L> void average(const Layer& l, const float* x, float* y) {
  using Floats = typename Lanes<L>::Floats;
  const float share = 1.0f / static_cast<float>(l.kernel_y * l.kernel_x);
  for (Index row = 0; row < l.out.height; ++row)
    for (Index column = 0; column < l.out.width; ++column)
      for (Index i = 0; i < l.out.channels * L; i += Lanes<L>::width) {
        const float* window = x + l.window(row, column) * L + i;
        Floats total = {};
        for (Index ky = 0; ky < l.kernel_y; ++ky)
          for (Index kx = 0; kx < l.kernel_x; ++kx)
            total += load<Floats>(window + (ky * l.in.row() + kx * l.in.channels) * L);
        store(y + l.out.at(row, column) * L + i, total * share);
      }
}

template <int L> void average_back(const Layer& l, const float* d, float* dx) {
  using Floats = typename Lanes<L>::Floats;
  const float share = 1.0f / static_cast<float>(l.kernel_y * l.kernel_x);
  clear<L>(l, dx);
  const bool overlap = l.stride_y < l.kernel_y || l.stride_x < l.kernel_x;
  for (Index row = 0; row < l.out.height; ++row)
    for (Index column = 0; column < l.out.width; ++column)
      for (Index i = 0; i < l.out.channels * L; i += Lanes<L>::width) {
        const Floats part = load<Floats>(d + l.out.at(row, column) * L + i) * share;
        float* window = dx + l.window(row, column) * L + i;
        for (Index ky = 0; ky < l.kernel_y; ++ky)
          for (Index kx = 0; kx < l.kernel_x; ++kx) {
            float* to = window + (ky * l.in.row() + kx * l.in.channels) * L;
            store(to, overlap ? part + load<Floats>(to) : part);
          }
      }
}

// The channels that the input has not are zeros.
template <int L> void shortcut(const Layer& l, const float* x, float* y) {
  for (Index row = 0; row < l.out.height; ++row)
    for (Index column = 0; column < l.out.width; ++column) {
      float* to = y + l.out.at(row, column) * L;
      std::fill_n(to, l.out.channels * L, 0.0f);
      std::copy_n(x + l.window(row, column) * L, l.in.channels * L, to + l.front * L);
    }
}

template <int L> void shortcut_back(const Layer& l, const float* d, float* dx) {
  clear<L>(l, dx);
  for (Index row = 0; row < l.out.height; ++row)
    for (Index column = 0; column < l.out.width; ++column)
      std::copy_n(d + (l.out.at(row, column) + l.front) * L, l.in.channels * L, dx + l.window(row, column) * L);
}

// The maps of a sum's two operands and of itself have rings of their own.
template <int L> void sum(const Layer& l, const Map& other, const float* x, const float* b, float* y) {
  using Floats = typename Lanes<L>::Floats;
  for (Index row = 0; row < l.out.height; ++row) {
    const float *one = x + l.in.at(row, 0) * L, *two = b + other.at(row, 0) * L;
    float* to = y + l.out.at(row, 0) * L;
    for (Index i = 0; i < l.out.width * l.out.channels * L; i += Lanes<L>::width) {
      const Floats total = load<Floats>(one + i) + load<Floats>(two + i);
      store(to + i, l.relu ? (Floats{} > total ? Floats{} : total) : total);
    }
  }
}

// Masks the gradient by the layer's own ReLU.
template <int L> void mask(const Map& map, const float* y, float* d) {
  using Floats = typename Lanes<L>::Floats;
  for (Index row = 0; row < map.height; ++row) {
    const Index at = map.at(row, 0) * L;
    for (Index i = at; i < at + map.width * map.channels * L; i += Lanes<L>::width)
      store(d + i, load<Floats>(y + i) > Floats{} ? load<Floats>(d + i) : Floats{});
  }
}

// Hands a gradient on to one operand of a sum.
template <int L> void hand_on(const Map& from, const float* d, const Map& to, float* dx, bool add) {
  using Floats = typename Lanes<L>::Floats;
  for (Index row = 0; row < from.height; ++row) {
    const float* one = d + from.at(row, 0) * L;
    float* two = dx + to.at(row, 0) * L;
    for (Index i = 0; i < from.width * from.channels * L; i += Lanes<L>::width)
      store(two + i, add ? load<Floats>(two + i) + load<Floats>(one + i) : load<Floats>(one + i));
  }
}

// From pixel-major here to PyTorch's channel-major order, or back: whole vectors move.
template <int L> void flatten(const Map& image, const float* from, float* to, bool back) {
  for (Index y = 0; y < image.height; ++y)
    for (Index x = 0; x < image.width; ++x)
      for (Index c = 0; c < image.channels; ++c) {
        const Index pixel = (image.at(y, x) + c) * L, flat = ((c * image.height + y) * image.width + x) * L;
        std::memcpy(to + (back ? pixel : flat), from + (back ? flat : pixel), L * sizeof(float));
      }
}

}  // namespace
