// Convolutions of small kernels with fewer multiplications (Winograd, 1980; Lavin and Gray, "Fast algorithms for
// convolutional neural networks", CVPR 2016). A tile of 2x2 outputs of a kernel of R x R takes (R+1)^2 products a channel
// instead of 4 R^2: 9 for 16 when R is 2, 16 for 36 when R is 3. The price is a transformation of inputs, weights and
// outputs by additions, small beside the products where there are many channels.
#pragma once

#include "kernels.h"

namespace {

// One dimension: outputs = output(weights(w) * input(x)), the product element by element.
template <int R> struct Winograd;
template <> struct Winograd<2> {
  template <class T> static void input(const T* x, T* v) { v[0] = x[0] - x[1], v[1] = x[1], v[2] = x[2] - x[1]; }
  template <class T> static void weights(const T* w, T* u) { u[0] = w[0], u[1] = w[0] + w[1], u[2] = w[1]; }
  template <class T> static void output(const T* m, T* y) { y[0] = m[0] + m[1], y[1] = m[1] + m[2]; }
};
template <> struct Winograd<3> {
  template <class T> static void input(const T* x, T* v) {
    v[0] = x[0] - x[2], v[1] = x[1] + x[2], v[2] = x[2] - x[1], v[3] = x[3] - x[1];
  }
  template <class T> static void weights(const T* w, T* u) {
    u[0] = w[0], u[1] = 0.5f * (w[0] + w[1] + w[2]), u[2] = 0.5f * (w[0] - w[1] + w[2]), u[3] = w[2];
  }
  template <class T> static void output(const T* m, T* y) { y[0] = m[0] + m[1] + m[2], y[1] = m[1] - m[2] + m[3]; }
};

// Two dimensions: the columns, then the rows.
template <int From, int To, class T, class Line> inline void square(const T (&in)[From][From], T (&out)[To][To], Line line) {
  T half[To][From];
#pragma GCC unroll 4
  for (int j = 0; j < From; ++j) {
    T column[From], turned[To];
#pragma GCC unroll 4
    for (int i = 0; i < From; ++i) column[i] = in[i][j];
    line(column, turned);
#pragma GCC unroll 4
    for (int i = 0; i < To; ++i) half[i][j] = turned[i];
  }
#pragma GCC unroll 4
  for (int i = 0; i < To; ++i) line(half[i], out[i]);
}

// The weights as [point][tile of outputs][k][n]; `at(n, k, y, x)` is a weight of output n.
template <int L, int R, class At> void winograd_pack(Index outputs, Index depth, float* packed, At at) {
  constexpr int N = R + 1;
  for_tiles(outputs, Lanes<L>::most, [&](Index first, Index count) {
    for (Index k = 0; k < depth; ++k)
      for (Index n = 0; n < count; ++n) {
        float w[R][R], u[N][N];
        for (int y = 0; y < R; ++y)
          for (int x = 0; x < R; ++x) w[y][x] = at(first + n, k, y, x);
        square(w, u, [](const float* a, float* b) { Winograd<R>::weights(a, b); });
        for (int p = 0; p < N * N; ++p) packed[p * depth * outputs + first * depth + k * count + n] = u[p / N][p % N];
      }
  });
}

constexpr Index kStrip = 8;  // tiles at a time: their transforms fit in the second-level cache

// One more vector a plane: planes a multiple of 4 KiB apart would fight for the same lines of the first-level cache.
inline Index winograd_plane(Index channels, Index lanes) { return (kStrip * channels + 1) * lanes; }
inline Index winograd_scratch(Index inputs, Index outputs, Index points, Index lanes) {
  return points * (winograd_plane(inputs, lanes) + winograd_plane(outputs, lanes)) + inputs * lanes;
}

// y = the convolution of x, whose pixel (top, left) meets the first tap of the first output; 0 outside of x.
template <int L, int R>
void winograd(const Map& in, Index top, Index left, const float* x, const float* w, const float* bias, bool relu,
              const Map& out, float* y, float* scratch) {
  using Floats = typename Lanes<L>::Floats;
  constexpr int N = R + 1, width = Lanes<L>::width;
  const Index inputs = in.channels, outputs = out.channels;
  const Index v_plane = winograd_plane(inputs, L), m_plane = winograd_plane(outputs, L);
  float *v = scratch, *m = v + N * N * v_plane, *zeros = m + N * N * m_plane;
  std::fill_n(zeros, inputs * L, 0.0f);
  Sweep s{.pixels = 0, .rows = 1, .run = inputs, .x_pixel = inputs * L, .x_row = 0, .x_step = L,
          .w_row = 0, .y_pixel = outputs * L, .y_step = L};

  const auto transform = [&](Index row, Index column, float* to) {
    const float* from[N][N];
    for (int i = 0; i < N; ++i)
      for (int j = 0; j < N; ++j) {
        const bool inside = row + i >= 0 && row + i < in.height && column + j >= 0 && column + j < in.width;
        from[i][j] = inside ? x + in.at(row + i, column + j) * L : zeros;
      }
    for (Index c = 0; c < inputs * L; c += width) {
      Floats patch[N][N], turned[N][N];
#pragma GCC unroll 16
      for (int p = 0; p < N * N; ++p) patch[p / N][p % N] = load<Floats>(from[p / N][p % N] + c);
      square(patch, turned, [](const Floats* a, Floats* b) { Winograd<R>::input(a, b); });
#pragma GCC unroll 16
      for (int p = 0; p < N * N; ++p) store(to + p * v_plane + c, turned[p / N][p % N]);
    }
  };
  const auto finish = [&](const float* from, Index row, Index column) {
    for (Index o = 0; o < outputs * L; o += width) {
      Floats products[N][N], results[2][2];
#pragma GCC unroll 16
      for (int p = 0; p < N * N; ++p) products[p / N][p % N] = load<Floats>(from + p * m_plane + o);
      square(products, results, [](const Floats* a, Floats* b) { Winograd<R>::output(a, b); });
      for (int q = 0; q < 4; ++q) {
        if (row + q / 2 >= out.height || column + q % 2 >= out.width) continue;
        Floats result = results[q / 2][q % 2] + (bias ? bias[o / L] : 0.0f);
        if (relu) result = Floats{} > result ? Floats{} : result;
        store(y + out.at(row + q / 2, column + q % 2) * L + o, result);
      }
    }
  };

  for (Index row = 0; row < out.height; row += 2)
    for (Index first = 0; first < out.width; first += 2 * kStrip) {
      s.pixels = std::min(kStrip, (out.width - first + 1) / 2);
      for (Index t = 0; t < s.pixels; ++t) transform(row + top, first + 2 * t + left, v + t * inputs * L);
      for (Index p = 0; p < N * N; ++p)
        sweep_all<L>(s, outputs, v + p * v_plane, w + p * inputs * outputs, inputs, 0, nullptr, m + p * m_plane);
      for (Index t = 0; t < s.pixels; ++t) finish(m + t * outputs * L, row, first + 2 * t);
    }
}

}  // namespace
