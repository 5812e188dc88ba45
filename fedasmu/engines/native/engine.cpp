// A training engine for small networks on one processor core: see docs/explanation/engine.md.
// The interface is plain C. The caller (fedasmu/engines/native) checks every argument; nothing is checked here.
#include <deque>
#include <memory>

#include "block.h"
#include "step.h"

namespace {

enum class Mode { kEvaluate, kMeasure, kLearn };  // kMeasure: as in training, but without the way back

class Engine {
 public:
  Engine(Graph graph, std::unique_ptr<Text> text, Index size)
      : graph_(std::move(graph)), text_(std::move(text)), wide_work_(graph_), narrow_work_(graph_), gradient_(size),
        size_(size) {
    for (const Layer& l : graph_.layers())
      if (l.kind == Kind::kBatchNorm) norms_.emplace_back(l);
    wide_.emplace_back(graph_, norms_, text_.get(), wide_work_);
    narrow_ = std::make_unique<Block<8>>(graph_, norms_, text_.get(), narrow_work_);
  }

  // Memory for batches of this size: where blocks wait for each other, each has its own.
  void reserve(Index batch) {
    while (graph_.cut() && static_cast<Index>(wide_.size()) * 16 < in_wide(batch))
      wide_.emplace_back(graph_, norms_, text_.get(), wide_work_);
  }

  // How many numbers the dropouts want for each sample.
  Index noise() const { return graph_.layers().back().noise_after(); }

  // Adds to the gradient if it learns. `running` is the vector if its running statistics shall learn, otherwise null.
  Score measure(const float* vector, float* running, const Data& data, const Batch& batch, Mode mode) {
    Score total;
    prepare(vector, batch.size, mode == Mode::kEvaluate);
    if (mode == Mode::kEvaluate) {
      for_blocks(batch.size, false, [&](auto& block, Index first, Index) {
        block.read(vector, data, batch, first);
        block.forward(vector, batch, first, 0, cut(segments()), false);
        block.score(data, batch, first, total);
      });
      return total;
    }
    for (Index segment = 0; segment < segments(); ++segment)
      forward(segment, vector, running, data, batch, mode == Mode::kLearn, total);
    for (Index segment = segments() - 1; mode == Mode::kLearn && segment-- > 0;) backward(segment, vector, batch);
    if (mode == Mode::kLearn) settle_weights(batch.size);
    return total;
  }

  double train(float* vector, Index trainable, const Data& data, const Batch& batch, const Step& step) {
    const Score score = measure(vector, vector, data, batch, Mode::kLearn);
    step.take(vector, gradient_.data(), trainable);
    std::fill_n(gradient_.data(), size_, 0.0f);
    return score.loss / static_cast<double>(batch.size);
  }

  // What the last layer reads, of every sample.
  void features(const float* vector, const Data& data, const Batch& batch, float* to) {
    prepare(vector, batch.size, true);
    for_blocks(batch.size, false, [&](auto& block, Index first, Index live) {
      block.read(vector, data, batch, first);
      block.forward(vector, batch, first, 0, cut(segments()), false);
      block.features(live, to + first * width());
    });
  }

  Index width() const { return graph_.layers().back().in.channels; }  // how many features

  // Hands out the gradient and forgets it.
  void take_gradient(float* to, Index trainable) {
    std::copy_n(gradient_.data(), trainable, to);
    std::fill_n(gradient_.data(), size_, 0.0f);
  }

 private:
  static Index in_wide(Index batch) { return (batch + 7) / 16 * 16; }  // 8 samples or fewer cost half in a narrow block
  Index segments() const { return static_cast<Index>(graph_.cuts().size()) - 1; }
  Index cut(Index segment) const { return graph_.cuts()[segment]; }

  // Calls body(block, first sample, how many samples) for every block of the batch; `kept`: each has its own memory.
  template <class Body> void for_blocks(Index batch, bool kept, Body body) {
    for (Index first = 0; first < in_wide(batch); first += 16)
      body(wide_[kept ? first / 16 : 0], first, std::min<Index>(16, batch - first));
    if (in_wide(batch) < batch) body(*narrow_, in_wide(batch), batch - in_wide(batch));
  }

  void prepare(const float* vector, Index batch, bool evaluation) {
    if (text_) text_->pack_weights(vector);
    if (in_wide(batch) > 0) wide_work_.pack_weights(graph_, vector, batch <= 16);
    if (in_wide(batch) < batch) narrow_work_.pack_weights(graph_, vector, batch <= 8);
    for (BatchNorm& norm : norms_)
      if (evaluation)
        norm.recall(vector);
      else
        norm.begin();
  }

  // All blocks through the layers between two cuts; after the last cut, at once to the score and back.
  void forward(Index segment, const float* vector, float* running, const Data& data, const Batch& batch, bool learning,
               Score& total) {
    const bool last = segment + 1 == segments();
    for_blocks(batch.size, graph_.cut(), [&](auto& block, Index first, Index live) {
      if (segment == 0) block.read(vector, data, batch, first);
      block.forward(vector, batch, first, cut(segment), cut(segment + 1), learning);
      if (!last) return block.gather(cut(segment + 1), live);
      block.score(data, batch, first, total);
      if (learning) backward(segment, block, vector, batch, first);
    });
    if (!last) norms_[segment].settle(vector, running);
    if (last && learning) settle_back(segment);
  }

  void backward(Index segment, const float* vector, const Batch& batch) {
    for_blocks(batch.size, true,
               [&](auto& block, Index first, Index) { backward(segment, block, vector, batch, first); });
    settle_back(segment);
  }

  // One block from the normalisation after a segment back to the one before it.
  template <int L>
  void backward(Index segment, Block<L>& block, const float* vector, const Batch& batch, Index first) {
    const bool last = segment + 1 == segments();
    const Index begin = segment == 0 ? 0 : cut(segment) + 1, end = last ? cut(segments()) : cut(segment + 1) + 1;
    block.backward(vector, batch, first, begin, end, gradient_.data());
    if (segment > 0 && graph_.way(cut(segment)).used) block.gather_back(cut(segment));
    if (segment == 0 && text_) block.backward_text(vector, batch, first, gradient_.data());
  }

  void settle_weights(Index batch) {
    if (in_wide(batch) > 0) wide_work_.settle_weights(graph_, gradient_.data());
    if (in_wide(batch) < batch) narrow_work_.settle_weights(graph_, gradient_.data());
    if (text_) text_->add_gradient(gradient_.data());
  }

  void settle_back(Index segment) {
    if (segment > 0) norms_[segment - 1].settle_back(gradient_.data());
  }

  Graph graph_;
  std::vector<BatchNorm> norms_;
  std::unique_ptr<Text> text_;  // null: the data are images or numbers
  Workspace<16> wide_work_;
  Workspace<8> narrow_work_;
  std::deque<Block<16>> wide_;
  std::unique_ptr<Block<8>> narrow_;
  Buffer gradient_;
  Index size_;
};

}  // namespace

extern "C" {

// Grows with every change of what crosses this boundary: fedasmu/engines/native/library.py asks for it first.
int engine_interface() { return 4; }

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

// `text` stands in front of the layers; null: there is none.
void* engine_new(const Description* layers, Index count, const TextDescription* text, Index size) {
  try {
    return new Engine(Graph(layers, count, text != nullptr), text ? std::make_unique<Text>(*text) : nullptr, size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// Whether there is memory to train on batches of this size.
int engine_reserve(void* engine, Index batch) {
  try {
    static_cast<Engine*>(engine)->reserve(batch);
    return 1;
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

void engine_free(void* engine) { delete static_cast<Engine*>(engine); }

double engine_train(void* engine, float* vector, Index trainable, const Data* data, const Index* indices,
                    const Index* sizes, Index batches, const float* noise, const Contrast* contrast, const float* shift,
                    const Step* step) {
  Engine& e = *static_cast<Engine*>(engine);
  Contrast here = contrast ? *contrast : Contrast{};
  Step next = *step;
  double loss = 0;
  for (Index b = 0; b < batches; ++b) {
    const Index size = sizes[b];
    loss += e.train(vector, trainable, *data, {indices, size, noise, contrast ? &here : nullptr, shift}, next);
    ++next.done;
    indices += size;
    if (noise) noise += e.noise() * size;
    if (contrast) {
      here.received += e.width() * size;
      here.previous += e.width() * size;
    }
  }
  return loss;
}

void engine_features(void* engine, const float* vector, const Data* data, const Index* indices, Index count,
                     float* features) {
  static_cast<Engine*>(engine)->features(vector, *data, {indices, count, nullptr, nullptr, nullptr}, features);
}

double engine_gradient(void* engine, const float* vector, Index trainable, const Data* data, const Index* indices,
                       Index count, const float* noise, float* gradient) {
  Engine& e = *static_cast<Engine*>(engine);
  const Score score = e.measure(vector, nullptr, *data, {indices, count, noise, nullptr, nullptr}, Mode::kLearn);
  e.take_gradient(gradient, trainable);
  return score.loss;
}

// `training`: as a step of training would find it, so with the statistics of this batch.
double engine_evaluate(void* engine, const float* vector, const Data* data, const Index* indices, Index count,
                       const float* noise, Index training, Index* correct) {
  const Mode mode = training ? Mode::kMeasure : Mode::kEvaluate;
  const Score score =
      static_cast<Engine*>(engine)->measure(vector, nullptr, *data, {indices, count, noise, nullptr, nullptr}, mode);
  *correct = score.correct;
  return score.loss;
}

}  // extern "C"
