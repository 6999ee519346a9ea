// Rows of attention in one pass: output, log-sum-exp and statistics of softmax attention inside a band of the index
// matrix. Query i sees key j when -right <= i + offset - j <= left; a dense causal call is right = 0, left = everything.
//
// Six queries at a time meet the keys of their band, a tile of keys at a time (online softmax). Keys are packed once a
// head, transposed in panels of one vector, so that a score is a fused multiply-add per vector and dimension; the
// scores of six rows over a tile stay in the first-level cache, and the output of six rows in registers.
//
// Plain C++ with the vector types of GCC and Clang: no library, nothing of torch. Everything is float32; sums of a
// tile are float32, sums over tiles float64.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__AVX512F__)
constexpr int W = 16;  // floats in a vector
#else
constexpr int W = 8;
#endif
constexpr int ROWS = W == 16 ? 6 : 4;     // queries at a time
constexpr int PANELS = W == 16 ? 4 : 2;   // vectors of keys at a time: ROWS * PANELS sums stay in registers
constexpr int TILE = 512;                 // keys at a time, a multiple of W * PANELS
constexpr int BLOCK = ROWS * 16;          // queries that pass over a tile before the next tile

typedef float Vec __attribute__((vector_size(W * 4)));
typedef int32_t Int __attribute__((vector_size(W * 4)));
typedef float Loose __attribute__((vector_size(W * 4), aligned(4), may_alias));

static inline Vec load(const float* p) { return *reinterpret_cast<const Loose*>(p); }
static inline void store(float* p, Vec x) { *reinterpret_cast<Loose*>(p) = x; }
static inline Vec all(float x) { return x - Vec{}; }  // minus: plus 0 would turn -0 into 0, and cost an addition

typedef float Half __attribute__((vector_size(W * 2)));
typedef float Quarter __attribute__((vector_size(16)));

// The lanes of a vector put together, halving it: by `op` on vectors, then on the last four floats.
template <class Op>
static inline float folded(Vec x, Op op) {
  Half half[2];
  std::memcpy(half, &x, sizeof x);
  Half both = op(half[0], half[1]);
  Quarter four;
  if constexpr (W == 16) {
    Quarter quarters[2];
    std::memcpy(quarters, &both, sizeof both);
    four = op(quarters[0], quarters[1]);
  } else {
    std::memcpy(&four, &both, sizeof four);
  }
  four = op(four, __builtin_shufflevector(four, four, 2, 3, 0, 1));
  four = op(four, __builtin_shufflevector(four, four, 1, 0, 3, 2));
  return four[0];
}
static inline float sum(Vec x) { return folded(x, [](auto a, auto b) { return a + b; }); }
static inline float largest(Vec x) { return folded(x, [](auto a, auto b) { return a > b ? a : b; }); }

// e^x for x <= 0, within two roundings; 0 below -87, where denormal numbers would begin.
static inline Vec exponential(Vec x) {
  const Vec low = all(-87.0f);
  Int alive = x > low;
  x = alive ? x : low;
  Vec shifted = x * 1.44269504088896341f + 12582912.0f;  // to the nearest integer, in the last bits of the mantissa
  Vec n = shifted - 12582912.0f;
  Vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Vec p = all(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  Int power = __builtin_convertvector(n, Int);
  Vec scale = reinterpret_cast<Vec>((power + 127) << 23);
  Vec value = p * scale;
  return alive ? value : Vec{};
}

struct Shape {
  int64_t heads, kv_heads, queries, keys, width;          // of one sequence
  int64_t left, right, offset;                            // the band; left and right may be huge
  float scale;
  int64_t bands, first;                                   // number of bands, index of the first key
  const int64_t* reach;                                   // their half-widths
  const uint8_t* allowed = nullptr;                       // [masked, keys]: 0 where a query may not see a key, or null
  int64_t masked = 0;                                     // queries from here on fill a vector up, and are masked alike
};

// What is kept of a row while tiles pass by; mean and spread of the key index are about what came so far.
struct Side {
  double mass = 0, mean = 0, spread = 0;

  void scaled(double by) { mass *= by; spread *= by; }
  void add(double m, double at, double s) {
    if (m <= 0) return;
    double whole = mass + m, gap = at - mean;
    spread += s + gap * gap * mass * m / whole;
    mean += gap * m / whole;
    mass = whole;
  }
};

constexpr int KEPT = 12;  // top, mass, sum e (top - s), sum e^2, before (mass, mean, spread), after (…), first, own
constexpr int MOST_BANDS = 16;

struct Row {
  float top = -INFINITY;
  double mass = 0, gap = 0, square = 0, first = 0, own = 0;
  Side before, after;
  double near[MOST_BANDS] = {};

  void scaled(float from, float to) {
    if (from == -INFINITY || from == to) return;
    double by = std::exp(double(from) - double(to));
    gap = (gap + mass * (double(to) - double(from))) * by;  // before mass itself is scaled
    mass *= by; square *= by * by; first *= by; own *= by;
    before.scaled(by); after.scaled(by);
    for (double& x : near) x *= by;
  }
};

template <int R, int P>
static inline void scores_of(const float* q, int64_t q_row, const float* panels, int64_t width, float scale, float* s) {
  Vec acc[R][P] = {};
  for (int64_t e = 0; e < width; ++e) {
    Vec k[P];
    for (int p = 0; p < P; ++p) k[p] = load(panels + (p * width + e) * W);
    for (int r = 0; r < R; ++r) {
      Vec x = all(q[r * q_row + e]);
      for (int p = 0; p < P; ++p) acc[r][p] += x * k[p];
    }
  }
  for (int r = 0; r < R; ++r)
    for (int p = 0; p < P; ++p) store(s + r * TILE + p * W, acc[r][p] * scale);
}

// Out rows += weights (R rows of TILE) times values, N vectors wide.
template <int R, int N>
static inline void mix(const float* e, const float* v, int64_t v_row, int64_t from, int64_t to, float* out, int64_t o_row) {
  Vec acc[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) acc[r][n] = load(out + r * o_row + n * W);
  for (int64_t c = from; c < to; ++c) {
    Vec x[N];
    for (int n = 0; n < N; ++n) x[n] = load(v + c * v_row + n * W);
    for (int r = 0; r < R; ++r) {
      Vec w = all(e[r * TILE + c]);
      for (int n = 0; n < N; ++n) acc[r][n] += w * x[n];
    }
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) store(out + r * o_row + n * W, acc[r][n]);
}

static float sum_between(const float* e, int64_t from, int64_t to) {
  if (to <= from) return 0;
  Vec total = {};
  int64_t c = from;
  for (; c + W <= to; c += W) total += load(e + c);
  float rest = 0;
  for (; c < to; ++c) rest += e[c];
  return sum(total) + rest;
}

// Mass, mean index and spread about it of e[from..to), indices counted from `base`.
static void moments(const float* e, int64_t from, int64_t to, int64_t base, Side& side) {
  if (to <= from) return;
  Vec at = {};
  for (int i = 0; i < W; ++i) at[i] = float(i);
  Vec mass = {}, first = {};
  float mass_rest = 0, first_rest = 0;
  int64_t c = from;
  Vec x = at;
  for (; c + W <= to; c += W, x += float(W)) { Vec w = load(e + c); mass += w; first += w * x; }
  int64_t whole = c;
  for (; c < to; ++c) { mass_rest += e[c]; first_rest += e[c] * float(c - from); }
  float m = sum(mass) + mass_rest;
  if (m <= 0) return;
  float mean = (sum(first) + first_rest) / m;
  Vec spread = {};
  float spread_rest = 0, shift = 0;
  x = at - mean;
  Vec shifts = {};
  for (c = from; c < whole; c += W, x += float(W)) { Vec w = load(e + c); spread += w * x * x; shifts += w * x; }
  for (c = whole; c < to; ++c) { float y = float(c - from) - mean; spread_rest += e[c] * y * y; shift += e[c] * y; }
  // The mean was rounded; what is left of it is measured and taken into account.
  double left = (double(sum(shifts)) + shift) / m;
  double about = double(sum(spread)) + spread_rest - double(m) * left * left;
  side.add(m, double(base + from) + double(mean) + left, std::max(about, 0.0));
}

struct Head {
  const float *q, *panels, *values;  // keys packed in panels, values padded to whole vectors
  int64_t q_row, v_row, wide;         // wide: the width of the values in whole vectors
};

// -inf where query i may not see the keys of row[from..to), of which only [a, b) are in its band.
static inline void hide(const Shape& s, int64_t i, int64_t tile, int64_t from, int64_t to, int64_t a, int64_t b, float* row) {
  for (int64_t c = from; c < a; ++c) row[c] = -INFINITY;
  for (int64_t c = b; c < to; ++c) row[c] = -INFINITY;
  if (s.allowed) {
    const uint8_t* may = s.allowed + std::min(i, s.masked - 1) * s.keys + tile;
    for (int64_t c = a; c < b; ++c) row[c] = may[c] ? row[c] : -INFINITY;
  }
}

// The keys of [from, to), counted in a tile, that lie in the band of the query whose own position is `centre` there.
static inline void in_band(const Shape& s, int64_t tile, int64_t end, int64_t centre, int64_t from, int64_t to, int64_t& a,
                           int64_t& b) {
  a = std::max(from, centre - std::min(s.left, centre + tile + 1));
  b = std::min({end - tile, to, centre + std::min(s.right, s.keys) + 1});
  a = std::min(std::max(a, from), to);
  b = std::max(b, a);
}

// The panels of a tile that some of `rows` queries from i on see; false where none.
static inline bool panels_seen(const Shape& s, int64_t i, int rows, int64_t tile, int64_t end, int64_t& from, int64_t& to) {
  int64_t low = std::max(tile, i + s.offset - std::min(s.left, i + s.offset + 1));
  int64_t high = std::min(end, i + rows - 1 + s.offset + std::min(s.right, s.keys) + 1);
  from = (low - tile) / W;
  to = (high - tile + W - 1) / W;
  return high > low;
}

// Scores of up to ROWS queries against panels [from, to) of a tile; `q` may be any rows that meet any packed ones.
static inline void all_scores(const float* q, int64_t q_row, const float* panels, int64_t width, float scale, int rows,
                              int64_t from, int64_t to, float* e) {
  int64_t p = from;
  if (rows == ROWS) {
    for (; p + PANELS <= to; p += PANELS) scores_of<ROWS, PANELS>(q, q_row, panels + p * W * width, width, scale, e + p * W);
    for (; p < to; ++p) scores_of<ROWS, 1>(q, q_row, panels + p * W * width, width, scale, e + p * W);
    return;
  }
  for (int r = 0; r < rows; ++r)
    for (p = from; p < to; ++p)
      scores_of<1, 1>(q + r * q_row, q_row, panels + p * W * width, width, scale, e + r * TILE + p * W);
}

// Out rows += the weights of up to ROWS rows times values.
static inline void all_mixed(const float* e, const float* v, int64_t v_row, int64_t wide, int rows, int64_t from, int64_t to,
                             float* out, int64_t o_row) {
  int64_t n = 0;
  if (rows == ROWS) {
    for (; n + PANELS * W <= wide; n += PANELS * W) mix<ROWS, PANELS>(e, v + n, v_row, from, to, out + n, o_row);
    for (; n < wide; n += W) mix<ROWS, 1>(e, v + n, v_row, from, to, out + n, o_row);
    return;
  }
  for (int r = 0; r < rows; ++r)
    for (n = 0; n < wide; n += W) mix<1, 1>(e + r * TILE, v + n, v_row, from, to, out + r * o_row + n, o_row);
}

template <bool STATISTICS>
static void rows_of_tile(const Shape& s, const Head& head, int64_t i, int rows, int64_t tile, int64_t end, float* out,
                         int64_t o_row, Row* state) {
  alignas(64) float e[ROWS * TILE];
  int64_t from, to;
  if (!panels_seen(s, i, rows, tile, end, from, to)) return;
  all_scores(head.q + i * head.q_row, head.q_row, head.panels + tile * s.width, s.width, s.scale, rows, from, to, e);
  for (int r = 0; r < rows; ++r) {
    float* row = e + r * TILE;
    int64_t centre = i + r + s.offset - tile;  // the key at the query's own position, counted in this tile
    int64_t a, b;
    in_band(s, tile, end, centre, from * W, to * W, a, b);
    hide(s, i + r, tile, from * W, to * W, a, b, row);
    Row& kept = state[r];
    if (b == a) {
      for (int64_t c = from * W; c < to * W; ++c) row[c] = 0;
      continue;
    }
    Vec top = all(-INFINITY);
    for (int64_t c = from; c < to; ++c) { Vec x = load(row + c * W); top = x > top ? x : top; }
    float most = std::max(kept.top, largest(top));
    if (most == -INFINITY) {
      for (int64_t c = from * W; c < to * W; ++c) row[c] = 0;
      continue;
    }
    if (most > kept.top) {
      float by = kept.top == -INFINITY ? 0.0f : std::exp(kept.top - most);
      for (int64_t n = 0; n < o_row; n += W) store(out + r * o_row + n, load(out + r * o_row + n) * by);
      kept.scaled(kept.top, most);
      kept.top = most;
    }
    Vec mass = {}, gap = {}, square = {};
    for (int64_t c = from; c < to; ++c) {
      Vec x = load(row + c * W) - most;
      Vec y = exponential(x);
      store(row + c * W, y);
      mass += y;
      if (STATISTICS) {
        Vec finite = x > all(-1e30f) ? x : Vec{};
        gap -= y * finite;
        square += y * y;
      }
    }
    kept.mass += sum(mass);
    if (STATISTICS) {
      kept.gap += sum(gap);
      kept.square += sum(square);
      int64_t split = std::min(std::max(centre + 1, a), b);
      moments(row, a, split, tile, kept.before);
      moments(row, split, b, tile, kept.after);
      if (centre >= a && centre < b) kept.own += row[centre];
      int64_t first = s.first - tile;
      if (first >= a && first < b) kept.first += row[first];
      for (int64_t n = 0; n < s.bands; ++n)
        kept.near[n] += sum_between(row, std::max(a, centre - s.reach[n]), std::min(b, centre + s.reach[n] + 1));
    }
  }
  all_mixed(e, head.values + tile * head.v_row, head.v_row, head.wide, rows, from * W, std::min(to * W, end - tile), out,
            o_row);
}

template <bool STATISTICS>
static void block_of_rows(const Shape& s, const Head& head, int64_t start, int64_t stop, float* out, int64_t out_row,
                          int64_t d_value, float* lse, double* kept, std::vector<float>& mixed, std::vector<Row>& state) {
  int64_t wide = head.wide;
  mixed.assign(BLOCK * wide, 0.0f);
  state.assign(BLOCK, Row());
  int64_t low = std::max<int64_t>(0, start + s.offset - std::min(s.left, start + s.offset + 1));
  int64_t high = std::min(s.keys, stop - 1 + s.offset + std::min(s.right, s.keys) + 1);
  low = std::max<int64_t>(0, std::min(low, s.keys)) / W * W;
  for (int64_t tile = low; tile < high; tile += TILE)
    for (int64_t i = start; i < stop; i += ROWS)
      rows_of_tile<STATISTICS>(s, head, i, int(std::min<int64_t>(ROWS, stop - i)), tile, std::min({tile + TILE, s.keys}),
                               mixed.data() + (i - start) * wide, wide, state.data() + (i - start));
  for (int64_t i = start; i < stop; ++i) {
    const Row& row = state[i - start];
    float by = row.mass > 0 ? float(1.0 / row.mass) : 0.0f;
    const float* from = mixed.data() + (i - start) * wide;
    float* to = out + i * out_row;
    for (int64_t n = 0; n < d_value; ++n) to[n] = from[n] * by;
    lse[i] = row.mass > 0 ? float(row.top + std::log(row.mass)) : -INFINITY;
    if (STATISTICS) {
      double* x = kept + i * (KEPT + s.bands);
      double values[KEPT] = {row.top, row.mass, row.gap, row.square, row.before.mass, row.before.mean, row.before.spread,
                             row.after.mass, row.after.mean, row.after.spread, row.first, row.own};
      std::copy(values, values + KEPT, x);
      std::copy(row.near, row.near + s.bands, x + KEPT);
    }
  }
}

// To each of N-vector rows of `into` (one a key) add the weights of R rows times those rows of x: a product with the
// transposed weights. The rows of x stay in registers while the keys pass by.
template <int R, int N>
static inline void spread(const float* e, const float* x, int64_t x_row, int64_t from, int64_t to, float* into, int64_t row) {
  Vec kept[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) kept[r][n] = load(x + r * x_row + n * W);
  for (int64_t c = from; c < to; ++c) {
    float* at = into + c * row;
    Vec total[N];
    for (int n = 0; n < N; ++n) total[n] = load(at + n * W);
    for (int r = 0; r < R; ++r) {
      Vec w = all(e[r * TILE + c]);
      for (int n = 0; n < N; ++n) total[n] += w * kept[r][n];
    }
    for (int n = 0; n < N; ++n) store(at + n * W, total[n]);
  }
}

static inline void all_spread(const float* e, const float* x, int64_t x_row, int64_t wide, int rows, int64_t from, int64_t to,
                              float* into, int64_t row) {
  int64_t n = 0;
  if (rows == ROWS) {
    for (; n + PANELS * W <= wide; n += PANELS * W) spread<ROWS, PANELS>(e, x + n, x_row, from, to, into + n, row);
    for (; n < wide; n += W) spread<ROWS, 1>(e, x + n, x_row, from, to, into + n, row);
    return;
  }
  for (int r = 0; r < rows; ++r)
    for (n = 0; n < wide; n += W) spread<1, 1>(e + r * TILE, x + r * x_row + n, x_row, from, to, into + n, row);
}

// What the backward pass reads and adds to, for one head. All rows are padded to whole vectors.
struct Back {
  const float *q, *grad;              // [queries, wide]: queries, and the gradients of their outputs
  const float *key_panels, *value_panels, *keys;
  const float *lse, *dot;             // of each query: log-sum-exp, and grad . out less the gradient of the log-sum-exp
  float *grad_q, *grad_k, *grad_v;    // added to
  int64_t wide;
};

static void gradients_of_rows(const Shape& s, const Back& x, int64_t i, int rows) {
  alignas(64) float p[ROWS * TILE], d[ROWS * TILE];
  int64_t low = std::max<int64_t>(0, i + s.offset - std::min(s.left, i + s.offset + 1)) / W * W;
  int64_t high = std::min(s.keys, i + rows - 1 + s.offset + std::min(s.right, s.keys) + 1);
  for (int64_t tile = low; tile < high; tile += TILE) {
    int64_t end = std::min(tile + TILE, s.keys), from, to;
    if (!panels_seen(s, i, rows, tile, end, from, to)) continue;
    all_scores(x.q + i * x.wide, x.wide, x.key_panels + tile * x.wide, x.wide, s.scale, rows, from, to, p);
    all_scores(x.grad + i * x.wide, x.wide, x.value_panels + tile * x.wide, x.wide, 1.0f, rows, from, to, d);
    for (int r = 0; r < rows; ++r) {
      float *weights = p + r * TILE, *scores = d + r * TILE;
      int64_t a, b;
      in_band(s, tile, end, i + r + s.offset - tile, from * W, to * W, a, b);
      hide(s, i + r, tile, from * W, to * W, a, b, weights);
      float lse = x.lse[i + r], dot = x.dot[i + r];
      for (int64_t c = from * W; c < to * W; c += W) {
        Vec e = exponential(load(weights + c) - lse);
        store(weights + c, e);
        store(scores + c, e * (load(scores + c) - dot) * s.scale);
      }
    }
    int64_t start = from * W, stop = std::min(to * W, end - tile), at = tile * x.wide;
    all_mixed(d, x.keys + at, x.wide, x.wide, rows, start, stop, x.grad_q + i * x.wide, x.wide);
    all_spread(d, x.q + i * x.wide, x.wide, x.wide, rows, start, stop, x.grad_k + at, x.wide);
    all_spread(p, x.grad + i * x.wide, x.wide, x.wide, rows, start, stop, x.grad_v + at, x.wide);
  }
}

// 4 x 4 blocks through registers: a transposition that reads and writes whole runs.
static void pack(const float* key, int64_t row, const float* mean, int64_t keys, int64_t width, float* packed) {
  typedef float Four __attribute__((vector_size(16)));
  typedef float LooseFour __attribute__((vector_size(16), aligned(4), may_alias));
  int64_t whole = keys / W * W, even = width / 4 * 4;
  for (int64_t j = 0; j < whole; j += 4) {
    float* to = packed + j / W * W * width + j % W;
    const float* from = key + j * row;
    for (int64_t e = 0; e < even; e += 4) {
      Four m = *reinterpret_cast<const LooseFour*>(mean + e), x[4];
      for (int i = 0; i < 4; ++i) x[i] = *reinterpret_cast<const LooseFour*>(from + i * row + e) - m;
      Four a = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5), b = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
      Four c = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7), d = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
      Four out[4] = {__builtin_shufflevector(a, b, 0, 1, 4, 5), __builtin_shufflevector(a, b, 2, 3, 6, 7),
                     __builtin_shufflevector(c, d, 0, 1, 4, 5), __builtin_shufflevector(c, d, 2, 3, 6, 7)};
      for (int i = 0; i < 4; ++i) *reinterpret_cast<LooseFour*>(to + (e + i) * W) = out[i];
    }
    for (int64_t e = even; e < width; ++e)
      for (int i = 0; i < 4; ++i) to[e * W + i] = from[i * row + e] - mean[e];
  }
  for (int64_t j = whole; j < keys; ++j)
    for (int64_t e = 0; e < width; ++e) packed[(j / W * width + e) * W + j % W] = key[j * row + e] - mean[e];
}

static float* floats(int64_t count) {
  return static_cast<float*>(std::aligned_alloc(64, (std::max<int64_t>(count, 16) * 4 + 63) / 64 * 64));
}

// Run work(0), …, work(threads - 1), each on a thread of its own; the last one here.
template <class Work>
static void in_parallel(int64_t threads, Work work) {
  std::vector<std::thread> pool;
  for (int64_t t = 1; t < threads; ++t) pool.emplace_back(work, t);
  work(0);
  for (auto& thread : pool) thread.join();
}

// Blocks are filled up with queries of zeros to a whole number of ROWS: they cost less than a slower path for the rest.
static int64_t filled(int64_t rows) { return (rows + ROWS - 1) / ROWS * ROWS; }

// Rows of [rows, width] at the given places (null: in order) into rows of `wide` floats, the rest 0.
static void gather(const float* x, int64_t row, const int64_t* places, int64_t count, int64_t width, int64_t wide, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * wide, x + (places ? places[i] : i) * row, width * 4);
    std::memset(to + i * wide + width, 0, (wide - width) * 4);
  }
}

static int64_t panel_floats(int64_t keys, int64_t width) { return ((keys + W - 1) / W + PANELS) * W * width; }

static void pack_whole(const float* key, int64_t row, const float* mean, int64_t keys, int64_t width, float* packed) {
  int64_t full = keys / W * W * width;
  std::memset(packed + full, 0, (panel_floats(keys, width) - full) * 4);
  pack(key, row, mean, keys, width, packed);
}

// elu(x) + 1, max(x, 0) or x itself: the features of linear attention that are made here.
static inline Vec feature(Vec x, int64_t which) {
  Vec above = x > Vec{} ? x : Vec{};
  if (which == 1) return above + exponential(x < Vec{} ? x : Vec{});
  return which == 2 ? above : x;
}

constexpr int CHUNK = ROWS * 8;   // tokens whose products with one another are written down
constexpr int FLUSHED = 16;       // chunks after which the state goes to float64: a long sum is where float32 loses digits

// One head of causal linear attention: sums of (a_i . b_j) c_j over j <= i, divided by those of a_i . b_j where asked.
static void linear_head(const float* q, int64_t q_row, const float* k, int64_t k_row, const float* v, int64_t v_row, int64_t n,
                        int64_t width, int64_t d_value, int64_t which, bool normalise, float* out, int64_t o_row) {
  int64_t deep = (width + W - 1) / W * W, wide = (d_value + W - 1) / W * W;
  std::vector<double> state(deep * wide, 0.0), total(deep, 0.0);
  float *now = floats(deep * wide), *sum_now = floats(deep), *values = floats(CHUNK * wide), *mixed = floats(CHUNK * wide);
  float *a = floats(CHUNK * TILE), *b = floats(CHUNK * TILE), *panels = floats(panel_floats(CHUNK, deep)), *e = floats(ROWS * TILE);
  std::vector<float> none(deep, 0.0f);
  std::memset(a, 0, CHUNK * TILE * 4);
  std::memset(b, 0, CHUNK * TILE * 4);
  for (int64_t chunk = 0; chunk * CHUNK < n; ++chunk) {
    int64_t start = chunk * CHUNK, rows = std::min<int64_t>(CHUNK, n - start);
    if (chunk % FLUSHED == 0)
      for (int64_t x = 0; x < deep * wide; ++x) {
        now[x] = float(state[x]);
        if (x < deep) sum_now[x] = float(total[x]);
      }
    for (int64_t r = 0; r < CHUNK; ++r)
      for (int64_t c = 0; c < width; c += W) {
        float x[W] = {}, y[W] = {};
        int64_t some = std::min<int64_t>(W, width - c);
        if (r < rows) {
          std::memcpy(x, q + (start + r) * q_row + c, some * 4);
          std::memcpy(y, k + (start + r) * k_row + c, some * 4);
        }
        store(a + r * TILE + c, feature(load(x), which));
        store(b + r * TILE + c, feature(load(y), which));
        // Beyond the width and the end there is nothing, also where the feature of 0 is 1.
        for (int64_t z = r < rows ? some : 0; z < W; ++z) a[r * TILE + c + z] = b[r * TILE + c + z] = 0;
      }
    gather(v + start * v_row, v_row, nullptr, rows, d_value, wide, values);
    std::memset(values + rows * wide, 0, (CHUNK - rows) * wide * 4);
    pack_whole(b, TILE, none.data(), CHUNK, deep, panels);
    std::memset(mixed, 0, CHUNK * wide * 4);
    float weight[CHUNK];
    for (int64_t i = 0; i < rows; i += ROWS) {
      int64_t to = (i + ROWS + W - 1) / W;
      all_scores(a + i * TILE, TILE, panels, deep, 1.0f, ROWS, 0, to, e);
      for (int r = 0; r < ROWS; ++r) {
        for (int64_t c = i + r + 1; c < to * W; ++c) e[r * TILE + c] = 0;
        weight[i + r] = sum_between(e + r * TILE, 0, to * W);
        Vec with = {};
        for (int64_t c = 0; c < deep; c += W) with += load(a + (i + r) * TILE + c) * load(sum_now + c);
        weight[i + r] += sum(with);
      }
      all_mixed(e, values, wide, wide, ROWS, 0, std::min<int64_t>(to * W, CHUNK), mixed + i * wide, wide);
      all_mixed(a + i * TILE, now, wide, wide, ROWS, 0, deep, mixed + i * wide, wide);
    }
    for (int64_t i = 0; i < rows; i += ROWS) all_spread(b + i * TILE, values + i * wide, wide, wide, ROWS, 0, deep, now, wide);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < deep; c += W) store(sum_now + c, load(sum_now + c) + load(b + r * TILE + c));
    if (chunk % FLUSHED == FLUSHED - 1)
      for (int64_t x = 0; x < deep * wide; ++x) {
        state[x] += double(now[x]) - double(float(state[x]));
        if (x < deep) total[x] += double(sum_now[x]) - double(float(total[x]));
      }
    for (int64_t r = 0; r < rows; ++r) {
      float by = !normalise ? 1.0f : weight[r] > 0 ? 1.0f / weight[r] : 0.0f;
      for (int64_t c = 0; c < d_value; ++c) out[(start + r) * o_row + c] = mixed[r * wide + c] * by;
    }
  }
  for (float* x : {now, sum_now, values, mixed, a, b, panels, e}) std::free(x);
}

extern "C" {

// Causal linear attention, for one sequence; which features: 0 none, 1 elu + 1, 2 relu.
void headscope_linear(const float* q, const float* k, const float* v, float* out, const int64_t* strides,
                      const int64_t* sizes, int64_t threads) {
  int64_t heads = sizes[0], groups = heads / sizes[1], n = sizes[2], width = sizes[3], d_value = sizes[4];
  in_parallel(std::min(threads, heads), [&](int64_t which) {
    for (int64_t h = which; h < heads; h += std::min(threads, heads)) {
      int64_t g = h / groups;
      linear_head(q + h * strides[0], strides[1], k + g * strides[2], strides[3], v + g * strides[4], strides[5], n, width,
                  d_value, sizes[5], sizes[6] != 0, out + h * strides[6], strides[7]);
    }
  });
}


// Attention inside a band, for one sequence. Strides are in floats; the last axis of every tensor is contiguous.
// `centre` is subtracted from the keys of its head. `kept` is null where statistics are not wanted, else
// [heads, queries, 12 + bands].
void headscope_rows(const float* q, const float* k, const float* v, const float* centre, float* out, float* lse,
                    double* kept, const int64_t* strides, const int64_t* sizes, const int64_t* reach, float scale,
                    int64_t threads) {
  Shape s{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[6], sizes[7], sizes[8], scale, sizes[9], sizes[10], reach};
  int64_t d_value = sizes[5], groups = s.heads / s.kv_heads, wide = (d_value + W - 1) / W * W;
  float* packed = floats(panel_floats(s.keys, s.width));
  bool copied = wide != d_value;  // padded to whole vectors
  float* values = copied ? floats(s.keys * wide) : nullptr;
  for (int64_t g = 0; g < s.kv_heads; ++g) {
    const float* value = v + g * strides[4];
    pack_whole(k + g * strides[2], strides[3], centre + g * s.width, s.keys, s.width, packed);
    if (copied) gather(value, strides[5], nullptr, s.keys, d_value, wide, values);
    int64_t blocks = (s.queries + BLOCK - 1) / BLOCK, tasks = blocks * groups;
    in_parallel(threads, [&](int64_t which) {
      std::vector<float> mixed;
      std::vector<Row> state;
      for (int64_t task = which; task < tasks; task += threads) {
        int64_t h = g * groups + task / blocks, start = task % blocks * BLOCK;
        int64_t stop = std::min(s.queries, start + BLOCK);
        Head head{q + h * strides[0], packed, copied ? values : value, strides[1], copied ? wide : strides[5], wide};
        float *o = out + h * strides[6], *l = lse + h * s.queries;
        if (kept)
          block_of_rows<true>(s, head, start, stop, o, strides[7], d_value, l, kept + h * s.queries * (KEPT + s.bands),
                              mixed, state);
        else
          block_of_rows<false>(s, head, start, stop, o, strides[7], d_value, l, nullptr, mixed, state);
      }
    });
  }
  std::free(packed);
  std::free(values);
}

// Gradients of attention inside a band, for one sequence, added to grad_q, grad_k, grad_v. Every tensor is contiguous,
// [heads, rows, width] with a width of whole vectors; lse and dot are [heads, queries].
void headscope_row_gradients(const float* q, const float* k, const float* v, const float* grad, const float* lse,
                             const float* dot, float* grad_q, float* grad_k, float* grad_v, const int64_t* sizes,
                             float scale, int64_t threads) {
  Shape s{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6], sizes[7], scale, 0, 0, nullptr};
  int64_t groups = s.heads / s.kv_heads, wide = s.width;
  std::vector<float> none(wide, 0.0f);
  in_parallel(std::min(threads, s.kv_heads), [&](int64_t which) {
    float *keys = floats(panel_floats(s.keys, wide)), *values = floats(panel_floats(s.keys, wide));
    for (int64_t g = which; g < s.kv_heads; g += std::min(threads, s.kv_heads)) {
      int64_t at = g * s.keys * wide;
      pack_whole(k + at, wide, none.data(), s.keys, wide, keys);
      pack_whole(v + at, wide, none.data(), s.keys, wide, values);
      for (int64_t h = g * groups; h < (g + 1) * groups; ++h) {
        int64_t mine = h * s.queries;
        Back x{q + mine * wide, grad + mine * wide, keys, values, k + at, lse + mine, dot + mine,
               grad_q + mine * wide, grad_k + at, grad_v + at, wide};
        for (int64_t i = 0; i < s.queries; i += ROWS)
          gradients_of_rows(s, x, i, int(std::min<int64_t>(ROWS, s.queries - i)));
      }
    }
    std::free(keys);
    std::free(values);
  });
}

// Blocks of queries over gathered keys, for one sequence: block b has the queries at query_index[b, rows] and the keys
// at key_index[b, run] (null: all of them), under allowed[b, rows, run] (one for all where `shared`; null: all see all).
// Writes out and lse of these queries, or merges with what stands there.
void headscope_blocks(const float* q, const float* k, const float* v, float* out, float* lse, const int64_t* strides,
                      const int64_t* sizes, const int64_t* query_index, const int64_t* key_index, const uint8_t* allowed,
                      int64_t shared, int64_t merges, float scale, int64_t threads) {
  int64_t heads = sizes[0], kv_heads = sizes[1], queries = sizes[2], width = sizes[3], d_value = sizes[4];
  int64_t blocks = sizes[5], rows = sizes[6], run = sizes[7], groups = heads / kv_heads, wide = (d_value + W - 1) / W * W;
  int64_t far = int64_t(1) << 60;
  in_parallel(threads, [&](int64_t which) {
    float *local_k = floats(run * width), *panels = floats(panel_floats(run, width)), *local_v = floats(run * wide);
    int64_t full = filled(rows);
    float *local_q = floats(full * width), *mixed_out = floats(full * d_value), *mixed_lse = floats(full);
    std::memset(local_q, 0, full * width * 4);
    std::vector<float> mixed, none(width, 0.0f);
    std::vector<Row> state;
    for (int64_t task = which; task < blocks * kv_heads; task += threads) {
      int64_t g = task / blocks, b = task % blocks;
      const int64_t *places = query_index + b * rows, *keys = key_index ? key_index + b * run : nullptr;
      gather(k + g * strides[2], strides[3], keys, run, width, width, local_k);
      pack_whole(local_k, width, none.data(), run, width, panels);
      gather(v + g * strides[4], strides[5], keys, run, d_value, wide, local_v);
      Shape s{1, 1, full, run, width, far, far, 0, scale, 0, 0, nullptr};
      s.allowed = allowed ? allowed + (shared ? 0 : b * rows * run) : nullptr;
      s.masked = rows;
      for (int64_t h = g * groups; h < (g + 1) * groups; ++h) {
        gather(q + h * strides[0], strides[1], places, rows, width, width, local_q);
        Head head{local_q, panels, local_v, width, wide, wide};
        for (int64_t start = 0; start < full; start += BLOCK)
          block_of_rows<false>(s, head, start, std::min(full, start + BLOCK), mixed_out, d_value, d_value, mixed_lse, nullptr,
                               mixed, state);
        for (int64_t r = 0; r < rows; ++r) {
          float *to = out + h * strides[6] + places[r] * strides[7], *at = lse + h * queries + places[r];
          const float* from = mixed_out + r * d_value;
          float old = merges ? *at : -INFINITY, now = mixed_lse[r], top = std::max(old, now);
          if (top == -INFINITY) {
            if (!merges) std::memset(to, 0, d_value * 4);
            *at = -INFINITY;
            continue;
          }
          float a = std::exp(old - top), c = std::exp(now - top), total = a + c;
          a /= total;
          c /= total;
          for (int64_t n = 0; n < d_value; ++n) to[n] = (a > 0 ? a * to[n] : 0.0f) + c * from[n];
          *at = top + std::log(total);
        }
      }
    }
    for (float* buffer : {local_k, panels, local_v, local_q, mixed_out, mixed_lse}) std::free(buffer);
  });
}

// Their gradients, added; tensors as in headscope_row_gradients.
void headscope_block_gradients(const float* q, const float* k, const float* v, const float* grad, const float* lse,
                               const float* dot, float* grad_q, float* grad_k, float* grad_v, const int64_t* sizes,
                               const int64_t* query_index, const int64_t* key_index, const uint8_t* allowed, int64_t shared,
                               float scale, int64_t threads) {
  int64_t heads = sizes[0], kv_heads = sizes[1], queries = sizes[2], all_keys = sizes[3], wide = sizes[4];
  int64_t blocks = sizes[5], rows = sizes[6], run = sizes[7], groups = heads / kv_heads, far = int64_t(1) << 60;
  int64_t workers = std::min(threads, kv_heads);
  std::vector<float> none(wide, 0.0f);
  in_parallel(workers, [&](int64_t which) {
    float *keys = floats(run * wide), *key_panels = floats(panel_floats(run, wide)), *values = floats(run * wide);
    float *value_panels = floats(panel_floats(run, wide)), *grad_keys = floats(run * wide), *grad_values = floats(run * wide);
    int64_t full = filled(rows);
    float *mine = floats(full * wide), *grads = floats(full * wide), *grad_mine = floats(full * wide);
    std::memset(mine, 0, full * wide * 4);
    std::memset(grads, 0, full * wide * 4);
    std::vector<float> my_lse(full, 0.0f), my_dot(full, 0.0f);
    for (int64_t g = which; g < kv_heads; g += workers)
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t *places = query_index + b * rows, *from = key_index ? key_index + b * run : nullptr;
        int64_t at = g * all_keys * wide;
        gather(k + at, wide, from, run, wide, wide, keys);
        gather(v + at, wide, from, run, wide, wide, values);
        pack_whole(keys, wide, none.data(), run, wide, key_panels);
        pack_whole(values, wide, none.data(), run, wide, value_panels);
        std::memset(grad_keys, 0, run * wide * 4);
        std::memset(grad_values, 0, run * wide * 4);
        Shape s{1, 1, full, run, wide, far, far, 0, scale, 0, 0, nullptr};
        s.allowed = allowed ? allowed + (shared ? 0 : b * rows * run) : nullptr;
        s.masked = rows;
        for (int64_t h = g * groups; h < (g + 1) * groups; ++h) {
          int64_t head = h * queries;
          gather(q + head * wide, wide, places, rows, wide, wide, mine);
          gather(grad + head * wide, wide, places, rows, wide, wide, grads);
          std::memset(grad_mine, 0, full * wide * 4);
          for (int64_t r = 0; r < rows; ++r) {
            my_lse[r] = lse[head + places[r]];
            my_dot[r] = dot[head + places[r]];
          }
          Back x{mine, grads, key_panels, value_panels, keys, my_lse.data(), my_dot.data(), grad_mine, grad_keys, grad_values,
                 wide};
          for (int64_t i = 0; i < full; i += ROWS) gradients_of_rows(s, x, i, ROWS);
          for (int64_t r = 0; r < rows; ++r)
            for (int64_t n = 0; n < wide; ++n) grad_q[(head + places[r]) * wide + n] += grad_mine[r * wide + n];
        }
        for (int64_t j = 0; j < run; ++j) {
          int64_t to = at + (from ? from[j] : j) * wide;
          for (int64_t n = 0; n < wide; ++n) {
            grad_k[to + n] += grad_keys[j * wide + n];
            grad_v[to + n] += grad_values[j * wide + n];
          }
        }
      }
    for (float* x : {keys, key_panels, values, value_panels, grad_keys, grad_values, mine, grads, grad_mine}) std::free(x);
  });
}
}
