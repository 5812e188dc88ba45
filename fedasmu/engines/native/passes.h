// Convolutions and linear layers at work on one block of samples: forward, the gradient of the inputs, and that of the
// weights.
#pragma once

#include "layer.h"

namespace {

inline const float* bias_of(const Layer& l, const float* vector) { return l.bias < 0 ? nullptr : vector + l.bias; }

// `w` are the weights as the model holds them. `packed` may be null for a layer in one strip of tiles: see winograd.h.
template <int L>
void convolve(const Layer& l, const float* w, const float* packed, const float* bias, const float* x, float* y,
              float* scratch) {
  if (l.tile())
    return with_winograd(l, [&](auto way) {
      winograd<L, decltype(way)>(l.in, -l.top, -l.left, x, l.filters(w), packed, bias, l.relu, false, l.out, y,
                                 scratch);
    });
  const Sweep s{.pixels = l.out.width,
                .rows = l.kernel_y,
                .run = l.run(),
                .x_pixel = l.stride_x * l.in.channels * L,
                .x_row = l.in.row() * L,
                .x_step = L,
                .w_row = l.run(),
                .y_pixel = l.out.channels * L,
                .y_step = L,
                .relu = l.relu};
  for (Index row = 0; row < l.out.height; ++row)
    sweep_all<L>(s, l.out.channels, x + l.window(row, 0) * L, packed, l.kernel_y * l.run(), 0, bias,
                 y + l.out.at(row, 0) * L);
}

// Which of an input's `taps` outputs, the last of them at `last`, exist: `count` from `first`, after `skipped`.
struct Reach {
  Index first, count, skipped;
  Reach(Index last, Index taps, Index size)
      : first(std::max<Index>(0, last - taps + 1)),
        count(std::max<Index>(0, std::min(last + 1, size) - first)),
        skipped(first - (last - taps + 1)) {}
};

template <int L>
void convolve_back(const Layer& l, const float* w, const float* packed, const float* d, float* dx, bool add,
                   float* scratch) {
  if (l.tile())
    return with_winograd(l, [&](auto way) {
      const Index reach = l.kernel_x - 1;
      winograd<L, decltype(way)>(l.out, l.top - reach, l.left - reach, d, l.filters_back(w), packed, nullptr, false,
                                 add, l.in, dx, scratch);
    });
  const Index inputs = l.in.channels, outputs = l.out.channels;
  for_phases(l, [&](Phase py, Phase px, Index phase) {
    Sweep s{.pixels = 1,
            .rows = 0,
            .run = 0,
            .x_pixel = outputs * L,
            .x_row = l.out.row() * L,
            .x_step = L,
            .w_row = px.taps() * outputs,
            .y_pixel = l.stride_x * inputs * L,
            .y_step = L,
            .add = add};
    const Index depth = py.taps() * px.taps() * outputs, end = px.from(l.left + l.in.width);
    for (Index qy = py.from(l.top); qy < py.from(l.top + l.in.height); ++qy) {
      const Reach y(qy, py.taps(), l.out.height);
      s.rows = y.count;
      for (Index qx = px.from(l.left); qx < end; qx += s.pixels) {
        const Reach x(qx, px.taps(), l.out.width);
        const bool inside = x.count > 0 && x.count == px.taps();  // away from the edges all pixels are alike
        s.run = x.count * outputs;
        s.pixels = inside ? std::min(end, l.out.width) - qx : 1;
        sweep_all<L>(s, inputs, d + l.out.at(y.first, x.first) * L, packed + phase, depth,
                     (y.skipped * px.taps() + x.skipped) * outputs, nullptr,
                     dx + l.in.at(py.at(qy) - l.top, px.at(qx) - l.left) * L);
      }
    }
  });
}

// As many rows at a time as the second-level cache holds, since every tile of weights reads them again.
template <int L>
void convolve_weights(const Layer& l, const float* d, const float* x, float* sums, float* g, float* scratch) {
  if (l.tile())
    return with_winograd(l, [&](auto way) {
      winograd_weights<L, decltype(way)>(l.in, l.top, l.left, x, l.out, d, sums, g, scratch);
    });
  constexpr Index cache = 1 << 16;  // floats
  const Index per_row = (l.out.row() + l.stride_y * l.in.row()) * L, chunk = std::max<Index>(1, cache / per_row);
  const Index inputs = l.in.channels, area = l.kernel_y * l.kernel_x;
  Correlation c{.rows = 0,
                .pixels = l.out.width,
                .d_row = l.out.row() * L,
                .d_pixel = l.out.channels * L,
                .x_row = l.stride_y * l.in.row() * L,
                .x_pixel = l.stride_x * inputs * L};
  for (Index row = 0; row < l.out.height; row += chunk) {
    c.rows = std::min(chunk, l.out.height - row);
    for (Index ky = 0; ky < l.kernel_y; ++ky) {
      const float *delta = d + l.out.at(row, 0) * L, *value = x + (l.window(row, 0) + ky * l.in.row()) * L;
      for_tiles(l.run(), kTileColumns, [&](Index j0, Index columns) {
        Index place[kTileColumns];
        for (Index j = 0; j < columns; ++j) place[j] = l.weight_at(0, (j0 + j) % inputs, ky, (j0 + j) / inputs);
        for_tiles(l.out.channels, kTileRows, [&](Index o0, Index rows) {
          float tile[kTileRows * kTileColumns];
          Kernels<L>::correlate_of(rows, columns)(c, delta + o0 * L, value + j0 * L, tile);
          for (Index o = 0; o < rows; ++o)
            for (Index j = 0; j < columns; ++j) g[(o0 + o) * inputs * area + place[j]] += tile[o * columns + j];
        });
      });
    }
  }
}

template <int L> void linear(const Layer& l, const float* w, const float* bias, const float* x, float* y) {
  const Sweep s{.pixels = 1,
                .rows = 1,
                .run = l.in.channels,
                .x_pixel = 0,
                .x_row = 0,
                .x_step = L,
                .w_row = 0,
                .y_pixel = 0,
                .y_step = L,
                .relu = l.relu};
  sweep_all<L>(s, l.out.channels, x, w, l.in.channels, 0, bias, y);
}

template <int L> void linear_back(const Layer& l, const float* w, const float* d, float* dx, bool add) {
  const Sweep s{.pixels = 1,
                .rows = 1,
                .run = l.out.channels,
                .x_pixel = 0,
                .x_row = 0,
                .x_step = L,
                .w_row = 0,
                .w_step = l.in.channels,
                .y_pixel = 0,
                .y_step = L,
                .add = add};
  sweep_all<L>(s, l.in.channels, d, w, 0, 0, nullptr, dx);
}

// Here the sum runs over the samples, so the inputs take their place as the vector: both operands are transposed first.
template <int L> void linear_weights(const Layer& l, const float* d, const float* x, float* scratch, float* g) {
  const Index inputs = l.in.channels, outputs = l.out.channels, padded = (inputs + L - 1) / L * L, whole = inputs / L;
  float *xt = scratch, *dt = scratch + L * padded;
  transpose(x, inputs, L, L, padded, xt);
  transpose(d, outputs, L, L, outputs, dt);
  Sweep s{.pixels = whole,
          .rows = 1,
          .run = L,
          .x_pixel = L,
          .x_row = 0,
          .x_step = padded,
          .w_row = 0,
          .w_step = outputs,
          .y_pixel = L,
          .y_step = inputs,
          .add = true};
  sweep_all<L>(s, outputs, xt, dt, 0, 0, nullptr, g);
  if (whole * L == inputs) return;
  s.pixels = 1, s.y_step = L, s.add = false;
  float* rest = dt + L * outputs;
  sweep_all<L>(s, outputs, xt + whole * L, dt, 0, 0, nullptr, rest);
  for (Index o = 0; o < outputs; ++o)
    for (Index i = whole * L; i < inputs; ++i) g[o * inputs + i] += rest[o * L + i - whole * L];
}

// How much scratch memory a layer needs, in floats.
inline Index scratch_size(const Layer& l, Index lanes) {
  const Index linear = l.kind == Kind::kLinear ? lanes * (l.in.channels + lanes + 2 * l.out.channels) : 0;
  const Index transforms =
      l.tile() ? winograd_scratch(l.in.channels, l.out.channels, l.points(), lanes, l.in_one_strip()) : 0;
  return std::max({linear, transforms, l.out.channels * lanes});
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
    fold<1>(&total);
    g[l.bias + c] += total[0];
  }
}

}  // namespace
