// The arithmetic of the engine. A block is 8 or 16 samples, and the sample is the innermost dimension of every array:
// one activation of a block is a vector register, or a few. So the loops below vectorise over samples, whatever the
// number of channels. Two kernels do nearly all the work: `sweep` and `correlate`.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

namespace {

using Index = std::int64_t;

#if defined(__AVX512F__)
constexpr int kWidth = 16, kAccumulators = 16, kTileRows = 4, kTileColumns = 6;
#elif defined(__AVX__)
constexpr int kWidth = 8, kAccumulators = 12, kTileRows = 2, kTileColumns = 6;
#elif defined(__aarch64__)
constexpr int kWidth = 4, kAccumulators = 24, kTileRows = 4, kTileColumns = 6;
#else
constexpr int kWidth = 4, kAccumulators = 12, kTileRows = 2, kTileColumns = 6;
#endif

// How an activation lies in memory: rows of pixels of channels (of samples), with a ring of zeros around the image as
// wide as the padding of the convolution that reads it. Sizes are in activations, not in floats.
struct Map {
  Index channels, height, width, top = 0, left = 0, bottom = 0, right = 0;
  Index row() const { return (left + width + right) * channels; }
  Index size() const { return (top + height + bottom) * row(); }
  Index at(Index y, Index x) const { return (top + y) * row() + (left + x) * channels; }
  bool operator==(const Map&) const = default;
};

template <int Width> struct Simd;
template <> struct Simd<4> {
  typedef float Floats __attribute__((vector_size(16)));
  typedef std::int32_t Ints __attribute__((vector_size(16)));
};
template <> struct Simd<8> {
  typedef float Floats __attribute__((vector_size(32)));
  typedef std::int32_t Ints __attribute__((vector_size(32)));
};
template <> struct Simd<16> {
  typedef float Floats __attribute__((vector_size(64)));
  typedef std::int32_t Ints __attribute__((vector_size(64)));
};

template <class Vector> inline Vector load(const void* from) {
  Vector v;
  std::memcpy(&v, from, sizeof v);  // no alignment is assumed anywhere: parameters start where they start
  return v;
}
template <class Vector> inline void store(void* to, Vector v) { std::memcpy(to, &v, sizeof v); }

// One number of each of a block's L samples.
template <int L> struct Lanes {
  static constexpr int width = std::min(L, kWidth), parts = L / width, most = kAccumulators / parts;
  using Floats = typename Simd<width>::Floats;
  using Ints = typename Simd<width>::Ints;
};

// Every other group of S lanes, the even or the odd ones, of two vectors: a0 b0 a2 b2 ... or a1 b1 a3 b3 ...
template <int S, bool odd, class Floats, int... I>
inline Floats groups(Floats a, Floats b, std::integer_sequence<int, I...>) {
  constexpr int width = sizeof...(I);
#if defined(__clang__)
  return __builtin_shufflevector(a, b, (I / (2 * S) * 2 * S + I % S + odd * S + (I / S % 2) * width)...);
#else
  const typename Simd<width>::Ints lanes = {(I / (2 * S) * 2 * S + I % S + odd * S + (I / S % 2) * width)...};
  return __builtin_shuffle(a, b, lanes);
#endif
}
template <int S, class Floats> inline Floats even(Floats a, Floats b) {
  return groups<S, false>(a, b, std::make_integer_sequence<int, sizeof(Floats) / sizeof(float)>{});
}
template <int S, class Floats> inline Floats odd(Floats a, Floats b) {
  return groups<S, true>(a, b, std::make_integer_sequence<int, sizeof(Floats) / sizeof(float)>{});
}

// The sums of N vectors' lanes, in the leading lanes of v[0], v[1], ...: neighbours are folded into one until all are.
template <int N, int S = 1, class Floats> inline void fold(Floats* v) {
  if constexpr (S < int(sizeof(Floats) / sizeof(float))) {
#pragma GCC unroll 16
    for (int i = 0; i < N; i += 2) {
      const Floats other = i + 1 < N ? v[i + 1] : Floats{};
      v[i / 2] = even<S>(v[i], other) + odd<S>(v[i], other);
    }
    fold<(N + 1) / 2, 2 * S>(v);
  }
}

// Exchanges the rows and the columns of a square of numbers.
template <int S = 1, class Floats> inline void turn(Floats* v) {
  constexpr int width = sizeof(Floats) / sizeof(float);
  if constexpr (S < width) {
#pragma GCC unroll 16
    for (int i = 0; i < width; ++i)
      if (!(i & S)) {
        const Floats a = v[i], b = v[i + S];
        v[i] = even<S>(a, b);
        v[i + S] = odd<S>(a, b);
      }
    turn<2 * S>(v);
  }
}

// to[c][r] = from[r][c], by squares; what is left of them one by one.
inline void transpose(const float* from, Index rows, Index columns, Index from_stride, Index to_stride, float* to) {
  using Floats = Simd<kWidth>::Floats;
  for (Index r = 0; r < rows; r += kWidth)
    for (Index c = 0; c < columns; c += kWidth) {
      if (r + kWidth > rows || c + kWidth > columns) {
        for (Index i = r; i < std::min(r + kWidth, rows); ++i)
          for (Index j = c; j < std::min(c + kWidth, columns); ++j) to[j * to_stride + i] = from[i * from_stride + j];
        continue;
      }
      Floats square[kWidth];
      for (Index i = 0; i < kWidth; ++i) square[i] = load<Floats>(from + (r + i) * from_stride + c);
      turn(square);
      for (Index j = 0; j < kWidth; ++j) store(to + (c + j) * to_stride + r, square[j]);
    }
}

// y[p][n] = start[n] + sum over r, k of w[r][k][n] * x[p][r][k]: convolution, linear layer, and the gradients of their
// inputs are all this sum, with other strides. Strides are in floats; x and y point at the first sample of a block.
struct Sweep {
  Index pixels, rows, run;
  Index x_pixel, x_row, x_step;
  Index w_row, w_step = 0;  // counted in weights of one output; and the distance between them, 0 if packed
  Index y_pixel, y_step;
  bool add = false;  // to what y holds, instead of replacing it
  bool relu = false;
};

template <int L, int N> void sweep(const Sweep& s, const float* x, const float* w, const float* start, float* y) {
  using Floats = typename Lanes<L>::Floats;
  constexpr int parts = Lanes<L>::parts, width = Lanes<L>::width;
  for (Index p = 0; p < s.pixels; ++p, x += s.x_pixel, y += s.y_pixel) {
    Floats total[N][parts];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n)
#pragma GCC unroll 4
      for (int i = 0; i < parts; ++i) total[n][i] = Floats{} + (start ? start[n] : 0.0f);
    for (Index r = 0; r < s.rows; ++r) {
      const float *row = x + r * s.x_row, *weight = w + r * s.w_row * s.w_step;
      for (Index k = 0; k < s.run; ++k, row += s.x_step, weight += s.w_step) {
        Floats value[parts];
#pragma GCC unroll 4
        for (int i = 0; i < parts; ++i) value[i] = load<Floats>(row + i * width);
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n)
#pragma GCC unroll 4
          for (int i = 0; i < parts; ++i) total[n][i] += weight[n] * value[i];
      }
    }
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n)
#pragma GCC unroll 4
      for (int i = 0; i < parts; ++i) {
        float* to = y + n * s.y_step + i * width;
        Floats v = total[n][i];
        if (s.add) v += load<Floats>(to);
        if (s.relu) v = Floats{} > v ? Floats{} : v;  // NaN stays NaN: a diverged model must show
        store(to, v);
      }
  }
}

// g[o][j] = sum over rows, pixels and samples of d[o] * x[j]: the gradient of a convolution's weights.
struct Correlation {
  Index rows, pixels;
  Index d_row, d_pixel;
  Index x_row, x_pixel;
};

template <int L, int O, int J> void correlate(const Correlation& c, const float* d, const float* x, float* g) {
  using Floats = typename Lanes<L>::Floats;
  constexpr int parts = Lanes<L>::parts, width = Lanes<L>::width;
  Floats total[O][J] = {};
  for (Index r = 0; r < c.rows; ++r) {
    const float *delta = d + r * c.d_row, *value = x + r * c.x_row;
    for (Index p = 0; p < c.pixels; ++p, delta += c.d_pixel, value += c.x_pixel)
#pragma GCC unroll 4
      for (int i = 0; i < parts; ++i) {
        Floats v[J];
#pragma GCC unroll 6
        for (int j = 0; j < J; ++j) v[j] = load<Floats>(value + j * L + i * width);
#pragma GCC unroll 4
        for (int o = 0; o < O; ++o) {
          Floats e = load<Floats>(delta + o * L + i * width);
#pragma GCC unroll 6
          for (int j = 0; j < J; ++j) total[o][j] += e * v[j];
        }
      }
  }
  Floats sums[O * J];
#pragma GCC unroll 4
  for (int o = 0; o < O; ++o)
#pragma GCC unroll 6
    for (int j = 0; j < J; ++j) sums[o * J + j] = total[o][j];
  fold<O * J>(sums);
  std::memcpy(g, sums, O * J * sizeof(float));
}

// The kernels above, compiled for every size of tile.
template <int L> struct Kernels {
  using SweepOf = void (*)(const Sweep&, const float*, const float*, const float*, float*);
  using CorrelateOf = void (*)(const Correlation&, const float*, const float*, float*);

  static SweepOf sweep_of(Index outputs) {
    static constexpr auto table = sweeps(std::make_integer_sequence<int, Lanes<L>::most>{});
    return table[outputs - 1];
  }
  static CorrelateOf correlate_of(Index rows, Index columns) {
    static constexpr auto table = correlations(std::make_integer_sequence<int, kTileRows * kTileColumns>{});
    return table[(rows - 1) * kTileColumns + columns - 1];
  }

 private:
  template <int... N> static constexpr auto sweeps(std::integer_sequence<int, N...>) {
    return std::array<SweepOf, sizeof...(N)>{sweep<L, N + 1>...};
  }
  template <int... T> static constexpr auto correlations(std::integer_sequence<int, T...>) {
    return std::array<CorrelateOf, sizeof...(T)>{correlate<L, T / kTileColumns + 1, T % kTileColumns + 1>...};
  }
};

// Cuts `total` into the fewest tiles of at most `most`, as equal as can be: a tile of one would waste the pipeline.
template <class Body> void for_tiles(Index total, Index most, Body body) {
  const Index tiles = (total + most - 1) / most;
  for (Index t = 0; t < tiles; ++t) {
    const Index begin = t * total / tiles, end = (t + 1) * total / tiles;
    body(begin, end - begin);
  }
}

// Runs a sweep for all outputs, a tile of them at a time. Packed weights lie tile by tile, [tile][k][n], so that a tile
// reads them in one stream: `depth` is how many weights an output has, `begin` at which of them to start.
template <int L>
void sweep_all(Sweep s, Index outputs, const float* x, const float* w, Index depth, Index begin, const float* start,
               float* y) {
  const bool packed = s.w_step == 0;
  for_tiles(outputs, Lanes<L>::most, [&](Index n, Index count) {
    if (packed) s.w_step = count;
    const float* weights = packed ? w + n * depth + begin * count : w + n;
    Kernels<L>::sweep_of(count)(s, x, weights, start ? start + n : nullptr, y + n * s.y_step);
  });
}

}  // namespace
