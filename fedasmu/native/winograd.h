// Convolutions of small kernels with fewer multiplications (Winograd, 1980; Lavin and Gray, "Fast algorithms for
// convolutional neural networks", CVPR 2016). M x M outputs of an R x R kernel take (M + R - 1)^2 products a channel,
// not (M R)^2: 25 for 64 when R is 2 and M is 4, 16 for 36 when R is 3 and M is 2. The price is a transformation of
// inputs, weights and outputs by additions, small beside the products where there are many channels.
#pragma once

#include "kernels.h"

namespace {

// One dimension: y = output(weights(w) * input(x)), the product element by element; and backwards, the gradient of the
// products is delta(dy), that of the weights is gradient(delta(dy) * input(x)).
template <int R> struct Winograd;
template <> struct Winograd<2> {
  static constexpr int M = 4, N = 5;  // Toom-Cook at the points 0, 1, -1, 2 and infinity
  template <class T> static void input(const T* x, T* v) {
    const T a = x[3] - x[1], b = x[2] - x[0];
    v[0] = a - 2.0f * b, v[1] = x[2] + x[1] - a, v[2] = 3.0f * (x[2] - x[1]) - a, v[3] = a,
    v[4] = x[4] - x[2] - 2.0f * a;
  }
  template <class T> static void weights(const T* w, T* u) {
    constexpr float sixth = 1.0f / 6.0f;
    u[0] = 0.5f * w[0], u[1] = 0.5f * (w[0] + w[1]), u[2] = sixth * (w[0] - w[1]), u[3] = sixth * (w[0] + 2.0f * w[1]);
    u[4] = w[1];
  }
  template <class T> static void output(const T* m, T* y) {
    const T even = m[1] + m[2], odd = m[1] - m[2];
    y[0] = m[0] + even + m[3], y[1] = odd + 2.0f * m[3], y[2] = even + 4.0f * m[3], y[3] = odd + 8.0f * m[3] + m[4];
  }
  template <class T> static void delta(const T* y, T* m) {
    const T even = y[0] + y[2], odd = y[1] + y[3];
    m[0] = y[0], m[1] = even + odd, m[2] = even - odd, m[3] = y[0] + 2.0f * y[1] + 4.0f * y[2] + 8.0f * y[3],
    m[4] = y[3];
  }
  template <class T> static void gradient(const T* u, T* w) {
    constexpr float sixth = 1.0f / 6.0f;
    w[0] = 0.5f * (u[0] + u[1]) + sixth * (u[2] + u[3]), w[1] = 0.5f * u[1] + sixth * (2.0f * u[3] - u[2]) + u[4];
  }
};
template <> struct Winograd<3> {
  static constexpr int M = 2, N = 4;
  template <class T> static void input(const T* x, T* v) {
    v[0] = x[0] - x[2], v[1] = x[1] + x[2], v[2] = x[2] - x[1], v[3] = x[3] - x[1];
  }
  template <class T> static void weights(const T* w, T* u) {
    u[0] = w[0], u[1] = 0.5f * (w[0] + w[1] + w[2]), u[2] = 0.5f * (w[0] - w[1] + w[2]), u[3] = w[2];
  }
  template <class T> static void output(const T* m, T* y) { y[0] = m[0] + m[1] + m[2], y[1] = m[1] - m[2] + m[3]; }
  template <class T> static void delta(const T* y, T* m) {
    m[0] = y[0], m[1] = y[0] + y[1], m[2] = y[0] - y[1], m[3] = y[1];
  }
  template <class T> static void gradient(const T* u, T* w) {
    w[0] = u[0] + 0.5f * (u[1] + u[2]), w[1] = 0.5f * (u[1] - u[2]), w[2] = 0.5f * (u[1] + u[2]) + u[3];
  }
};

// Two dimensions: the columns, then the rows.
template <int From, int To, class T, class Line>
inline void square(const T (&in)[From][From], T (&out)[To][To], Line line) {
  T half[To][From];
#pragma GCC unroll 5
  for (int j = 0; j < From; ++j) {
    T column[From], turned[To];
#pragma GCC unroll 5
    for (int i = 0; i < From; ++i) column[i] = in[i][j];
    line(column, turned);
#pragma GCC unroll 5
    for (int i = 0; i < To; ++i) half[i][j] = turned[i];
  }
#pragma GCC unroll 5
  for (int i = 0; i < To; ++i) line(half[i], out[i]);
}

// The weights as [point][tile of outputs][k][n]; `at(n, k, y, x)` is a weight of output n.
template <int L, int R, class At> void winograd_pack(Index outputs, Index depth, float* packed, At at) {
  constexpr int N = Winograd<R>::N;
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

constexpr Index kStrip = 4;  // tiles at a time: their transforms fit in the second-level cache

// One more vector a plane: planes a multiple of 4 KiB apart would fight for the same lines of the first-level cache.
inline Index winograd_plane(Index channels, Index lanes) { return (kStrip * channels + 1) * lanes; }

// Transforms the From x From pixels at (row, column), zero outside of the image, into one value of each plane.
template <int L, int From, int To, class Line>
inline void lift(const Map& map, const float* x, Index row, Index column, const float* zeros, Index plane, float* to,
                 Line line) {
  using Floats = typename Lanes<L>::Floats;
  const float* from[From][From];
  for (int i = 0; i < From; ++i)
    for (int j = 0; j < From; ++j) {
      const bool inside = row + i >= 0 && row + i < map.height && column + j >= 0 && column + j < map.width;
      from[i][j] = inside ? x + map.at(row + i, column + j) * L : zeros;
    }
  for (Index c = 0; c < map.channels * L; c += Lanes<L>::width) {
    Floats patch[From][From], lifted[To][To];
#pragma GCC unroll 25
    for (int p = 0; p < From * From; ++p) patch[p / From][p % From] = load<Floats>(from[p / From][p % From] + c);
    square(patch, lifted, line);
#pragma GCC unroll 25
    for (int p = 0; p < To * To; ++p) store(to + p * plane + c, lifted[p / To][p % To]);
  }
}

// The outputs of one tile at (row, column), as far as they are inside of the image.
template <int L, int R>
inline void lower(const float* from, Index plane, const float* bias, bool relu, bool add, const Map& out, Index row,
                  Index column, float* y) {
  using Floats = typename Lanes<L>::Floats;
  constexpr int M = Winograd<R>::M, N = Winograd<R>::N;
  for (Index o = 0; o < out.channels * L; o += Lanes<L>::width) {
    Floats products[N][N], results[M][M];
#pragma GCC unroll 25
    for (int p = 0; p < N * N; ++p) products[p / N][p % N] = load<Floats>(from + p * plane + o);
    square(products, results, [](const Floats* m, Floats* r) { Winograd<R>::output(m, r); });
#pragma GCC unroll 16
    for (int q = 0; q < M * M; ++q) {
      if (row + q / M >= out.height || column + q % M >= out.width) continue;
      Floats result = results[q / M][q % M] + (bias ? bias[o / L] : 0.0f);
      float* to = y + out.at(row + q / M, column + q % M) * L + o;
      if (add) result += load<Floats>(to);
      if (relu) result = Floats{} > result ? Floats{} : result;
      store(to, result);
    }
  }
}

// Calls body(row, column, tiles) for every strip of tiles.
template <int M, class Body> void for_strips(const Map& out, Body body) {
  for (Index row = 0; row < out.height; row += M)
    for (Index column = 0; column < out.width; column += M * kStrip)
      body(row, column, std::min(kStrip, (out.width - column + M - 1) / M));
}

// y = the convolution of x, whose pixel (top, left) meets the first tap of the first output; 0 outside of x.
template <int L, int R>
void winograd(const Map& in, Index top, Index left, const float* x, const float* w, const float* bias, bool relu,
              bool add, const Map& out, float* y, float* scratch) {
  using Floats = typename Lanes<L>::Floats;
  constexpr int M = Winograd<R>::M, N = Winograd<R>::N;
  const Index inputs = in.channels, outputs = out.channels;
  const Index v_plane = winograd_plane(inputs, L), m_plane = winograd_plane(outputs, L);
  float *v = scratch, *m = v + N * N * v_plane, *zeros = m + N * N * m_plane;
  std::fill_n(zeros, inputs * L, 0.0f);
  Sweep s{.pixels = 0,
          .rows = 1,
          .run = inputs,
          .x_pixel = inputs * L,
          .x_row = 0,
          .x_step = L,
          .w_row = 0,
          .y_pixel = outputs * L,
          .y_step = L};
  for_strips<M>(out, [&](Index row, Index column, Index tiles) {
    s.pixels = tiles;
    for (Index t = 0; t < tiles; ++t)
      lift<L, N, N>(in, x, row + top, column + M * t + left, zeros, v_plane, v + t * inputs * L,
                    [](const Floats* a, Floats* b) { Winograd<R>::input(a, b); });
    for (Index p = 0; p < N * N; ++p)
      sweep_all<L>(s, outputs, v + p * v_plane, w + p * inputs * outputs, inputs, 0, nullptr, m + p * m_plane);
    for (Index t = 0; t < tiles; ++t)
      lower<L, R>(m + t * outputs * L, m_plane, bias, relu, add, out, row, column + M * t, y);
  });
}

// Adds to the gradient of the weights, [o][c][ky][kx]. The sum runs over tiles and samples, so here the channels take
// the samples' place as the vector: both operands are transposed.
template <int L, int R>
void winograd_weights(const Map& in, Index top, Index left, const float* x, const Map& out, const float* d, float* g,
                      float* scratch) {
  using Floats = typename Lanes<L>::Floats;
  constexpr int M = Winograd<R>::M, N = Winograd<R>::N;
  const Index inputs = in.channels, outputs = out.channels, padded = (inputs + L - 1) / L * L;
  const Index v_plane = winograd_plane(inputs, L), m_plane = winograd_plane(outputs, L), u_plane = outputs * padded;
  float *v = scratch, *m = v + N * N * v_plane, *zeros = m + N * N * m_plane;
  float *vt = zeros + std::max(inputs, outputs) * L, *mt = vt + kStrip * L * padded, *u = mt + kStrip * L * outputs;
  std::fill(zeros, vt, 0.0f);
  std::fill_n(u, N * N * u_plane, 0.0f);
  Sweep s{.pixels = padded / L,
          .rows = 1,
          .run = 0,
          .x_pixel = L,
          .x_row = 0,
          .x_step = padded,
          .w_row = 0,
          .w_step = outputs,
          .y_pixel = L,
          .y_step = padded,
          .add = true};
  for_strips<M>(out, [&](Index row, Index column, Index tiles) {
    for (Index t = 0; t < tiles; ++t) {
      lift<L, N, N>(in, x, row - top, column + M * t - left, zeros, v_plane, v + t * inputs * L,
                    [](const Floats* a, Floats* b) { Winograd<R>::input(a, b); });
      lift<L, M, N>(out, d, row, column + M * t, zeros, m_plane, m + t * outputs * L,
                    [](const Floats* a, Floats* b) { Winograd<R>::delta(a, b); });
    }
    s.run = tiles * L;
    for (Index p = 0; p < N * N; ++p) {
      for (Index t = 0; t < tiles; ++t) {
        transpose(v + p * v_plane + t * inputs * L, inputs, L, L, padded, vt + t * L * padded);
        transpose(m + p * m_plane + t * outputs * L, outputs, L, L, outputs, mt + t * L * outputs);
      }
      sweep_all<L>(s, outputs, vt, mt, 0, 0, nullptr, u + p * u_plane);
    }
  });
  for (Index o = 0; o < outputs; ++o)
    for (Index c = 0; c < inputs; ++c, g += R * R) {
      float products[N][N], weights[R][R];
      for (int p = 0; p < N * N; ++p) products[p / N][p % N] = u[p * u_plane + o * padded + c];
      square(products, weights, [](const float* a, float* b) { Winograd<R>::gradient(a, b); });
      for (int k = 0; k < R * R; ++k) g[k] += weights[k / R][k % R];
    }
}

inline Index winograd_scratch(Index inputs, Index outputs, Index points, Index lanes) {
  const Index padded = (inputs + lanes - 1) / lanes * lanes;
  return points * (winograd_plane(inputs, lanes) + winograd_plane(outputs, lanes) + outputs * padded) +
         (std::max(inputs, outputs) + kStrip * (padded + outputs)) * lanes;
}

}  // namespace
