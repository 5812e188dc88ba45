// How a step follows from its gradient: the formulas are in fedasmu/engines/rule.py.
#pragma once

#include <cmath>

#include "kernels.h"

namespace {

// fedasmu/engines/native/library.py has the same fields in the same order.
struct Step {
  double lr, pull;
  const float *anchor, *mask;  // null: there is none
  float* state;                // what the optimiser remembers, [memory][parameter]
  double weight_decay, momentum, beta, beta2, eps;
  Index adam, done;  // whether it is Adam, not SGD; how many steps of the task are done

  void take(float* w, const float* gradient, Index count) const {
    if (adam)
      take_adam(w, gradient, count);
    else if (momentum > 0)
      take_momentum(w, gradient, count);
    else
      for (Index i = 0; i < count; ++i) w[i] -= static_cast<float>(lr) * change(w, gradient, i);
  }

 private:
  float change(const float* w, const float* gradient, Index i) const {
    float g = gradient[i];
    if (anchor) g += static_cast<float>(pull) * (w[i] - anchor[i]);
    if (weight_decay > 0) g += static_cast<float>(weight_decay) * w[i];
    return mask ? g * mask[i] : g;
  }

  void take_momentum(float* w, const float* gradient, Index count) const {
    const float rate = static_cast<float>(lr), kept = static_cast<float>(momentum);
    for (Index i = 0; i < count; ++i) {
      state[i] = kept * state[i] + change(w, gradient, i);
      w[i] -= rate * state[i];
    }
  }

  void take_adam(float* w, const float* gradient, Index count) const {
    const double number = static_cast<double>(done + 1);
    const float rate = static_cast<float>(lr / (1 - std::pow(beta, number)));
    const float share = static_cast<float>(1 / (1 - std::pow(beta2, number))), small = static_cast<float>(eps);
    const float b1 = static_cast<float>(beta), b2 = static_cast<float>(beta2);
    const float c1 = static_cast<float>(1 - beta), c2 = static_cast<float>(1 - beta2);
    float *first = state, *second = state + count;
    for (Index i = 0; i < count; ++i) {
      const float g = change(w, gradient, i);
      first[i] = b1 * first[i] + c1 * g;
      second[i] = b2 * second[i] + c2 * g * g;
      w[i] -= rate * first[i] / (std::sqrt(second[i] * share) + small);
    }
  }
};

}  // namespace
