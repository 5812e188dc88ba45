// The weights of a convolution, kernel by kernel as the model holds them, and as vectors of kernels, tap by tap.
#pragma once

#include "kernels.h"

namespace {

// The kernels of a convolution as the model holds them; or turned round and with their channels exchanged, which is the
// convolution of the way back.
struct Filters {
  const float* w;
  Index output, input;  // from one to the next
  bool turned;
  const float* at(Index n, Index k) const { return w + n * output + k * input; }
};

// The taps of `count` kernels, `apart` from each other, as vectors of kernels; 0 where there is none.
template <int R> inline void read_taps(const float* from, Index apart, Index count, bool turned,
                                       Simd<kWidth>::Floats (&w)[R][R]) {
  constexpr int area = R * R, parts = (area + kWidth - 1) / kWidth;
  Simd<kWidth>::Floats rows[parts][kWidth] = {};
  for (Index i = 0; i < count; ++i)
#pragma GCC unroll 4
    for (int q = 0; q < area; q += kWidth)
      std::memcpy(&rows[q / kWidth][i], from + i * apart + q, std::min(kWidth, area - q) * sizeof(float));
  for (auto* part : rows) turn(part);
  for (int q = 0; q < area; ++q) {
    const int tap = turned ? area - 1 - q : q;
    w[q / R][q % R] = rows[tap / kWidth][tap % kWidth];
  }
}

// And back: adds vectors of kernels to kernels that lie one after the other.
template <int R> inline void add_taps(const Simd<kWidth>::Floats (&w)[R][R], Index count, float* to) {
  constexpr int area = R * R, parts = (area + kWidth - 1) / kWidth;
  Simd<kWidth>::Floats rows[parts][kWidth] = {};
  for (int q = 0; q < area; ++q) rows[q / kWidth][q % kWidth] = w[q / R][q % R];
  for (auto* part : rows) turn(part);
  float taps[(kWidth - 1) * area + parts * kWidth];
  for (int i = 0; i < kWidth; ++i)
    for (int part = 0; part < parts; ++part) store(taps + i * area + part * kWidth, rows[part][i]);
  for (Index q = 0; q < count * area; ++q) to[q] += taps[q];
}

}  // namespace
