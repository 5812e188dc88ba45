// Convolutions of small kernels with fewer multiplications (Winograd, 1980; Lavin and Gray, "Fast algorithms for
// convolutional neural networks", CVPR 2016). M x M outputs of an R x R kernel take (M + R - 1)^2 products a channel,
// not (M R)^2: 25 for 64 when R is 2 and M is 4, 16 for 36 when R is 3 and M is 2, 36 for 144 when M is 4. The price is a
// transformation of inputs, weights and outputs by additions, small beside the products where there are many channels.
#pragma once

#include "taps.h"
#include "transforms.h"

namespace {

// One more line a plane: planes a multiple of 4 KiB apart would fight for the same lines of the first-level cache.
inline Index winograd_weights_plane(Index inputs, Index outputs) { return inputs * outputs + 16; }

// The transformed weights of `count` outputs from the n-th on, [point][k][n], the points `plane` apart.
template <class W>
void winograd_pack(const Filters& filters, Index n, Index count, Index depth, Index plane, float* packed) {
  using Floats = Simd<kWidth>::Floats;
  constexpr int R = W::R, N = W::N;
  for (Index k = 0; k < depth; ++k)
    for (Index i = 0; i < count; i += kWidth) {
      const Index some = std::min<Index>(kWidth, count - i);
      Floats w[R][R], u[N][N];
      read_taps(filters.at(n + i, k), filters.output, some, filters.turned, w);
      square(w, u, [](const Floats* a, Floats* b) { W::weights(a, b); });
      float* to = packed + k * count + i;
      if (some == kWidth)
        for (int p = 0; p < N * N; ++p) store(to + p * plane, u[p / N][p % N]);
      else
        for (int p = 0; p < N * N; ++p) std::memcpy(to + p * plane, &u[p / N][p % N], some * sizeof(float));
    }
}

// Those of all outputs, a tile after the other.
template <int L, class W> void winograd_pack_all(const Filters& filters, Index outputs, Index depth, float* packed) {
  for_tiles(outputs, Lanes<L>::most, [&](Index n, Index count) {
    winograd_pack<W>(filters, n, count, depth, winograd_weights_plane(depth, outputs), packed + n * depth);
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
// `packed`: the transformed weights; null: each tile of them is made when it is needed, and used while in the cache.
template <int L, class W>
void winograd(const Map& in, Index top, Index left, const float* x, const Filters& filters, const float* packed,
              const float* bias, bool relu, bool add, const Map& out, float* y, float* scratch) {
  using Floats = typename Lanes<L>::Floats;
  constexpr int M = W::M, N = W::N;
  const Index inputs = in.channels, outputs = out.channels;
  const Index v_plane = winograd_plane(inputs, L), m_plane = winograd_plane(outputs, L);
  const Index w_plane = winograd_weights_plane(inputs, packed ? outputs : Lanes<L>::most);
  float *v = scratch, *m = v + N * N * v_plane, *zeros = m + N * N * m_plane, *made = zeros + inputs * L;
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
    for_tiles(outputs, Lanes<L>::most, [&](Index n, Index some) {
      if (!packed) winograd_pack<W>(filters, n, some, inputs, w_plane, made);
      const float* w = packed ? packed + n * inputs : made;
      s.w_step = some;
      for (Index p = 0; p < N * N; ++p)
        Kernels<L>::sweep_of(some)(s, v + p * v_plane, w + p * w_plane, nullptr, m + p * m_plane + n * L);
    });
    for (Index t = 0; t < count; ++t)
      lower<L, W>(m + t * outputs * L, m_plane, bias, relu, add, out, tiles.row(first + t), tiles.column(first + t), y);
  });
}

// The gradient of the weights before it is transformed, [point][output][input]: it adds up over the blocks of a batch.
inline Index winograd_padded(Index inputs) { return (inputs + 15) / 16 * 16; }
inline Index winograd_sums_plane(Index inputs, Index outputs) { return outputs * winograd_padded(inputs) + 16; }
constexpr Index kSquare = 64, kSquarePlane = kAccumulators * kSquare + 16;  // inputs of a square of channels

// Adds transformed sums, the points `plane` apart, to the gradient of `count` kernels that lie one after the other.
template <class W> inline void winograd_lower(const float* sums, Index plane, Index count, float* g) {
  using Floats = Simd<kWidth>::Floats;
  constexpr int R = W::R, N = W::N;
  Floats products[N][N], weights[R][R];
  for (int p = 0; p < N * N; ++p) products[p / N][p % N] = load<Floats>(sums + p * plane);
  square(products, weights, [](const Floats* a, Floats* b) { W::gradient(a, b); });
  add_taps(weights, count, g);
}

// The sum runs over tiles and samples, so here the channels take the samples' place as the vector: both operands are
// transposed. `sums`: what the blocks of the batch add up to; null: this block is the whole batch and its tiles are one
// strip, so a square of channels at a time is summed and lowered into the gradient while it is in the cache.
template <int L, class W>
void winograd_weights(const Map& in, Index top, Index left, const float* x, const Map& out, const float* d, float* sums,
                      float* g, float* scratch) {
  using Floats = typename Lanes<L>::Floats;
  constexpr int M = W::M, N = W::N;
  const Index inputs = in.channels, outputs = out.channels, padded = winograd_padded(inputs);
  const Index v_plane = winograd_plane(inputs, L), m_plane = winograd_plane(outputs, L);
  float *v = scratch, *m = v + N * N * v_plane, *zeros = m + N * N * m_plane;
  float* turned = zeros + std::max(inputs, outputs) * L;
  std::fill(zeros, turned, 0.0f);
  const Tiles tiles(out, M);
  tiles.for_strips([&](Index first, Index count) {
    for (Index t = 0; t < count; ++t) {
      const Index row = tiles.row(first + t), column = tiles.column(first + t);
      lift<L, N, N>(in, x, row - top, column - left, zeros, v_plane, v + t * inputs * L,
                    [](const Floats* a, Floats* b) { W::input(a, b); });
      lift<L, M, N>(out, d, row, column, zeros, m_plane, m + t * outputs * L,
                    [](const Floats* a, Floats* b) { W::delta(a, b); });
    }
    const auto turn_plane = [&](Index p, float* vt, float* mt) {
      for (Index t = 0; t < count; ++t) {
        transpose(v + p * v_plane + t * inputs * L, inputs, L, L, padded, vt + t * L * padded);
        transpose(m + p * m_plane + t * outputs * L, outputs, L, L, outputs, mt + t * L * outputs);
      }
    };
    Sweep s{.pixels = padded / L,
            .rows = 1,
            .run = count * L,
            .x_pixel = L,
            .x_row = 0,
            .x_step = padded,
            .w_row = 0,
            .w_step = outputs,
            .y_pixel = L,
            .y_step = padded,
            .add = true};
    if (sums) {
      for (Index p = 0; p < N * N; ++p) {
        turn_plane(p, turned, turned + kStrip * L * padded);
        sweep_all<L>(s, outputs, turned, turned + kStrip * L * padded, 0, 0, nullptr,
                     sums + p * winograd_sums_plane(inputs, outputs));
      }
      return;
    }
    const Index plane = kStrip * L * (padded + outputs);
    for (Index p = 0; p < N * N; ++p) turn_plane(p, turned + p * plane, turned + p * plane + kStrip * L * padded);
    float* square_sums = turned + N * N * plane;
    s.add = false, s.y_step = kSquare;
    for (Index c = 0; c < inputs; c += kSquare) {
      s.pixels = std::min(kSquare, padded - c) / L;
      for_tiles(outputs, Lanes<L>::most, [&](Index n, Index some) {
        for (Index p = 0; p < N * N; ++p) {
          const float* vt = turned + p * plane;
          Kernels<L>::sweep_of(some)(s, vt + c, vt + kStrip * L * padded + n, nullptr, square_sums + p * kSquarePlane);
        }
        for (Index o = 0; o < some; ++o)
          for (Index i = 0; i < std::min(kSquare, inputs - c); i += kWidth)
            winograd_lower<W>(square_sums + o * kSquare + i, kSquarePlane, std::min<Index>(kWidth, inputs - c - i),
                              g + ((n + o) * inputs + c + i) * W::R * W::R);
      });
    }
  });
}

// Adds the sums of a batch to the gradient, [o][c][ky][kx], and forgets them.
template <class W> void winograd_gradient(Index inputs, Index outputs, float* sums, float* g) {
  constexpr int area = W::R * W::R, points = W::N * W::N;
  const Index padded = winograd_padded(inputs), plane = winograd_sums_plane(inputs, outputs);
  for (Index o = 0; o < outputs; ++o)
    for (Index c = 0; c < inputs; c += kWidth) {
      float* from = sums + o * padded + c;
      winograd_lower<W>(from, plane, std::min<Index>(kWidth, inputs - c), g + (o * inputs + c) * area);
      for (int p = 0; p < points; ++p) store(from + p * plane, Simd<kWidth>::Floats{});
    }
}

// `once`: also for weights that are transformed, and gradients that are lowered, a tile of outputs at a time.
inline Index winograd_scratch(Index inputs, Index outputs, Index points, Index lanes, bool once) {
  const Index most = std::max(inputs, outputs), turned = kStrip * (winograd_padded(inputs) + outputs) * lanes;
  const Index tile = winograd_weights_plane(most, kAccumulators), squares = points * (turned + kSquarePlane);
  return points * (winograd_plane(inputs, lanes) + winograd_plane(outputs, lanes)) + most * lanes +
         (once ? std::max(points * tile, squares) : turned);
}

}  // namespace
