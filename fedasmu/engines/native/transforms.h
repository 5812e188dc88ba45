// The transformations of Winograd's algorithm for the sizes of kernels and tiles that the engine uses.
#pragma once

namespace {

// One dimension: y = output(weights(w) * input(x)), the product element by element; and backwards, the gradient of the
// products is delta(dy), that of the weights is gradient(delta(dy) * input(x)).
template <int Kernel, int Tile> struct Winograd;
template <> struct Winograd<2, 4> {
  static constexpr int R = 2, M = 4, N = 5;  // Toom-Cook at the points 0, 1, -1, 2 and infinity
  template <class T> static void input(const T* x, T* v) {
    const T a = x[3] - x[1], b = x[2] - x[0];
    v[0] = a - 2.0f * b, v[1] = x[2] + x[1] - a, v[2] = 3.0f * (x[2] - x[1]) - a, v[3] = a,
    v[4] = x[4] - x[2] - 2.0f * a;
  }
  template <class T> static void weights(const T* w, T* u) {
    constexpr float sixth = 1.0f / 6.0f;
    u[0] = 0.5f * w[0], u[1] = 0.5f * (w[0] + w[1]), u[2] = sixth * (w[0] - w[1]), u[3] = sixth * (w[0] + 2.0f * w[1]);
    u[4] = w[1];
  }
  template <class T> static void output(const T* m, T* y) {
    const T even = m[1] + m[2], odd = m[1] - m[2];
    y[0] = m[0] + even + m[3], y[1] = odd + 2.0f * m[3], y[2] = even + 4.0f * m[3], y[3] = odd + 8.0f * m[3] + m[4];
  }
  template <class T> static void delta(const T* y, T* m) {
    const T even = y[0] + y[2], odd = y[1] + y[3];
    m[0] = y[0], m[1] = even + odd, m[2] = even - odd, m[3] = y[0] + 2.0f * y[1] + 4.0f * y[2] + 8.0f * y[3],
    m[4] = y[3];
  }
  template <class T> static void gradient(const T* u, T* w) {
    constexpr float sixth = 1.0f / 6.0f;
    w[0] = 0.5f * (u[0] + u[1]) + sixth * (u[2] + u[3]), w[1] = 0.5f * u[1] + sixth * (2.0f * u[3] - u[2]) + u[4];
  }
};
template <> struct Winograd<3, 2> {
  static constexpr int R = 3, M = 2, N = 4;
  template <class T> static void input(const T* x, T* v) {
    v[0] = x[0] - x[2], v[1] = x[1] + x[2], v[2] = x[2] - x[1], v[3] = x[3] - x[1];
  }
  template <class T> static void weights(const T* w, T* u) {
    u[0] = w[0], u[1] = 0.5f * (w[0] + w[1] + w[2]), u[2] = 0.5f * (w[0] - w[1] + w[2]), u[3] = w[2];
  }
  template <class T> static void output(const T* m, T* y) { y[0] = m[0] + m[1] + m[2], y[1] = m[1] - m[2] + m[3]; }
  template <class T> static void delta(const T* y, T* m) {
    m[0] = y[0], m[1] = y[0] + y[1], m[2] = y[0] - y[1], m[3] = y[1];
  }
  template <class T> static void gradient(const T* u, T* w) {
    w[0] = u[0] + 0.5f * (u[1] + u[2]), w[1] = 0.5f * (u[1] - u[2]), w[2] = 0.5f * (u[1] + u[2]) + u[3];
  }
};

template <> struct Winograd<3, 4> {
  static constexpr int R = 3, M = 4, N = 6;  // at the points 0, 1, -1, 2, -2 and infinity
  template <class T> static void input(const T* x, T* v) {
    const T a = x[4] - 4.0f * x[2], b = x[3] - 4.0f * x[1], c = x[4] - x[2], d = 2.0f * (x[3] - x[1]);
    v[0] = 4.0f * x[0] - 5.0f * x[2] + x[4], v[1] = a + b, v[2] = a - b, v[3] = c + d, v[4] = c - d;
    v[5] = 4.0f * x[1] - 5.0f * x[3] + x[5];
  }
  template <class T> static void weights(const T* w, T* u) {
    const T a = (w[0] + w[2]) * (-1.0f / 6.0f), b = w[1] * (1.0f / 6.0f);
    const T c = w[0] * (1.0f / 24.0f) + w[2] * (1.0f / 6.0f), d = w[1] * (1.0f / 12.0f);
    u[0] = 0.25f * w[0], u[1] = a - b, u[2] = a + b, u[3] = c + d, u[4] = c - d, u[5] = w[2];
  }
  template <class T> static void output(const T* m, T* y) {
    const T a = m[1] + m[2], b = m[1] - m[2], c = m[3] + m[4], d = m[3] - m[4];
    y[0] = m[0] + a + c, y[1] = b + 2.0f * d, y[2] = a + 4.0f * c, y[3] = b + 8.0f * d + m[5];
  }
  template <class T> static void delta(const T* y, T* m) {
    const T a = y[0] + y[2], b = y[1] + y[3], c = y[0] + 4.0f * y[2], d = 2.0f * y[1] + 8.0f * y[3];
    m[0] = y[0], m[1] = a + b, m[2] = a - b, m[3] = c + d, m[4] = c - d, m[5] = y[3];
  }
  template <class T> static void gradient(const T* u, T* w) {
    const T a = (u[1] + u[2]) * (1.0f / 6.0f), b = (u[2] - u[1]) * (1.0f / 6.0f), c = u[3] + u[4], d = u[3] - u[4];
    w[0] = 0.25f * u[0] - a + c * (1.0f / 24.0f), w[1] = b + d * (1.0f / 12.0f), w[2] = c * (1.0f / 6.0f) - a + u[5];
  }
};

// Two dimensions: the columns, then the rows.
template <int From, int To, class T, class Line>
inline void square(const T (&in)[From][From], T (&out)[To][To], Line line) {
  T half[To][From];
#pragma GCC unroll 6
  for (int j = 0; j < From; ++j) {
    T column[From], turned[To];
#pragma GCC unroll 6
    for (int i = 0; i < From; ++i) column[i] = in[i][j];
    line(column, turned);
#pragma GCC unroll 6
    for (int i = 0; i < To; ++i) half[i][j] = turned[i];
  }
#pragma GCC unroll 6
  for (int i = 0; i < To; ++i) line(half[i], out[i]);
}

}  // namespace
