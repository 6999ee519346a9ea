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

template <bool STATISTICS>
static void rows_of_tile(const Shape& s, const Head& head, int64_t i, int rows, int64_t tile, int64_t end, float* out,
                         int64_t o_row, Row* state) {
  alignas(64) float e[ROWS * TILE];
  // Only the panels that some row of these sees.
  int64_t low = std::max(tile, i + s.offset - std::min(s.left, i + s.offset + 1));
  int64_t high = std::min(end, i + rows - 1 + s.offset + std::min(s.right, s.keys) + 1);
  if (high <= low) return;
  int64_t from = (low - tile) / W, to = (high - tile + W - 1) / W;
  const float* q = head.q + i * head.q_row;
  int64_t p = from;
  auto panel = [&](int64_t at) { return head.panels + (tile / W + at) * W * s.width; };
  if (rows == ROWS) {
    for (; p + PANELS <= to; p += PANELS) scores_of<ROWS, PANELS>(q, head.q_row, panel(p), s.width, s.scale, e + p * W);
    for (; p < to; ++p) scores_of<ROWS, 1>(q, head.q_row, panel(p), s.width, s.scale, e + p * W);
  } else {
    for (int r = 0; r < rows; ++r)
      for (p = from; p < to; ++p)
        scores_of<1, 1>(q + r * head.q_row, head.q_row, panel(p), s.width, s.scale, e + r * TILE + p * W);
  }
  for (int r = 0; r < rows; ++r) {
    float* row = e + r * TILE;
    int64_t centre = i + r + s.offset - tile;  // the key at the query's own position, counted in this tile
    int64_t a = std::max(from * W, centre - std::min(s.left, centre + tile + 1));
    int64_t b = std::min({end - tile, to * W, centre + std::min(s.right, s.keys) + 1});
    a = std::min(std::max(a, from * W), to * W);
    b = std::max(b, a);
    for (int64_t c = from * W; c < a; ++c) row[c] = -INFINITY;
    for (int64_t c = b; c < to * W; ++c) row[c] = -INFINITY;
    Row& kept = state[r];
    if (b == a) {
      for (int64_t c = from * W; c < to * W; ++c) row[c] = 0;
      continue;
    }
    Vec top = all(-INFINITY);
    for (int64_t c = from; c < to; ++c) { Vec x = load(row + c * W); top = x > top ? x : top; }
    float most = std::max(kept.top, largest(top));
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
  // Rows of these six that do not exist have weight 0.
  int64_t stop = std::min(to * W, end - tile);
  if (rows == ROWS) {
    int64_t n = 0;
    const float* v = head.values + tile * head.v_row;
    for (; n + PANELS * W <= head.wide; n += PANELS * W)
      mix<ROWS, PANELS>(e, v + n, head.v_row, from * W, stop, out + n, o_row);
    for (; n < head.wide; n += W) mix<ROWS, 1>(e, v + n, head.v_row, from * W, stop, out + n, o_row);
  } else {
    for (int r = 0; r < rows; ++r)
      for (int64_t n = 0; n < head.wide; n += W)
        mix<1, 1>(e + r * TILE, head.values + tile * head.v_row + n, head.v_row, from * W, stop, out + r * o_row + n, o_row);
  }
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

extern "C" {

// One sequence. Strides are in floats; the last axis of every tensor is contiguous. `centre` is subtracted from the
// keys of its head. `kept` is null where statistics are not wanted, else [heads, queries, 12 + bands].
void headscope_rows(const float* q, const float* k, const float* v, const float* centre, float* out, float* lse,
                    double* kept, const int64_t* strides, const int64_t* sizes, const int64_t* reach, float scale,
                    int64_t threads) {
  Shape s{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[6], sizes[7], sizes[8], scale, sizes[9], sizes[10], reach};
  int64_t d_value = sizes[5], groups = s.heads / s.kv_heads;
  int64_t panels = (s.keys + W - 1) / W + PANELS, wide = (d_value + W - 1) / W * W;
  float* packed = static_cast<float*>(std::aligned_alloc(64, (panels * W * s.width * 4 + 63) / 64 * 64));
  bool copied = wide != d_value;  // padded to whole vectors
  float* values = copied ? static_cast<float*>(std::aligned_alloc(64, (s.keys * wide * 4 + 63) / 64 * 64)) : nullptr;
  for (int64_t g = 0; g < s.kv_heads; ++g) {
    const float *key = k + g * strides[2], *value = v + g * strides[4], *mean = centre + g * s.width;
    std::memset(packed + s.keys / W * W * s.width, 0, (panels - s.keys / W) * W * s.width * 4);
    pack(key, strides[3], mean, s.keys, s.width, packed);
    for (int64_t j = 0; copied && j < s.keys; ++j) {
      std::memcpy(values + j * wide, value + j * strides[5], d_value * 4);
      std::memset(values + j * wide + d_value, 0, (wide - d_value) * 4);
    }
    int64_t blocks = (s.queries + BLOCK - 1) / BLOCK, tasks = blocks * groups;
    auto work = [&](int64_t which) {
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
    };
    std::vector<std::thread> pool;
    for (int64_t t = 1; t < threads; ++t) pool.emplace_back(work, t);
    work(0);
    for (auto& thread : pool) thread.join();
  }
  std::free(packed);
  std::free(values);
}
}
