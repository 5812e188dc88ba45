// MOON's contrast: a loss on the features, the inputs of the last layer.
#pragma once

#include <cmath>

#include "kernels.h"

namespace {

// mu * softplus(cos(z, previous) / t - cos(z, received) / t), its features [sample][feature].
struct Contrast {
  const float *received, *previous;
  double mu, temperature;
};

inline double length(double square) { return std::max(std::sqrt(square), 1e-8); }  // as in PyTorch

// The loss of one lane's features z; d becomes its gradient, divided by the size of the batch.
template <int L>
double contrast(const Contrast& c, Index sample, Index count, double batch, const float* z, float* d) {
  const float *near = c.received + sample * count, *far = c.previous + sample * count;
  double zz = 0, nn = 0, ff = 0, zn = 0, zf = 0;
  for (Index f = 0; f < count; ++f) {
    const double v = z[f * L], n = near[f], w = far[f];
    zz += v * v, nn += n * n, ff += w * w, zn += v * n, zf += v * w;
  }
  const double size = length(zz), of_near = length(nn), of_far = length(ff);
  const double to_near = zn / (size * of_near), to_far = zf / (size * of_far);
  const double margin = (to_far - to_near) / c.temperature;
  const double slope = c.mu / ((1 + std::exp(-margin)) * c.temperature * size * batch);
  for (Index f = 0; f < count; ++f)
    d[f * L] =
        static_cast<float>(slope * (far[f] / of_far - near[f] / of_near - (to_far - to_near) * z[f * L] / size));
  return c.mu * (std::max(margin, 0.0) + std::log1p(std::exp(-std::abs(margin))));
}

}  // namespace
