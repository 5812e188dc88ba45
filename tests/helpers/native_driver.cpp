// Runs the engine on exactly sized memory, for the address and undefined-behaviour sanitizers:
// test_sanitizers.py.
#include <cstdio>

#include "../../fedasmu/engines/native/engine.cpp"

namespace {

struct Network {
  Index channels, height, width, size = 0;
  std::vector<Description> layers = {};

  Description& add(Kind kind, Index c, Index h, Index w, Index k, Index s, Index pad, Index weights, bool relu) {
    Description d{};
    d.kind = kind, d.from = static_cast<Index>(layers.size()), d.other = -1;
    d.in[0] = channels, d.in[1] = height, d.in[2] = width, d.out[0] = c, d.out[1] = h, d.out[2] = w;
    for (const int axis : {0, 1}) d.kernel[axis] = k, d.stride[axis] = s;
    for (Index& side : d.padding) side = pad;
    d.weight = weights ? size : -1, d.bias = weights ? size + weights : -1, d.mean = d.variance = -1;
    d.groups = 1, d.relu = relu, d.eps = 1e-5, d.momentum = 0.1;
    size += weights ? weights + c : 0;
    channels = c, height = h, width = w;
    layers.push_back(d);
    return layers.back();
  }
  Index after(Index side, Index k, Index s, Index pad) const { return (side + 2 * pad - k) / s + 1; }
  void convolution(Index c, Index k, Index s, Index pad, bool relu = true) {
    add(Kind::kConvolution, c, after(height, k, s, pad), after(width, k, s, pad), k, s, pad, c * channels * k * k,
        relu);
  }
  void window(Kind kind, Index k, Index s) {
    add(kind, channels, after(height, k, s, 0), after(width, k, s, 0), k, s, 0, 0, kind == Kind::kMaximum);
  }
  void shortcut(Index from, Index s, Index front, Index back) {  // of what the layer `from` reads
    const Description d = layers[from];
    channels = d.in[0], height = d.in[1], width = d.in[2];
    Description& made =
        add(Kind::kShortcut, channels + front + back, (height + s - 1) / s, (width + s - 1) / s, 1, s, 0, 0, false);
    made.from = d.from, made.front = front;
  }
  void sum(Index one, Index two) {
    Description& made = add(Kind::kSum, channels, height, width, 1, 1, 0, 0, true);
    made.from = one, made.other = two;
  }
  void norm(Kind kind, Index groups) {
    Description& made = add(kind, channels, height, width, 1, 1, 0, channels, false);
    made.groups = groups;
    if (kind == Kind::kBatchNorm) made.mean = size, made.variance = size + channels, size += 2 * channels;
  }
  void flatten() { add(Kind::kFlatten, channels * height * width, 1, 1, 1, 1, 0, 0, false); }
  void dropout() { add(Kind::kDropout, channels, 1, 1, 1, 1, 0, 0, false); }
  void linear(Index c) { add(Kind::kLinear, c, 1, 1, 1, 1, 0, c * channels, false); }
};

template <class Number>
void exercise(const Network& network, Index examples, Index sample, Index scales, bool floats,
              const TextDescription* text = nullptr, Index dropped = 0) {
  std::vector<float> vector(network.size), anchor(network.size, 0.1f), mask(network.size, 1.0f), gradient(network.size);
  for (Index i = 0; i < network.size; ++i) vector[i] = static_cast<float>(i * 37 % 101) / 400.0f - 0.12f;
  for (const Description& d : network.layers)
    if (d.kind == Kind::kBatchNorm) std::fill_n(&vector[d.variance], d.in[0], 1.0f);
  std::vector<Number> inputs(examples * sample);
  for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i] = static_cast<Number>(i * 31 % 17);
  std::vector<float> scale(scales, 0.05f), shift(scales, -0.4f);
  std::vector<Index> targets(examples), indices(examples);
  for (Index i = 0; i < examples; ++i) targets[i] = i % 3, indices[i] = examples - 1 - i;
  const std::vector<float> noise(examples * dropped, 2.0f);
  const float* drop = dropped ? noise.data() : nullptr;
  const Index width = network.layers.back().in[0];
  std::vector<float> near(examples * width, 0.5f), far(examples * width);
  const Contrast contrast{near.data(), far.data(), 0.5, 0.5};
  const std::vector<float> raised(network.layers.back().out[0], -0.5f);
  const bool deep = network.layers.size() > 1;
  const Data data{inputs.data(), scale.data(), shift.data(), targets.data(), floats};
  std::vector<float> state(2 * network.size);
  Step step{0.01, 0.1, anchor.data(), mask.data(), state.data(), 0.01, 0.9, 0.9, 0.999, 1e-8, 0, 0};
  const std::vector<Index> sizes{1, examples - 1};
  void* engine = engine_new(network.layers.data(), static_cast<Index>(network.layers.size()), text, network.size);
  if (!engine || !engine_reserve(engine, examples)) return;
  if (deep) engine_features(engine, vector.data(), &data, indices.data(), examples, far.data());
  Index correct = 0;
  double loss = engine_train(engine, vector.data(), network.size, &data, indices.data(), sizes.data(), 2, drop,
                             deep ? &contrast : nullptr, nullptr, &step);
  step.adam = 1, step.done = 2;
  std::fill(state.begin(), state.end(), 0.0f);
  loss += engine_train(engine, vector.data(), network.size, &data, indices.data(), sizes.data(), 2, drop, nullptr,
                       raised.data(), &step);
  loss += engine_gradient(engine, vector.data(), network.size, &data, indices.data(), examples, drop, gradient.data());
  for (const Index training : {0, 1})
    loss += engine_evaluate(engine, vector.data(), &data, nullptr, examples, nullptr, training, &correct);
  engine_free(engine);
  std::printf("%.6f\n", loss);
}

}  // namespace

int main() {
  for (const Index examples : {2, 9, 17, 41}) {
    Network image{3, 11, 9};
    image.convolution(20, 3, 1, 1);
    image.convolution(70, 3, 1, 1);
    image.window(Kind::kMaximum, 2, 2);
    image.convolution(18, 2, 1, 0);
    image.convolution(5, 3, 2, 2);
    image.window(Kind::kMaximum, 2, 1);
    image.flatten();
    image.linear(19);
    image.linear(3);
    exercise<std::uint8_t>(image, examples, 3 * 11 * 9, 3, false);
    exercise<float>(image, examples, 3 * 11 * 9, 3, true);
    for (const Kind kind : {Kind::kBatchNorm, Kind::kGroupNorm}) {
      Network residual{3, 11, 9};
      residual.convolution(16, 3, 1, 1, false);   // tensor 1
      residual.norm(kind, 2);                     // tensor 2
      residual.convolution(18, 3, 2, 1, false);   // tensor 3
      residual.norm(kind, 3);                     // tensor 4
      residual.shortcut(2, 2, 1, 1);              // tensor 5, of tensor 2
      residual.sum(4, 5);                         // tensor 6
      residual.convolution(18, 3, 1, 1, false);   // tensor 7
      residual.sum(7, 6);                         // tensor 8
      residual.window(Kind::kAverage, 2, 1);
      residual.flatten();
      residual.linear(3);
      exercise<float>(residual, examples, 3 * 11 * 9, 3, true);
    }
    Network flat{21, 1, 1};
    flat.linear(3);
    exercise<float>(flat, examples, 21, 21, true);
    // Texts of 11 words out of 17, with vectors of 5: windows of 3 (18 filters) and of 1 (2 filters, without a bias).
    const Index vectors = 17 * 5, wide = 18 * 5 * 3, narrow = 2 * 5;
    Network words{20, 1, 1, vectors + wide + 18 + narrow};
    const Window windows[] = {{3, 18, vectors, vectors + wide, 1}, {1, 2, vectors + wide + 18, -1, 0}};
    const TextDescription text{11, 17, 5, 0, 0, 2, windows};
    words.dropout();
    words.linear(3);
    exercise<Index>(words, examples, 11, 0, false, &text, 20);
    // More texts than are read together, and more words than terms are computed together.
    exercise<Index>(words, examples + 128, 11, 0, false, &text, 20);
    Network many{4, 1, 1, 300 * 2 + 4 * 2 * 2 + 4};
    const Window window{2, 4, 600, 616, 1};
    const TextDescription long_text{400, 300, 2, 0, -1, 1, &window};
    many.linear(3);
    exercise<Index>(many, examples, 400, 0, false, &long_text);
  }
}
