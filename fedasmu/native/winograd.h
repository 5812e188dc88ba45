// Convolutions of small kernels with fewer multiplications (Winograd, 1980; Lavin and Gray, "Fast algorithms for
// convolutional neural networks", CVPR 2016). M x M outputs of an R x R kernel take (M + R - 1)^2 products a channel,
// not (M R)^2: 25 for 64 when R is 2 and M is 4, 16 for 36 when R is 3 and M is 2, 36 for 144 when M is 4. The price is a
// transformation of inputs, weights and outputs by additions, small beside the products where there are many channels.
#pragma once

#include "kernels.h"
#include "transforms.h"

namespace {

// One more line a plane: planes a multiple of 4 KiB apart would fight for the same lines of the first-level cache.
inline Index winograd_weights_plane(Index inputs, Index outputs) { return inputs * outputs + 16; }

// The weights as [point][tile of outputs][k][n], a register of outputs at a time; `at(n, k)` is the kernel of output n.
template <int L, class W, class At> void winograd_pack(Index outputs, Index depth, float* packed, At at) {
  using Floats = Simd<kWidth>::Floats;
  constexpr int R = W::R, N = W::N;
  const Index plane = winograd_weights_plane(depth, outputs);
  for_tiles(outputs, Lanes<L>::most, [&](Index first, Index count) {
    for (Index k = 0; k < depth; ++k)
      for (Index n = 0; n < count; n += kWidth) {
        const Index some = std::min<Index>(kWidth, count - n);
        float kernels[R * R][kWidth] = {};
        for (Index i = 0; i < some; ++i) {
          const float* kernel = at(first + n + i, k);
          for (int q = 0; q < R * R; ++q) kernels[q][i] = kernel[q];
        }
        Floats w[R][R], u[N][N];
        for (int q = 0; q < R * R; ++q) w[q / R][q % R] = load<Floats>(kernels[q]);
        square(w, u, [](const Floats* a, Floats* b) { W::weights(a, b); });
        float* to = packed + first * depth + k * count + n;
        for (int p = 0; p < N * N; ++p) std::memcpy(to + p * plane, &u[p / N][p % N], some * sizeof(float));
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
#pragma GCC unroll 36
    for (int p = 0; p < From * From; ++p) patch[p / From][p % From] = load<Floats>(from[p / From][p % From] + c);
    square(patch, lifted, line);
#pragma GCC unroll 36
    for (int p = 0; p < To * To; ++p) store(to + p * plane + c, lifted[p / To][p % To]);
  }
}

// The outputs of one tile at (row, column), as far as they are inside of the image.
template <int L, class W>
inline void lower(const float* from, Index plane, const float* bias, bool relu, bool add, const Map& out, Index row,
                  Index column, float* y) {
  using Floats = typename Lanes<L>::Floats;
  constexpr int M = W::M, N = W::N;
  for (Index o = 0; o < out.channels * L; o += Lanes<L>::width) {
    Floats products[N][N], results[M][M];
#pragma GCC unroll 36
    for (int p = 0; p < N * N; ++p) products[p / N][p % N] = load<Floats>(from + p * plane + o);
    square(products, results, [](const Floats* m, Floats* r) { W::output(m, r); });
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

// The tiles of an image, a strip of them at a time: body(first, count), and where each of them is.
struct Tiles {
  Index side, across, count;
  Tiles(const Map& out, Index m)
      : side(m), across((out.width + m - 1) / m), count(across * ((out.height + m - 1) / m)) {}
  Index row(Index t) const { return t / across * side; }
  Index column(Index t) const { return t % across * side; }
  template <class Body> void for_strips(Body body) const {
    for (Index first = 0; first < count; first += kStrip) body(first, std::min(kStrip, count - first));
  }
};

// y = the convolution of x, whose pixel (top, left) meets the first tap of the first output; 0 outside of x.
template <int L, class W>
void winograd(const Map& in, Index top, Index left, const float* x, const float* w, const float* bias, bool relu,
              bool add, const Map& out, float* y, float* scratch) {
  using Floats = typename Lanes<L>::Floats;
  constexpr int M = W::M, N = W::N;
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
  const Tiles tiles(out, M);
  tiles.for_strips([&](Index first, Index count) {
    s.pixels = count;
    for (Index t = 0; t < count; ++t)
      lift<L, N, N>(in, x, tiles.row(first + t) + top, tiles.column(first + t) + left, zeros, v_plane,
                    v + t * inputs * L, [](const Floats* a, Floats* b) { W::input(a, b); });
    for (Index p = 0; p < N * N; ++p)
      sweep_all<L>(s, outputs, v + p * v_plane, w + p * winograd_weights_plane(inputs, outputs), inputs, 0, nullptr,
                   m + p * m_plane);
    for (Index t = 0; t < count; ++t)
      lower<L, W>(m + t * outputs * L, m_plane, bias, relu, add, out, tiles.row(first + t), tiles.column(first + t), y);
  });
}

// The gradient of the weights before it is transformed, [point][output][input]: it adds up over the blocks of a batch.
inline Index winograd_padded(Index inputs) { return (inputs + 15) / 16 * 16; }
inline Index winograd_sums_plane(Index inputs, Index outputs) { return outputs * winograd_padded(inputs) + 16; }

// The sum runs over tiles and samples, so here the channels take the samples' place as the vector: both operands are
// transposed.
template <int L, class W>
void winograd_weights(const Map& in, Index top, Index left, const float* x, const Map& out, const float* d, float* sums,
                      float* scratch) {
  using Floats = typename Lanes<L>::Floats;
  constexpr int M = W::M, N = W::N;
  const Index inputs = in.channels, outputs = out.channels, padded = winograd_padded(inputs);
  const Index v_plane = winograd_plane(inputs, L), m_plane = winograd_plane(outputs, L);
  float *v = scratch, *m = v + N * N * v_plane, *zeros = m + N * N * m_plane;
  float *vt = zeros + std::max(inputs, outputs) * L, *mt = vt + kStrip * L * padded;
  std::fill(zeros, vt, 0.0f);
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
  const Tiles tiles(out, M);
  tiles.for_strips([&](Index first, Index count) {
    for (Index t = 0; t < count; ++t) {
      const Index row = tiles.row(first + t), column = tiles.column(first + t);
      lift<L, N, N>(in, x, row - top, column - left, zeros, v_plane, v + t * inputs * L,
                    [](const Floats* a, Floats* b) { W::input(a, b); });
      lift<L, M, N>(out, d, row, column, zeros, m_plane, m + t * outputs * L,
                    [](const Floats* a, Floats* b) { W::delta(a, b); });
    }
    s.run = count * L;
    for (Index p = 0; p < N * N; ++p) {
      for (Index t = 0; t < count; ++t) {
        transpose(v + p * v_plane + t * inputs * L, inputs, L, L, padded, vt + t * L * padded);
        transpose(m + p * m_plane + t * outputs * L, outputs, L, L, outputs, mt + t * L * outputs);
      }
      sweep_all<L>(s, outputs, vt, mt, 0, 0, nullptr, sums + p * winograd_sums_plane(inputs, outputs));
    }
  });
}

// Adds the sums of a batch to the gradient, [o][c][ky][kx], and forgets them.
template <class W> void winograd_gradient(Index inputs, Index outputs, float* sums, float* g) {
  using Floats = Simd<kWidth>::Floats;
  constexpr int R = W::R, N = W::N;
  const Index padded = winograd_padded(inputs), plane = winograd_sums_plane(inputs, outputs);
  for (Index o = 0; o < outputs; ++o)
    for (Index c = 0; c < inputs; c += kWidth) {
      Floats products[N][N], weights[R][R];
      for (int p = 0; p < N * N; ++p) {
        float* from = sums + p * plane + o * padded + c;
        products[p / N][p % N] = load<Floats>(from);
        store(from, Floats{});
      }
      square(products, weights, [](const Floats* a, Floats* b) { W::gradient(a, b); });
      for (Index i = 0; i < std::min<Index>(kWidth, inputs - c); ++i)
        for (int k = 0; k < R * R; ++k) g[((o * inputs) + c + i) * R * R + k] += weights[k / R][k % R][i];
    }
}

inline Index winograd_scratch(Index inputs, Index outputs, Index points, Index lanes) {
  return points * (winograd_plane(inputs, lanes) + winograd_plane(outputs, lanes)) +
         (std::max(inputs, outputs) + kStrip * (winograd_padded(inputs) + outputs)) * lanes;
}

}  // namespace
