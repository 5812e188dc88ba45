// Runs the engine on exactly sized memory, for the address and undefined-behaviour sanitizers:
// test_native_sanitizers.py.
#include <cstdio>

#include "../fedasmu/native/engine.cpp"

namespace {

struct Chain {
  std::vector<Index> numbers;
  Index channels, height, width, size = 0;

  void add(Kind kind, Index c, Index h, Index w, Index k, Index s, Index pad, Index weights, bool relu) {
    const Index bias = weights ? size + weights : -1;
    numbers.insert(numbers.end(), {static_cast<Index>(kind), channels, height, width, c, h, w, k, k, s, s, pad, pad,
                                   pad, pad, weights ? size : -1, bias, relu});
    size += weights ? weights + c : 0;
    channels = c, height = h, width = w;
  }
  Index after(Index side, Index k, Index s, Index pad) const { return (side + 2 * pad - k) / s + 1; }
  void convolution(Index c, Index k, Index s, Index pad) {
    add(Kind::kConvolution, c, after(height, k, s, pad), after(width, k, s, pad), k, s, pad, c * channels * k * k,
        true);
  }
  void maximum(Index k, Index s) {
    add(Kind::kMaximum, channels, after(height, k, s, 0), after(width, k, s, 0), k, s, 0, 0, true);
  }
  void flatten() { add(Kind::kFlatten, channels * height * width, 1, 1, 1, 1, 0, 0, false); }
  void dropout() { add(Kind::kDropout, channels, 1, 1, 1, 1, 0, 0, false); }
  void linear(Index c) { add(Kind::kLinear, c, 1, 1, 1, 1, 0, c * channels, false); }
};

template <class Number>
void exercise(const Chain& chain, Index examples, Index sample, Index scales, bool floats, const Index* text = nullptr,
              Index dropped = 0) {
  std::vector<float> vector(chain.size), anchor(chain.size, 0.1f), mask(chain.size, 1.0f), gradient(chain.size);
  for (Index i = 0; i < chain.size; ++i) vector[i] = static_cast<float>(i * 37 % 101) / 400.0f - 0.12f;
  std::vector<Number> inputs(examples * sample);
  for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i] = static_cast<Number>(i * 31 % 17);
  std::vector<float> scale(scales, 0.05f), shift(scales, -0.4f);
  std::vector<Index> targets(examples), indices(examples);
  for (Index i = 0; i < examples; ++i) targets[i] = i % 3, indices[i] = examples - 1 - i;
  const std::vector<float> noise(examples * dropped, 2.0f);
  const float* drop = dropped ? noise.data() : nullptr;
  const Index width = chain.numbers[chain.numbers.size() - 17];  // of the last layer's input
  std::vector<float> near(examples * width, 0.5f), far(examples * width);
  const Contrast contrast{near.data(), far.data(), 0.5, 0.5};
  const bool deep = chain.numbers.size() > 18;
  const Data data{inputs.data(), scale.data(), shift.data(), targets.data(), floats};
  const Step step{0.01, 0.1, anchor.data(), mask.data()};
  const std::vector<Index> sizes{1, examples - 1};
  void* engine = engine_new(chain.numbers.data(), chain.numbers.size() / 18, text, chain.size);
  if (deep) engine_features(engine, vector.data(), &data, indices.data(), examples, far.data());
  Index correct = 0;
  double loss = engine_train(engine, vector.data(), chain.size, &data, indices.data(), sizes.data(), 2, drop,
                             deep ? &contrast : nullptr, &step);
  loss += engine_gradient(engine, vector.data(), chain.size, &data, indices.data(), examples, drop, gradient.data());
  loss += engine_evaluate(engine, vector.data(), &data, nullptr, examples, nullptr, &correct);
  engine_free(engine);
  std::printf("%.6f\n", loss);
}

}  // namespace

int main() {
  for (const Index examples : {2, 9, 17, 41}) {
    Chain image{{}, 3, 11, 9};
    image.convolution(20, 3, 1, 1);
    image.convolution(17, 3, 1, 1);
    image.maximum(2, 2);
    image.convolution(18, 2, 1, 0);
    image.convolution(5, 3, 2, 2);
    image.maximum(2, 1);
    image.flatten();
    image.linear(19);
    image.linear(3);
    exercise<std::uint8_t>(image, examples, 3 * 11 * 9, 3, false);
    exercise<float>(image, examples, 3 * 11 * 9, 3, true);
    Chain flat{{}, 21, 1, 1};
    flat.linear(3);
    exercise<float>(flat, examples, 21, 21, true);
    // Texts of 11 words out of 17, with vectors of 5: windows of 3 (18 filters) and of 1 (2 filters, without a bias).
    const Index vectors = 17 * 5, wide = 18 * 5 * 3, narrow = 2 * 5;
    Chain words{{}, 20, 1, 1, vectors + wide + 18 + narrow};
    const Index text[] = {11, 17, 5, 0, 0, 2, 3, 18, vectors, vectors + wide, 1, 1, 2, vectors + wide + 18, -1, 0};
    words.dropout();
    words.linear(3);
    exercise<Index>(words, examples, 11, 0, false, text, 20);
    // More texts than are read together, and more words than terms are computed together.
    exercise<Index>(words, examples + 128, 11, 0, false, text, 20);
    Chain many{{}, 4, 1, 1, 300 * 2 + 4 * 2 * 2 + 4};
    const Index long_text[] = {400, 300, 2, 0, -1, 1, 2, 4, 600, 616, 1};
    many.linear(3);
    exercise<Index>(many, examples, 400, 0, false, long_text);
  }
}
