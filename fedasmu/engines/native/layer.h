// A layer's shapes, and its weights packed in the order in which the kernels read them.
#pragma once

#include "winograd.h"

namespace {

enum class Kind : Index {
  kConvolution,
  kMaximum,
  kFlatten,
  kLinear,
  kDropout,
  kAverage,
  kShortcut,  // every stride-th pixel, between channels of zeros
  kSum,
  kBatchNorm,
  kGroupNorm
};

// A layer as the caller describes it. fedasmu/engines/native/library.py has the same fields in the same order.
struct Description {
  Kind kind;
  Index from, other;  // the tensors it reads: 0 is the input, i + 1 what layer i writes, -1 none
  Index in[3], out[3];  // channels, height, width
  Index kernel[2], stride[2], padding[4];
  Index weight, bias, mean, variance;  // offsets in the model's vector, -1: none
  Index groups, front;  // of a GroupNorm; channels of zeros that a shortcut puts in front
  Index relu;
  double eps, momentum;
};

struct Layer {
  Kind kind;
  Index from, other;
  Map in, out;
  Index kernel_y, kernel_x, stride_y, stride_x;
  Index top, left;  // its own padding; the ring around its input may be wider, for another reader
  Index weight, bias, mean, variance, groups, front;
  bool relu;
  double eps, momentum;
  Index packed = 0;  // offset in the packed weights
  Index sums = 0;    // offset in the sums that become the gradient of the weights at the end of a batch
  Index noise = 0;   // of a dropout: the features of the dropouts before it
  bool learns() const { return kind == Kind::kConvolution || kind == Kind::kLinear; }
  Index noise_after() const { return noise + (kind == Kind::kDropout ? out.channels : 0); }
  Index run() const { return kernel_x * in.channels; }
  Index weights() const { return learns() ? kernel_y * run() * out.channels : 0; }
  Index weight_at(Index o, Index c, Index ky, Index kx) const {
    return ((o * in.channels + c) * kernel_y + ky) * kernel_x + kx;
  }
  Filters filters(const float* w) const { return {w, weight_at(1, 0, 0, 0), weight_at(0, 1, 0, 0), false}; }
  Filters filters_back(const float* w) const { return {w, weight_at(0, 1, 0, 0), weight_at(1, 0, 0, 0), true}; }
  // Where the window of an output begins in the input.
  Index window(Index row, Index column) const { return in.at(row * stride_y - top, column * stride_x - left); }
  // The side of Winograd's tiles if that way pays, otherwise 0. Large tiles take fewer products, unless the image ends
  // soon after it has begun the last of them.
  Index tile() const {
    const bool small = kernel_y == kernel_x && (kernel_x == 2 || kernel_x == 3) && stride_y == 1 && stride_x == 1;
    if (kind != Kind::kConvolution || !small || std::min(in.channels, out.channels) < 16) return 0;
    return kernel_x == 2 || 36 * tiles(4) < 16 * tiles(2) ? 4 : 2;
  }
  Index tiles(Index side) const { return (out.height + side - 1) / side * ((out.width + side - 1) / side); }
  // Whether its image is one strip of tiles: then a block uses each transformed weight just once.
  bool in_one_strip() const { return tile() && tiles(tile()) <= kStrip; }
  Index points() const { return (tile() + kernel_x - 1) * (tile() + kernel_x - 1); }
  Index sums_size() const { return tile() ? points() * winograd_sums_plane(in.channels, out.channels) : 0; }
  // A convolution packs its weights twice, for both directions; a linear layer's lie right for the way back.
  Index one_way() const { return tile() ? points() * winograd_weights_plane(in.channels, out.channels) : weights(); }
  Index packed_size() const { return kind == Kind::kConvolution ? 2 * one_way() : one_way(); }
};

// The way forward reads the weights as [tile][ky][kx][c][o]; the model holds them as [o][c][ky][kx].
template <int L> void pack_forward(const Layer& l, const float* w, float* packed) {
  for_tiles(l.out.channels, Lanes<L>::most, [&](Index o, Index count) {
    for (Index ky = 0; ky < l.kernel_y; ++ky)
      for (Index kx = 0; kx < l.kernel_x; ++kx)
        for (Index c = 0; c < l.in.channels; ++c)
          for (Index n = 0; n < count; ++n) *packed++ = w[l.weight_at(o + n, c, ky, kx)];
  });
}

// The way back gathers: an input pixel at p sums over the output pixels q with q * stride + k = p. So p mod stride, its
// phase, decides which taps k of the kernel it meets, and within a phase the stride is 1. Packed as
// [phase][tile][tap y][tap x][o][c], the taps in the order of q.
struct Phase {
  Index of, stride, kernel;
  Index taps() const { return kernel > of ? (kernel - of + stride - 1) / stride : 0; }
  Index tap(Index t) const { return of + stride * (taps() - 1 - t); }
  Index at(Index q) const { return q * stride + of; }                   // the q-th position of this phase
  Index from(Index p) const { return (p - of + stride - 1) / stride; }  // the first of them at p or after
};

template <class Body> void for_phases(const Layer& l, Body body) {
  Index packed = 0;
  for (Index y = 0; y < l.stride_y; ++y)
    for (Index x = 0; x < l.stride_x; ++x) {
      const Phase py{y, l.stride_y, l.kernel_y}, px{x, l.stride_x, l.kernel_x};
      body(py, px, packed);
      packed += py.taps() * px.taps() * l.out.channels * l.in.channels;
    }
}

template <int L> void pack_backward(const Layer& l, const float* w, float* packed) {
  for_phases(l, [&](Phase py, Phase px, Index) {
    for_tiles(l.in.channels, Lanes<L>::most, [&](Index c, Index count) {
      for (Index ty = 0; ty < py.taps(); ++ty)
        for (Index tx = 0; tx < px.taps(); ++tx)
          for (Index o = 0; o < l.out.channels; ++o)
            for (Index n = 0; n < count; ++n) *packed++ = w[l.weight_at(o, c + n, py.tap(ty), px.tap(tx))];
    });
  });
}

// Calls body with the kind of Winograd's algorithm that the layer uses.
template <class Body> void with_winograd(const Layer& l, Body body) {
  if (l.kernel_x == 2)
    body(Winograd<2, 4>{});
  else if (l.tile() == 2)
    body(Winograd<3, 2>{});
  else
    body(Winograd<3, 4>{});
}

template <int L> void pack(const Layer& l, const float* vector, float* packed) {
  const float* w = vector + l.weight;
  float* backward = packed + l.one_way();
  if (l.tile())
    with_winograd(l, [&](auto way) {
      winograd_pack_all<L, decltype(way)>(l.filters(w), l.out.channels, l.in.channels, packed);
      winograd_pack_all<L, decltype(way)>(l.filters_back(w), l.in.channels, l.out.channels, backward);
    });
  if (l.kind == Kind::kConvolution && !l.tile()) {
    pack_forward<L>(l, w, packed);
    pack_backward<L>(l, w, backward);
  }
  if (l.kind == Kind::kLinear)
    for_tiles(l.out.channels, Lanes<L>::most, [&](Index o, Index count) {
      transpose(w + o * l.in.channels, count, l.in.channels, l.in.channels, count, packed + o * l.in.channels);
    });
}

}  // namespace
