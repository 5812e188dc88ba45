// The layers: each knows its shapes, and computes one block of samples forward and backward.
#pragma once

#include <cstdlib>
#include <limits>
#include <new>
#include <vector>

#include "kernels.h"

namespace {

// Zeroed memory, aligned to a cache line: what no one has written reads as 0, in every run.
class Buffer {
 public:
  explicit Buffer(Index count) : memory_(std::calloc(count * sizeof(float) + 64, 1)) {
    if (!memory_) throw std::bad_alloc();
  }
  Buffer(Buffer&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}
  Buffer& operator=(Buffer&&) = delete;
  ~Buffer() { std::free(memory_); }
  float* data() { return reinterpret_cast<float*>((reinterpret_cast<std::uintptr_t>(memory_) + 63) / 64 * 64); }

 private:
  void* memory_;
};

// How an activation lies in memory: rows of pixels of channels (of samples), with a ring of zeros around the image as
// wide as the padding of the convolution that reads it. Sizes are in activations, not in floats.
struct Map {
  Index channels, height, width, ring_y = 0, ring_x = 0;
  Index row() const { return (width + 2 * ring_x) * channels; }
  Index size() const { return (height + 2 * ring_y) * row(); }
  Index at(Index y, Index x) const { return (y + ring_y) * row() + (x + ring_x) * channels; }
};

enum class Kind : Index { kConvolution, kMaximum, kFlatten, kLinear };

struct Layer {
  Kind kind;
  Map in, out;
  Index kernel_y, kernel_x, stride_y, stride_x;
  Index weight, bias;  // offsets in the model's vector; bias < 0: none
  bool relu;
  Index packed = 0;    // offset in the packed weights
  bool learns() const { return kind == Kind::kConvolution || kind == Kind::kLinear; }
  Index run() const { return kernel_x * in.channels; }
  Index weights() const { return learns() ? kernel_y * run() * out.channels : 0; }
  Index weight_at(Index o, Index c, Index ky, Index kx) const {
    return ((o * in.channels + c) * kernel_y + ky) * kernel_x + kx;
  }
  // A convolution packs its weights twice, for both directions; a linear layer's lie right for the way back.
  Index packed_size() const { return kind == Kind::kConvolution ? 2 * weights() : weights(); }
};

// The way forward reads the weights as [tile][ky][kx][c][o]; the model holds them as [o][c][ky][kx].
template <int L> void pack_forward(const Layer& l, const float* w, float* packed) {
  for_tiles(l.out.channels, Lanes<L>::most, [&](Index o, Index count) {
    for (Index ky = 0; ky < l.kernel_y; ++ky)
      for (Index kx = 0; kx < l.kernel_x; ++kx)
        for (Index c = 0; c < l.in.channels; ++c)
          for (Index n = 0; n < count; ++n) *packed++ = w[l.weight_at(o + n, c, ky, kx)];
  });
}

// The way back gathers: an input pixel at p sums over the output pixels q with q * stride + k = p. So p mod stride, its
// phase, decides which taps k of the kernel it meets, and within a phase the stride is 1. Packed as
// [phase][tile][tap y][tap x][o][c], the taps in the order of q.
struct Phase {
  Index of, stride, kernel;
  Index taps() const { return kernel > of ? (kernel - of + stride - 1) / stride : 0; }
  Index tap(Index t) const { return of + stride * (taps() - 1 - t); }
};

template <class Body> void for_phases(const Layer& l, Body body) {
  Index packed = 0;
  for (Index y = 0; y < l.stride_y; ++y)
    for (Index x = 0; x < l.stride_x; ++x) {
      const Phase py{y, l.stride_y, l.kernel_y}, px{x, l.stride_x, l.kernel_x};
      body(py, px, packed);
      packed += py.taps() * px.taps() * l.out.channels * l.in.channels;
    }
}

template <int L> void pack_backward(const Layer& l, const float* w, float* packed) {
  for_phases(l, [&](Phase py, Phase px, Index) {
    for_tiles(l.in.channels, Lanes<L>::most, [&](Index c, Index count) {
      for (Index ty = 0; ty < py.taps(); ++ty)
        for (Index tx = 0; tx < px.taps(); ++tx)
          for (Index o = 0; o < l.out.channels; ++o)
            for (Index n = 0; n < count; ++n) *packed++ = w[l.weight_at(o, c + n, py.tap(ty), px.tap(tx))];
    });
  });
}

inline void transpose(const float* from, Index rows, Index columns, Index to_stride, float* to) {
  constexpr Index tile = 16;
  for (Index r0 = 0; r0 < rows; r0 += tile)
    for (Index c0 = 0; c0 < columns; c0 += tile)
      for (Index c = c0; c < std::min(c0 + tile, columns); ++c)
        for (Index r = r0; r < std::min(r0 + tile, rows); ++r) to[c * to_stride + r] = from[r * columns + c];
}

template <int L> void pack(const Layer& l, const float* vector, float* packed) {
  const float* w = vector + l.weight;
  if (l.kind == Kind::kConvolution) {
    pack_forward<L>(l, w, packed);
    pack_backward<L>(l, w, packed + l.weights());
  }
  if (l.kind == Kind::kLinear)
    for_tiles(l.out.channels, Lanes<L>::most, [&](Index o, Index count) {
      transpose(w + o * l.in.channels, count, l.in.channels, count, packed + o * l.in.channels);
    });
}

inline const float* bias_of(const Layer& l, const float* vector) { return l.bias < 0 ? nullptr : vector + l.bias; }

template <int L> void convolve(const Layer& l, const float* w, const float* bias, const float* x, float* y) {
  const Sweep s{.pixels = l.out.width, .rows = l.kernel_y, .run = l.run(),
                .x_pixel = l.stride_x * l.in.channels * L, .x_row = l.in.row() * L, .x_step = L,
                .w_row = l.run(), .y_pixel = l.out.channels * L, .y_step = L, .relu = l.relu};
  for (Index row = 0; row < l.out.height; ++row)
    sweep_all<L>(s, l.out.channels, x + row * l.stride_y * l.in.row() * L, w, l.kernel_y * l.run(), 0, bias, y + l.out.at(row, 0) * L);
}

// Which of an input's `taps` outputs, the last of them at `last`, exist: `count` from `first`, after `skipped`.
struct Reach {
  Index first, count, skipped;
  Reach(Index last, Index taps, Index size)
      : first(std::max<Index>(0, last - taps + 1)),
        count(std::max<Index>(0, std::min(last + 1, size) - first)),
        skipped(first - (last - taps + 1)) {}
};

template <int L> void convolve_back(const Layer& l, const float* w, const float* d, float* dx) {
  const Index inputs = l.in.channels, outputs = l.out.channels;
  for_phases(l, [&](Phase py, Phase px, Index packed) {
    const Index ring_y = l.in.ring_y, ring_x = l.in.ring_x, depth = py.taps() * px.taps() * outputs;
    Sweep s{.pixels = 1, .rows = 0, .run = 0,
            .x_pixel = outputs * L, .x_row = l.out.row() * L, .x_step = L,
            .w_row = px.taps() * outputs, .y_pixel = l.stride_x * inputs * L, .y_step = L};
    const auto first_from = [](Index ring, Phase p) { return (ring - p.of + p.stride - 1) / p.stride; };
    const auto last_before = [](Index end, Phase p) { return (end - p.of + p.stride - 1) / p.stride; };
    for (Index qy = first_from(ring_y, py); qy < last_before(ring_y + l.in.height, py); ++qy) {
      const Reach y(qy, py.taps(), l.out.height);
      s.rows = y.count;
      const Index end = last_before(ring_x + l.in.width, px);
      for (Index qx = first_from(ring_x, px); qx < end; qx += s.pixels) {
        const Reach x(qx, px.taps(), l.out.width);
        s.run = x.count * outputs;
        s.pixels = x.count == px.taps() ? std::min(end, l.out.width) - qx : 1;  // away from the edges all are alike
        if (s.pixels < 1) s.pixels = 1;
        sweep_all<L>(s, inputs, d + l.out.at(y.first, x.first) * L, w + packed, depth,
                     (y.skipped * px.taps() + x.skipped) * outputs, nullptr,
                     dx + l.in.at(qy * l.stride_y + py.of - ring_y, qx * l.stride_x + px.of - ring_x) * L);
      }
    }
  });
}

// As many rows at a time as the second-level cache holds, since every tile of weights reads them again.
template <int L> void convolve_weights(const Layer& l, const float* d, const float* x, float* g) {
  constexpr Index cache = 1 << 16;  // floats
  const Index per_row = (l.out.row() + l.stride_y * l.in.row()) * L, chunk = std::max<Index>(1, cache / per_row);
  const Index inputs = l.in.channels, area = l.kernel_y * l.kernel_x;
  Correlation c{.rows = 0, .pixels = l.out.width, .d_row = l.out.row() * L, .d_pixel = l.out.channels * L,
                .x_row = l.stride_y * l.in.row() * L, .x_pixel = l.stride_x * inputs * L};
  for (Index row = 0; row < l.out.height; row += chunk) {
    c.rows = std::min(chunk, l.out.height - row);
    for (Index ky = 0; ky < l.kernel_y; ++ky) {
      const float *delta = d + l.out.at(row, 0) * L, *value = x + (row * l.stride_y + ky) * l.in.row() * L;
      for_tiles(l.run(), kTileColumns, [&](Index j0, Index columns) {
        for_tiles(l.out.channels, kTileRows, [&](Index o0, Index rows) {
          float tile[kTileRows * kTileColumns];
          Kernels<L>::correlate_of(rows, columns)(c, delta + o0 * L, value + j0 * L, tile);
          for (Index j = 0; j < columns; ++j) {
            const Index kx = (j0 + j) / inputs, channel = (j0 + j) % inputs;
            for (Index o = 0; o < rows; ++o)
              g[((o0 + o) * inputs + channel) * area + ky * l.kernel_x + kx] += tile[o * columns + j];
          }
        });
      });
    }
  }
}

template <int L> void linear(const Layer& l, const float* w, const float* bias, const float* x, float* y) {
  const Sweep s{.pixels = 1, .rows = 1, .run = l.in.channels, .x_pixel = 0, .x_row = 0, .x_step = L,
                .w_row = 0, .y_pixel = 0, .y_step = L, .relu = l.relu};
  sweep_all<L>(s, l.out.channels, x, w, l.in.channels, 0, bias, y);
}

template <int L> void linear_back(const Layer& l, const float* w, const float* d, float* dx) {
  const Sweep s{.pixels = 1, .rows = 1, .run = l.out.channels, .x_pixel = 0, .x_row = 0, .x_step = L,
                .w_row = 0, .w_step = l.in.channels, .y_pixel = 0, .y_step = L};
  sweep_all<L>(s, l.in.channels, d, w, 0, 0, nullptr, dx);
}

// Here the sum runs over the samples, so the inputs take their place as the vector: both operands are transposed first.
template <int L> void linear_weights(const Layer& l, const float* d, const float* x, float* scratch, float* g) {
  const Index inputs = l.in.channels, outputs = l.out.channels, padded = (inputs + L - 1) / L * L, whole = inputs / L;
  float *xt = scratch, *dt = scratch + L * padded;
  transpose(x, inputs, L, padded, xt);
  transpose(d, outputs, L, outputs, dt);
  Sweep s{.pixels = whole, .rows = 1, .run = L, .x_pixel = L, .x_row = 0, .x_step = padded,
          .w_row = 0, .w_step = outputs, .y_pixel = L, .y_step = inputs, .add = true};
  sweep_all<L>(s, outputs, xt, dt, 0, 0, nullptr, g);
  if (whole * L == inputs) return;
  s.pixels = 1, s.y_step = L, s.add = false;
  float* rest = dt + L * outputs;
  sweep_all<L>(s, outputs, xt + whole * L, dt, 0, 0, nullptr, rest);
  for (Index o = 0; o < outputs; ++o)
    for (Index i = whole * L; i < inputs; ++i) g[o * inputs + i] += rest[o * L + i - whole * L];
}
inline Index linear_scratch(const Layer& l, Index lanes) {
  return l.kind == Kind::kLinear ? lanes * (l.in.channels + lanes + 2 * l.out.channels) : 0;
}

// Masks the gradient by the layer's own ReLU, and sums it into the bias's.
template <int L> void settle(const Layer& l, const float* y, float* d, float* scratch, float* g) {
  using Floats = typename Lanes<L>::Floats;
  constexpr Index width = Lanes<L>::width;
  const Index count = l.out.channels * L;
  std::fill(scratch, scratch + count, 0.0f);
  for (Index row = 0; row < l.out.height; ++row)
    for (Index column = 0; column < l.out.width; ++column) {
      const Index at = l.out.at(row, column) * L;
      for (Index i = 0; i < count; i += width) {
        Floats delta = load<Floats>(d + at + i);
        if (l.relu) store(d + at + i, delta = load<Floats>(y + at + i) > Floats{} ? delta : Floats{});
        store(scratch + i, load<Floats>(scratch + i) + delta);
      }
    }
  if (l.bias < 0) return;
  for (Index c = 0; c < l.out.channels; ++c) {
    Floats total = load<Floats>(scratch + c * L);
    for (Index i = width; i < L; i += width) total += load<Floats>(scratch + c * L + i);
    g[l.bias + c] += sum(total);
  }
}

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

template <int L> void maximum_back(const Layer& l, const std::int32_t* choice, const float* d, float* dx) {
  using Floats = typename Lanes<L>::Floats;
  using Ints = typename Lanes<L>::Ints;
  const bool overlap = l.stride_y < l.kernel_y || l.stride_x < l.kernel_x;
  if (overlap) std::memset(dx, 0, l.in.size() * L * sizeof(float));
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

// From pixel-major here to PyTorch's channel-major order, or back: whole vectors move.
template <int L> void flatten(const Map& image, const float* from, float* to, bool back) {
  for (Index c = 0; c < image.channels; ++c)
    for (Index y = 0; y < image.height; ++y)
      for (Index x = 0; x < image.width; ++x) {
        const Index pixel = (image.at(y, x) + c) * L, flat = ((c * image.height + y) * image.width + x) * L;
        std::memcpy(to + (back ? pixel : flat), from + (back ? flat : pixel), L * sizeof(float));
      }
}

}  // namespace
