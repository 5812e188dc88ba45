// A training engine for small networks on one processor core: see docs/explanation/engine.md.
// The interface is plain C. The caller (fedasmu/native) checks every argument; nothing is checked here.
#include <memory>

#include "block.h"

namespace {

// What one step of SGD subtracts: lr * mask * (gradient + pull * (w - anchor)).
struct Step {
  double lr, pull;
  const float* anchor;
  const float* mask;
};

class Engine {
 public:
  Engine(std::vector<Layer> layers, std::unique_ptr<Text> text, Index size)
      : layers_(std::move(layers)),
        text_(std::move(text)),
        wide_(layers_, text_.get()),
        narrow_(layers_, text_.get()),
        gradient_(size),
        size_(size) {}

  // How many numbers the dropouts want for each sample.
  Index noise() const { return layers_.back().noise_after(); }

  // Adds to the gradient if `training`.
  Score measure(const float* vector, const Data& data, const Batch& batch, bool training) {
    Score total;
    if (text_) text_->pack_weights(vector);
    const Index in_wide = (batch.size + 7) / 16 * 16;  // 8 samples or fewer at the end cost half in a narrow block
    run(wide_, vector, data, batch, 0, in_wide, training, total);
    run(narrow_, vector, data, batch, in_wide, batch.size, training, total);
    if (text_ && training) text_->add_gradient(gradient_.data());
    return total;
  }

  double train(float* vector, Index trainable, const Data& data, const Batch& batch, const Step& step) {
    const Score score = measure(vector, data, batch, true);
    descend(vector, trainable, step);
    return score.loss / static_cast<double>(batch.size);
  }

  // What the last layer reads, of every sample.
  void features(const float* vector, const Data& data, const Batch& batch, float* to) {
    if (text_) text_->pack_weights(vector);
    wide_.pack_weights(vector);
    for (Index first = 0; first < batch.size; first += 16) {
      wide_.read(vector, data, batch, first);
      wide_.forward(vector, batch, first, false);
      wide_.features(batch.live(first, 16), to + first * width());
    }
  }

  Index width() const { return layers_.back().in.channels; }  // how many features

  // Hands out the gradient and forgets it.
  void take_gradient(float* to, Index trainable) {
    std::copy_n(gradient_.data(), trainable, to);
    std::fill_n(gradient_.data(), size_, 0.0f);
  }

 private:
  template <int L>
  void run(Block<L>& block, const float* vector, const Data& data, const Batch& batch, Index first, Index end,
           bool training, Score& total) {
    if (first < end) block.pack_weights(vector);
    for (; first < end; first += L) {
      block.read(vector, data, batch, first);
      block.forward(vector, batch, first, training);
      block.score(data, batch, first, total);
      if (training) block.backward(vector, batch, first, gradient_.data());
    }
  }

  void descend(float* vector, Index trainable, const Step& step) {
    const float lr = static_cast<float>(step.lr), pull = static_cast<float>(step.pull);
    float* gradient = gradient_.data();
    for (Index i = 0; i < trainable; ++i) {
      float change = gradient[i];
      if (step.anchor) change += pull * (vector[i] - step.anchor[i]);
      if (step.mask) change *= step.mask[i];
      vector[i] -= lr * change;
    }
    std::fill_n(gradient, size_, 0.0f);
  }

  std::vector<Layer> layers_;
  std::unique_ptr<Text> text_;  // null: the data are images or numbers
  Block<16> wide_;
  Block<8> narrow_;
  Buffer gradient_;
  Index size_;
};

std::unique_ptr<Text> text_of(const Index* n) {
  std::vector<Window> windows;
  const Index* end = n + 6 + 5 * n[5];
  for (const Index* w = n + 6; w < end; w += 5) windows.push_back({w[0], w[1], w[2], w[3], w[4] != 0});
  return std::make_unique<Text>(n[0], n[1], n[2], n[3], n[4], std::move(windows));
}

}  // namespace

extern "C" {

// The best instruction set of this processor: 0 none in particular, 1 AVX2, 2 AVX-512.
int engine_level() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq"))
    return 2;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
  return 0;
}

// A layer is 18 numbers: kind, the input's channels, height, width, the output's, kernel y x, stride y x, the padding
// at the top, left, bottom and right, the offsets of weight and bias, and whether a ReLU follows. A text in front of
// them is its length, vocabulary and depth, the offset of the vectors, the padding, how many windows, and of each its
// width, filters, the offsets of weight and bias, and whether a ReLU follows; null: there is none.
void* engine_new(const Index* numbers, Index count, const Index* text, Index size) {
  try {
    std::vector<Layer> layers;
    for (const Index* n = numbers; count-- > 0; n += 18) {
      Layer l{static_cast<Kind>(n[0]),
              {n[1], n[2], n[3], n[11], n[12], n[13], n[14]},
              {n[4], n[5], n[6]},
              n[7],
              n[8],
              n[9],
              n[10],
              n[15],
              n[16],
              n[17] != 0};
      if (!layers.empty()) layers.back().out = l.in;  // the ring of zeros that the next layer wants
      if (!layers.empty()) l.packed = layers.back().packed + layers.back().packed_size();
      if (!layers.empty()) l.noise = layers.back().noise_after();
      layers.push_back(l);
    }
    return new Engine(std::move(layers), text ? text_of(text) : nullptr, size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void engine_free(void* engine) { delete static_cast<Engine*>(engine); }

double engine_train(void* engine, float* vector, Index trainable, const Data* data, const Index* indices,
                    const Index* sizes, Index batches, const float* noise, const Contrast* contrast, const Step* step) {
  Engine& e = *static_cast<Engine*>(engine);
  Contrast here = contrast ? *contrast : Contrast{};
  double loss = 0;
  for (Index b = 0; b < batches; indices += sizes[b++]) {
    loss += e.train(vector, trainable, *data, {indices, sizes[b], noise, contrast ? &here : nullptr}, *step);
    if (noise) noise += e.noise() * sizes[b];
    if (contrast) here.received += e.width() * sizes[b], here.previous += e.width() * sizes[b];
  }
  return loss;
}

void engine_features(void* engine, const float* vector, const Data* data, const Index* indices, Index count,
                     float* features) {
  static_cast<Engine*>(engine)->features(vector, *data, {indices, count, nullptr, nullptr}, features);
}

double engine_gradient(void* engine, const float* vector, Index trainable, const Data* data, const Index* indices,
                       Index count, const float* noise, float* gradient) {
  Engine& e = *static_cast<Engine*>(engine);
  const Score score = e.measure(vector, *data, {indices, count, noise, nullptr}, true);
  e.take_gradient(gradient, trainable);
  return score.loss;
}

double engine_evaluate(void* engine, const float* vector, const Data* data, const Index* indices, Index count,
                       const float* noise, Index* correct) {
  const Score score = static_cast<Engine*>(engine)->measure(vector, *data, {indices, count, noise, nullptr}, false);
  *correct = score.correct;
  return score.loss;
}

}  // extern "C"
