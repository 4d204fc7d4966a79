// The operations of a decoder between its products, on a CPU: for decoding a few rows and for training packed tokens.
//
// In a pass over a few rows, the overhead of calls dominates. Each function here is one call that replaces 4 to 17. In
// training it keeps less and reads memory less often. It reads and writes float32 or bfloat16 and always computes in
// float32; bfloat16 is rounded once, at the end. The product of a few rows with a weight is here, too: it is up to
// twice as fast as PyTorch's.
// kernels.py compiles this file and checks every function against its formula.
//
// L tokens, n rows, P prompts, E width of the model, I width of a gated MLP, H query heads, K key-value heads,
// G = H / K queries per key, D width of a head, C columns of keys and values. All tensors are contiguous unless a
// stride is given.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

// bfloat16 is multiplied in pairs if the processor can. On a processor with tiles (AMX), oneDNN's products use those.
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
#define PAIRS
#include <immintrin.h>
#endif

// The new tokens of n rows, the keys and values so far, and their places.
struct Attention {
    const void* qkv;       // [n, H + 2 K, D], rotated
    const void* keys_p;    // [P, K, D, columns_p] of prompts
    const void* values_p;  // [P, K, columns_p, D]
    void* keys_s;          // [n, K, D, columns_s] of the tokens after them; the new tokens are written here
    void* values_s;        // [n, K, columns_s, D]
    const void* mask;      // [n, mask_p + mask_s], added to scores; null if a row sees its prompt and all of its tokens
    void* out;             // [n, H, D]
    const int64_t *prompts, *lengths, *ages;  // [n]: a row's prompt, its length, and the row's own tokens so far
    const int64_t *order, *chunks;            // [n]: rows sorted by prompt; [num_chunks + 1]: where chunks begin
    int64_t num_chunks, H, K, D, columns_p, columns_s, mask_p, mask_s;
    float scaling;
    int32_t threads;
};

// Consecutive tokens of one training row. The segments of a family after the first also see the first `prefix` tokens
// of its first segment; `prefix` is the same for all of them.
struct Segment {
    int64_t start, length, prefix;
};

struct Segments {
    const void *q, *k, *v;  // [L, H, D], [L, K, D], [L, K, E], rotated; heads are contiguous, tokens a stride apart
    void* out;              // [L, H, E], forward pass only
    float* logsums;         // [L, H]: log of the sum of exponentials of a query's scores
    const void* gradient;   // [L, H, E]: gradient of out, backward pass only
    void *dq, *dk, *dv;     // with the strides of q, k and v, backward pass only
    const Segment* segments;   // sorted by family
    const int64_t* families;   // [num_families + 1]: where families begin
    int64_t num_families, H, K, D, E;
    int64_t q_stride, k_stride, v_stride;
    float scaling;
    int32_t threads;
};

// n rows, each with C of the X gated experts.
struct Experts {
    const float* x;        // [n, E]
    const void* gate_up;   // [X, 2 I, E]
    const void* down;      // [X, E, I]
    const int64_t* chosen;  // [n, C]: indices of experts
    const float* shares;   // [n, C]: weight of each expert's output
    float* out;            // [n, E]
    int64_t n, C, X, E, I;
    int32_t threads;
};

namespace {

// --- vectors of W numbers, as many as a register of this processor holds ---------------------------------------------

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif
typedef float Floats __attribute__((vector_size(4 * W)));
typedef int32_t Ints __attribute__((vector_size(4 * W)));
typedef uint32_t Bits __attribute__((vector_size(4 * W)));
typedef uint16_t Halves __attribute__((vector_size(2 * W)));

struct bfloat16 {
    uint16_t bits;  // the upper half of a float32
};

template <class To, class From>
inline To as(const From& from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

inline Floats load(const float* from) {
    Floats x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

inline Floats load(const bfloat16* from) {
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    return as<Floats>(__builtin_convertvector(halves, Bits) << 16);
}

inline float value_of(float x) { return x; }
inline float value_of(bfloat16 x) { return as<float>(uint32_t(x.bits) << 16); }

inline void store(float* to, Floats x) { std::memcpy(to, &x, sizeof x); }

inline void store(bfloat16* to, Floats x) {
    Bits bits = as<Bits>(x);
    Bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;                    // to nearest, ties to even
    Bits kept = x == x ? rounded : Bits{} + 0x7fc0;                              // NaN stays NaN
    Halves halves = __builtin_convertvector(kept, Halves);
    std::memcpy(to, &halves, sizeof halves);
}

inline Floats all(float x) { return Floats{} + x; }

template <class Combine>
inline float reduced(Floats x, Combine combine) {
    float halves[W];
    store(halves, x);
    for (int width = W / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) halves[i] = combine(halves[i], halves[i + width]);
    return halves[0];
}

inline float sum(Floats x) {
    return reduced(x, [](float a, float b) { return a + b; });
}

inline float largest(Floats x) {
    return reduced(x, [](float a, float b) { return std::max(a, b); });
}

// e^x for x <= 0, to 2 units in the last place: 2^n e^r with |r| <= ln(2) / 2, and 0 below the normal numbers. The
// polynomial is the one of the Cephes library.
inline Floats exponential(Floats x) {
    const float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    Floats n = x * 1.44269504f + shift - shift;
    Floats r = x - n * 0.693359375f + n * 2.12194440e-4f;
    Floats y = all(1.9875691500e-4f);
    for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        y = y * r + c;
    y = y * r * r + r + 1.0f;
    Floats power = as<Floats>((__builtin_convertvector(n, Ints) + 127) << 23);
    return x < all(-87.0f) ? Floats{} : y * power;
}

constexpr int64_t ALONE = 1 << 15;  // amount of numbers that one thread finishes before other threads have started

// --- products --------------------------------------------------------------------------------------------------------

// out[q][m] (+)= sum over r < R of a[q][r] b[r][m], for Q rows and M = B W columns, which stay in registers. If
// `Turned`, a is stored as a[r][q].
template <int Q, int B, bool Turned, class T>
inline void tile(const float* a, int64_t lda, const T* b, int64_t ldb, int64_t R, float* out, int64_t ldo, bool add) {
    Floats sums[Q][B] = {};
    for (int64_t r = 0; r < R; r++)
        for (int m = 0; m < B; m++) {
            Floats column = load(b + r * ldb + m * W);
            for (int q = 0; q < Q; q++) sums[q][m] += a[Turned ? r * lda + q : q * lda + r] * column;
        }
    for (int q = 0; q < Q; q++)
        for (int m = 0; m < B; m++) {
            float* to = out + q * ldo + m * W;
            store(to, add ? load(to) + sums[q][m] : sums[q][m]);
        }
}

template <int Q, bool Turned, class T>
void tiles(const float* a, int64_t lda, const T* b, int64_t ldb, int64_t R, int64_t M, float* out, int64_t ldo, bool add) {
    int64_t m = 0;
    if (W == 16)  // such processors have 32 registers, others 16
        for (; m + 4 * W <= M; m += 4 * W) tile<Q, 4, Turned>(a, lda, b + m, ldb, R, out + m, ldo, add);
    for (; m + 2 * W <= M; m += 2 * W) tile<Q, 2, Turned>(a, lda, b + m, ldb, R, out + m, ldo, add);
    for (; m < M; m += W) tile<Q, 1, Turned>(a, lda, b + m, ldb, R, out + m, ldo, add);
}

// The product of `num_a` rows of a with R x M numbers of b. The order of each sum does not depend on the tile.
template <bool Turned = false, class T>
void product(int64_t num_a, const float* a, int64_t lda, const T* b, int64_t ldb, int64_t R, int64_t M, float* out,
             int64_t ldo, bool add) {
    const int64_t next = Turned ? 1 : lda;
    int64_t q = 0;
    for (; q + 6 <= num_a; q += 6) tiles<6, Turned>(a + q * next, lda, b, ldb, R, M, out + q * ldo, ldo, add);
    for (; q + 4 <= num_a; q += 4) tiles<4, Turned>(a + q * next, lda, b, ldb, R, M, out + q * ldo, ldo, add);
    for (; q + 2 <= num_a; q += 2) tiles<2, Turned>(a + q * next, lda, b, ldb, R, M, out + q * ldo, ldo, add);
    for (; q < num_a; q++) tiles<1, Turned>(a + q * next, lda, b, ldb, R, M, out + q * ldo, ldo, add);
}

constexpr int64_t ROWS = 12;   // number of rows of x that a thread takes at a time
constexpr int64_t PANEL = 64;  // number of columns of the weight that a thread takes at a time
constexpr int64_t PART = 256;  // terms of a partial sum: rounding errors grow with the number of terms

// x [N, K] times a weight [K, M], which is stored in panels of PANEL columns, one after the other. The last panel has
// the remaining columns. M is a multiple of W.
void linear(const float* x, const float* weight, const float* bias, float* out, int64_t N, int64_t K, int64_t M,
            int threads) {
    const int64_t blocks = (N + ROWS - 1) / ROWS, panels = (M + PANEL - 1) / PANEL;
#pragma omp parallel for num_threads(threads) schedule(static) if (panels * blocks > 1 && N * K * M > 4 * ALONE)
    for (int64_t task = 0; task < panels * blocks; task++) {
        const int64_t m = task / blocks * PANEL, n = task % blocks * ROWS;
        const int64_t wide = std::min(PANEL, M - m), rows = std::min(ROWS, N - n);
        if (bias)
            for (int64_t i = n; i < n + rows; i++) std::memcpy(out + i * M + m, bias + m, wide * sizeof(float));
        for (int64_t k = 0; k < K; k += PART)
            product(rows, x + n * K + k, K, weight + m * K + k * wide, wide, std::min(PART, K - k), wide, out + n * M + m, M,
                    bias || k > 0);
    }
}

#ifdef PAIRS
// Q rows of x times B W columns of a panel, both as pairs of neighbours. Sums are in float32, in registers.
template <int Q, int B>
inline void tile_of_pairs(const bfloat16* x, int64_t K, const bfloat16* panel, int64_t wide, const bfloat16* bias,
                          bfloat16* out, int64_t M) {
    __m512 sums[Q][B];
    for (int q = 0; q < Q; q++)
        for (int m = 0; m < B; m++) sums[q][m] = bias ? as<__m512>(load(bias + m * W)) : _mm512_setzero_ps();
    for (int64_t k = 0; k < K; k += 2) {
        __m512bh columns[B];
        for (int m = 0; m < B; m++) columns[m] = as<__m512bh>(_mm512_loadu_si512(panel + k * wide + 2 * m * W));
        for (int q = 0; q < Q; q++) {
            int pair;
            std::memcpy(&pair, x + q * K + k, sizeof pair);
            for (int m = 0; m < B; m++)
                sums[q][m] = _mm512_dpbf16_ps(sums[q][m], as<__m512bh>(_mm512_set1_epi32(pair)), columns[m]);
        }
    }
    for (int q = 0; q < Q; q++)
        for (int m = 0; m < B; m++) {
            const __m256bh rounded = _mm512_cvtneps_pbh(sums[q][m]);
            std::memcpy(out + q * M + m * W, &rounded, sizeof rounded);
        }
}

template <int Q>
void panel_of_pairs(const bfloat16* x, int64_t K, const bfloat16* panel, int64_t wide, const bfloat16* bias, bfloat16* out,
                    int64_t M) {
    int64_t m = 0;
    const auto tile = [&](auto columns) {
        constexpr int B = decltype(columns)::value;
        tile_of_pairs<Q, B>(x, K, panel + 2 * m, wide, bias ? bias + m : nullptr, out + m, M);
        m += B * W;
    };
    while (m + 4 * W <= wide) tile(std::integral_constant<int, 4>());
    while (m + 2 * W <= wide) tile(std::integral_constant<int, 2>());
    while (m < wide) tile(std::integral_constant<int, 1>());
}

// The same product in bfloat16. A panel holds two neighbouring inputs of each output side by side. K is even.
void linear(const bfloat16* x, const bfloat16* weight, const bfloat16* bias, bfloat16* out, int64_t N, int64_t K, int64_t M,
            int threads) {
    const int64_t blocks = (N + ROWS - 1) / ROWS, panels = (M + PANEL - 1) / PANEL;
#pragma omp parallel for num_threads(threads) schedule(static) if (panels * blocks > 1 && N * K * M > 4 * ALONE)
    for (int64_t task = 0; task < panels * blocks; task++) {
        const int64_t m = task / blocks * PANEL, end = std::min(N, (task % blocks + 1) * ROWS);
        const int64_t wide = std::min(PANEL, M - m);
        int64_t n = task % blocks * ROWS;
        const auto rows = [&](auto number) {
            constexpr int Q = decltype(number)::value;
            panel_of_pairs<Q>(x + n * K, K, weight + m * K, wide, bias ? bias + m : nullptr, out + n * M + m, M);
            n += Q;
        };
        while (n + 6 <= end) rows(std::integral_constant<int, 6>());
        while (n + 2 <= end) rows(std::integral_constant<int, 2>());
        while (n < end) rows(std::integral_constant<int, 1>());
    }
}
#endif

// --- attention of rows -----------------------------------------------------------------------------------------------

// Replaces `num` scores s by exp(s - max s); returns max s and the sum of the exponentials.
struct Softmax {
    float highest, sum;
};

inline Softmax softmax(float* scores, int64_t num) {
    Floats top = load(scores);
    for (int64_t c = W; c < num; c += W) {
        Floats x = load(scores + c);
        top = x > top ? x : top;
    }
    Floats highest = all(largest(top)), total = {};
    for (int64_t c = 0; c < num; c += W) {
        Floats weight = exponential(load(scores + c) - highest);
        total += weight;
        store(scores + c, weight);
    }
    return {highest[0], sum(total)};
}

inline int64_t whole(int64_t columns) { return (columns + 15) / 16 * 16; }  // every slot has room for them

template <class T>
void attend_rows(const Attention& given) {
    const int64_t H = given.H, K = given.K, D = given.D, G = H / K, P = given.columns_p, S = given.columns_s;
    const T *qkv = static_cast<const T*>(given.qkv), *mask = static_cast<const T*>(given.mask);
    const T *keys_p = static_cast<const T*>(given.keys_p), *values_p = static_cast<const T*>(given.values_p);
    T *keys_s = static_cast<T*>(given.keys_s), *values_s = static_cast<T*>(given.values_s);
    T* out = static_cast<T*>(given.out);
#pragma omp parallel num_threads(given.threads)
    {
        std::vector<float> queries, scores, mixed, factors;
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < given.num_chunks * K; task++) {
            const int64_t k = task % K, begin = given.chunks[task / K], count = given.chunks[task / K + 1] - begin;
            const int64_t *rows = given.order + begin, prompt = given.prompts[rows[0]];
            const int64_t seen_p = given.lengths[rows[0]], wide_p = whole(seen_p), in_prompt = (prompt * K + k) * D * P;
            auto seen = [&](int64_t i) { return given.ages[rows[i]] + 1; };
            auto in_slot = [&](int64_t i) { return (rows[i] * K + k) * D * S; };
            int64_t wide = 0;
            for (int64_t i = 0; i < count; i++) wide = std::max(wide, wide_p + whole(seen(i)));
            queries.resize(count * G * D);
            mixed.resize(count * G * D);
            scores.resize(count * G * wide);
            factors.resize(count * G);
            float *q = queries.data(), *s = scores.data(), *o = mixed.data();

            for (int64_t i = 0; i < count; i++) {  // store the new tokens
                const T *token = qkv + rows[i] * (H + 2 * K) * D, *key = token + (H + k) * D;
                T* column = keys_s + in_slot(i) + given.ages[rows[i]];
                for (int64_t d = 0; d < D; d++) column[d * S] = key[d];
                std::memcpy(values_s + in_slot(i) + given.ages[rows[i]] * D, key + K * D, D * sizeof(T));
                for (int64_t x = 0; x < G * D; x += W) store(q + i * G * D + x, load(token + k * G * D + x) * given.scaling);
            }
            product(count * G, q, D, keys_p + in_prompt, P, D, wide_p, s, wide, false);
            for (int64_t i = 0; i < count; i++)
                product(G, q + i * G * D, D, keys_s + in_slot(i), S, D, whole(seen(i)), s + i * G * wide + wide_p, wide, false);
            for (int64_t x = 0; x < count * G; x++) {
                const int64_t columns = wide_p + seen(x / G);
                float* score = s + x * wide;
                std::fill(score + seen_p, score + wide_p, -INFINITY);
                std::fill(score + columns, score + wide_p + whole(seen(x / G)), -INFINITY);
                if (mask) {
                    const T* row = mask + rows[x / G] * (given.mask_p + given.mask_s);
                    for (int64_t c = 0; c < seen_p; c++) score[c] += value_of(row[c]);
                    for (int64_t c = wide_p; c < columns; c++) score[c] += value_of(row[given.mask_p + c - wide_p]);
                }
                factors[x] = 1 / softmax(score, wide_p + whole(seen(x / G))).sum;
            }
            product(count * G, s, wide, values_p + in_prompt, D, seen_p, D, o, D, false);
            for (int64_t i = 0; i < count; i++)
                product(G, s + i * G * wide + wide_p, wide, values_s + in_slot(i), D, seen(i), D, o + i * G * D, D, true);
            for (int64_t x = 0; x < count * G; x++) {
                T* to = out + ((rows[x / G] * K + k) * G + x % G) * D;
                for (int64_t d = 0; d < D; d += W) store(to + d, load(o + x * D + d) * factors[x]);
            }
        }
    }
}

// --- attention of whole rows, for training ----------------------------------------------------------------------------

constexpr int64_t QUERIES = 48;  // queries of one key head that are computed together: their scores stay in the cache

// The working memory of one thread for a family of segments, which see keys of the first segment before their own.
struct Scratch {
    std::vector<float> numbers;

    float* take(int64_t& used, int64_t size) {
        float* from = numbers.data() + used;
        used += whole(size);
        return from;
    }
};

template <class T>
struct Family {
    const Segments& given;
    const int64_t k;     // the key head
    const int64_t G, D, E, room;  // room: columns of keys, a multiple of 16
    float *keys_DS, *values_SE, *queries, *scores, *mixed;                 // for both passes
    float *keys_SD, *values_ES, *gradients, *slopes, *dkeys_SD, *dvalues_SE;  // for the backward pass

    static int64_t size(const Segments& given, int64_t room, bool backward) {
        const int64_t G = given.H / given.K, both = given.D + given.E, n = std::max(QUERIES, G);
        return room * both + n * both + n * room + (backward ? 2 * room * both + n * (given.E + room) : 0) + 16 * 16;
    }

    Family(const Segments& given, int64_t k, int64_t room, Scratch& scratch, bool backward)
        : given(given), k(k), G(given.H / given.K), D(given.D), E(given.E), room(room) {
        const int64_t n = std::max(QUERIES, G);
        int64_t used = 0;
        if (int64_t(scratch.numbers.size()) < size(given, room, backward)) scratch.numbers.resize(size(given, room, backward));
        keys_DS = scratch.take(used, D * room);
        values_SE = scratch.take(used, room * E);
        queries = scratch.take(used, n * D);
        mixed = scratch.take(used, n * E);
        scores = scratch.take(used, n * room);
        if (!backward) return;
        keys_SD = scratch.take(used, room * D);
        values_ES = scratch.take(used, E * room);
        dkeys_SD = scratch.take(used, room * D);
        dvalues_SE = scratch.take(used, room * E);
        gradients = scratch.take(used, n * E);
        slopes = scratch.take(used, n * room);
    }

    // Read keys and values of `num` tokens from `first` on into the columns from `column` on.
    void read(int64_t first, int64_t num, int64_t column, bool backward) {
        for (int64_t i = 0; i < num; i++) {
            const T* key = static_cast<const T*>(given.k) + (first + i) * given.k_stride + k * D;
            const T* value = static_cast<const T*>(given.v) + (first + i) * given.v_stride + k * E;
            const int64_t c = column + i;
            for (int64_t d = 0; d < D; d++) keys_DS[d * room + c] = value_of(key[d]);
            for (int64_t e = 0; e < E; e += W) store(values_SE + c * E + e, load(value + e));
            if (!backward) continue;
            for (int64_t d = 0; d < D; d += W) store(keys_SD + c * D + d, load(key + d));
            for (int64_t e = 0; e < E; e++) values_ES[e * room + c] = value_of(value[e]);
        }
        if (!backward) return;
        std::fill(dkeys_SD + column * D, dkeys_SD + (column + num) * D, 0.0f);
        std::fill(dvalues_SE + column * E, dvalues_SE + (column + num) * E, 0.0f);
    }

    void write_gradients(int64_t first, int64_t num, int64_t column) {
        for (int64_t i = 0; i < num; i++) {
            T* dkey = static_cast<T*>(given.dk) + (first + i) * given.k_stride + k * D;
            T* dvalue = static_cast<T*>(given.dv) + (first + i) * given.v_stride + k * E;
            for (int64_t d = 0; d < D; d += W) store(dkey + d, load(dkeys_SD + (column + i) * D + d));
            for (int64_t e = 0; e < E; e += W) store(dvalue + e, load(dvalues_SE + (column + i) * E + e));
        }
    }

    // Compute the scaled queries of `num` tokens from `token` on, and their scores with the first `columns` keys.
    void score(int64_t token, int64_t num, int64_t columns) {
        for (int64_t x = 0; x < num * G; x++) {
            const T* query = static_cast<const T*>(given.q) + (token + x / G) * given.q_stride + (k * G + x % G) * D;
            for (int64_t d = 0; d < D; d += W) store(queries + x * D + d, load(query + d) * given.scaling);
        }
        product(num * G, queries, D, keys_DS, room, D, whole(columns), scores, room, false);
    }

    // Forward pass for `num` tokens from `token` on. The first token sees `seen` columns, each next token one more.
    void forward(int64_t token, int64_t num, int64_t seen) {
        const int64_t columns = seen + num - 1;
        score(token, num, columns);
        for (int64_t x = 0; x < num * G; x++) {
            const int64_t mine = seen + x / G;
            float* score = scores + x * room;
            std::fill(score + mine, score + whole(columns), -INFINITY);
            const Softmax found = softmax(score, whole(mine));
            std::fill(score + whole(mine), score + whole(columns), 0.0f);
            given.logsums[(token + x / G) * given.H + k * G + x % G] = found.highest + std::log(found.sum);
            for (int64_t c = 0; c < whole(mine); c += W) store(score + c, load(score + c) / found.sum);
        }
        product(num * G, scores, room, values_SE, E, columns, E, mixed, E, false);
        for (int64_t x = 0; x < num * G; x++) {
            T* to = static_cast<T*>(given.out) + ((token + x / G) * given.H + k * G + x % G) * E;
            for (int64_t e = 0; e < E; e += W) store(to + e, load(mixed + x * E + e));
        }
    }

    // Backward pass. With p the weights, g the gradient of the output and s the scores: dV = p^T g,
    // ds = p (g V^T - sum of p g V^T), dQ = ds K, dK = ds^T Q.
    void backward(int64_t token, int64_t num, int64_t seen) {
        const int64_t columns = seen + num - 1;
        score(token, num, columns);
        for (int64_t x = 0; x < num * G; x++) {
            const T* gradient = static_cast<const T*>(given.gradient) + ((token + x / G) * given.H + k * G + x % G) * E;
            for (int64_t e = 0; e < E; e += W) store(gradients + x * E + e, load(gradient + e));
        }
        product(num * G, gradients, E, values_ES, room, E, whole(columns), slopes, room, false);
        for (int64_t x = 0; x < num * G; x++) {
            const int64_t mine = seen + x / G, place = (token + x / G) * given.H + k * G + x % G;
            float *score = scores + x * room, *slope = slopes + x * room;
            const float logsum = given.logsums[place];
            std::fill(score + mine, score + whole(columns), -INFINITY);
            std::fill(slope + mine, slope + whole(columns), 0.0f);
            Floats weighted = {}, total = {};
            for (int64_t c = 0; c < whole(columns); c += W) {
                Floats weight = exponential(load(score + c) - logsum);
                weighted += weight * load(slope + c);
                total += weight;
                store(score + c, weight);
            }
            const float share = 1 / sum(total), mean = sum(weighted) * share;  // large scores make logsum inexact
            for (int64_t c = 0; c < whole(columns); c += W) {
                Floats weight = load(score + c) * share;
                store(score + c, weight);
                store(slope + c, weight * (load(slope + c) - mean));
            }
        }
        product<true>(columns, scores, room, gradients, E, num * G, E, dvalues_SE, E, true);
        product<true>(columns, slopes, room, queries, D, num * G, D, dkeys_SD, D, true);
        product(num * G, slopes, room, keys_SD, D, columns, D, queries, D, false);
        for (int64_t x = 0; x < num * G; x++) {
            T* to = static_cast<T*>(given.dq) + (token + x / G) * given.q_stride + (k * G + x % G) * D;
            for (int64_t d = 0; d < D; d += W) store(to + d, load(queries + x * D + d) * given.scaling);
        }
    }
};

// Attention of families of segments. The first segment of a family sees only itself; the others see a prefix of it
// before their own tokens. One thread sums all gradients of a family's keys, always in the same order.
template <class T, bool Backward>
void attend_segments(const Segments& given) {
#pragma omp parallel num_threads(given.threads)
    {
        Scratch scratch;
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < given.num_families * given.K; task++) {
            const Segment *trunk = given.segments + given.families[task / given.K];
            const Segment *end = given.segments + given.families[task / given.K + 1];
            int64_t room = 0;
            for (const Segment* s = trunk; s < end; s++) room = std::max(room, whole(s->prefix + s->length));
            Family<T> family(given, task % given.K, room, scratch, Backward);
            for (const Segment* s = trunk; s < end; s++) {
                family.read(s->start, s->length, s->prefix, Backward);
                const int64_t step = std::max<int64_t>(1, QUERIES / family.G);
                for (int64_t t = 0; t < s->length; t += step) {
                    const int64_t num = std::min(step, s->length - t), seen = s->prefix + t + 1;
                    Backward ? family.backward(s->start + t, num, seen) : family.forward(s->start + t, num, seen);
                }
                if (Backward) family.write_gradients(s->start, s->length, s->prefix);
            }
            if (Backward && end - trunk > 1) family.write_gradients(trunk->start, trunk[1].prefix, 0);  // complete
        }
    }
}

// --- other operations between two products ---------------------------------------------------------------------------

template <class T>
void rms_norm(const T* x, const float* weight, T* out, int64_t L, int64_t E, float epsilon, int threads) {
#pragma omp parallel for num_threads(threads) if (L * E > ALONE)
    for (int64_t l = 0; l < L; l++) {
        Floats squares = {};
        for (int64_t e = 0; e < E; e += W) {
            Floats part = load(x + l * E + e);
            squares += part * part;
        }
        float factor = 1 / std::sqrt(sum(squares) / E + epsilon);
        for (int64_t e = 0; e < E; e += W) store(out + l * E + e, load(x + l * E + e) * load(weight + e) * factor);
    }
}

// Rotate each head in place: low = low cos + high sin, high = high cos' + low sin'. The cosines and sines of the low
// half come first, then those of the high half.
template <class T>
void rotate(T* x, const T* cosines, const T* sines, int64_t L, int64_t heads, int64_t D, int64_t stride, int threads) {
#pragma omp parallel for num_threads(threads) if (L * heads * D > ALONE)
    for (int64_t l = 0; l < L; l++)
        for (int64_t d = 0; d < D / 2; d += W) {
            const T *cosine = cosines + l * D + d, *sine = sines + l * D + d;
            const Floats cos_low = load(cosine), cos_high = load(cosine + D / 2);
            const Floats sin_low = load(sine), sin_high = load(sine + D / 2);
            for (int64_t h = 0; h < heads; h++) {
                T *low = x + l * stride + h * D + d, *high = low + D / 2;
                Floats a = load(low), b = load(high);
                store(low, a * cos_low + b * sin_low);
                store(high, b * cos_high + a * sin_high);
            }
        }
}

inline Floats silu(Floats x) {
    Floats small = exponential(x < 0 ? x : -x);  // e^-|x|, which cannot overflow
    return x * (x < 0 ? small : all(1)) / (1 + small);
}

// `stride` is the distance between rows in both `gate` and `up`.
template <class T>
void silu_gate(const T* gate, const T* up, T* out, int64_t L, int64_t I, int64_t stride, int threads) {
#pragma omp parallel for num_threads(threads) if (L * I > ALONE)
    for (int64_t l = 0; l < L; l++)
        for (int64_t i = 0; i < I; i += W)
            store(out + l * I + i, silu(load(gate + l * stride + i)) * load(up + l * stride + i));
}

// --- experts -----------------------------------------------------------------------------------------------------------

// Weights are read in place, one output after the other: they are too large to be copied for each call of the sampler.
// Each output is the total of W sums, each over every W-th input. The order of the sums does not depend on the rows.

typedef float Four __attribute__((vector_size(16)));

// The sum of each of the four vectors.
inline Four sums_of(const Floats (&x)[4]) {
    Four halved[4];
    for (int m = 0; m < 4; m++) {
        Four parts[W / 4];
        std::memcpy(parts, &x[m], sizeof parts);
        for (int width = W / 8; width > 0; width /= 2)
            for (int i = 0; i < width; i++) parts[i] += parts[i + width];
        halved[m] = parts[0];
    }
    auto pairs = [](Four a, Four b) { return Four{a[0], b[0], a[1], b[1]} + Four{a[2], b[2], a[3], b[3]}; };
    Four a = pairs(halved[0], halved[1]), b = pairs(halved[2], halved[3]);
    return Four{a[0], a[1], b[0], b[1]} + Four{a[2], a[3], b[2], b[3]};
}

// out[q][m] = sum over r < R of a[q][r] b[m][r], for Q rows at any addresses and 4 outputs of a weight.
template <int Q, class T>
inline void dots(const float* const* a, const T* b, int64_t R, float* const* out, int64_t m) {
    Floats sums[Q][4] = {};
    for (int64_t r = 0; r < R; r += W) {
        Floats weights[4];
        for (int i = 0; i < 4; i++) weights[i] = load(b + i * R + r);
        for (int i = 0; i < 4; i++) __builtin_prefetch(b + 4 * (R + r) + i * W);  // the next 4 outputs: they are not in the cache
        for (int q = 0; q < Q; q++) {
            Floats x = load(a[q] + r);
            for (int i = 0; i < 4; i++) sums[q][i] += x * weights[i];
        }
    }
    for (int q = 0; q < Q; q++) {
        Four found = sums_of(sums[q]);
        std::memcpy(out[q] + m, &found, sizeof found);
    }
}

constexpr int64_t SLICE = 64;       // number of outputs of an expert that a thread takes at a time
constexpr int64_t BLOCK_ROWS = 48;  // number of rows that chose this expert that a thread takes at a time

// M outputs of a weight [., R] for `num` rows.
template <class T>
void outputs(int64_t num, const float* const* a, const T* b, int64_t R, float* const* out, int64_t M) {
    for (int64_t m = 0; m < M; m += 4) {
        int64_t q = 0;
        if (W == 16)  // such processors have 32 registers, others 16
            for (; q + 6 <= num; q += 6) dots<6>(a + q, b + m * R, R, out + q, m);
        for (; q + 2 <= num; q += 2) dots<2>(a + q, b + m * R, R, out + q, m);
        for (; q < num; q++) dots<1>(a + q, b + m * R, R, out + q, m);
    }
}

// The n C choices, sorted by expert. A choice of an expert that does not exist is left out, and adds 0.
struct Grouped {
    std::vector<int64_t> choices, begins, experts;  // begins: of blocks of at most BLOCK_ROWS choices, and the end

    Grouped(const int64_t* chosen, int64_t num, int64_t X) {
        std::vector<int64_t> ends(X + 1);
        for (int64_t c = 0; c < num; c++)
            if (chosen[c] >= 0 && chosen[c] < X) ends[chosen[c] + 1]++;
        for (int64_t x = 0; x < X; x++) {
            for (int64_t begin = 0; begin < ends[x + 1]; begin += BLOCK_ROWS) {
                begins.push_back(ends[x] + begin);
                experts.push_back(x);
            }
            ends[x + 1] += ends[x];
        }
        begins.push_back(ends[X]);
        choices.resize(ends[X]);
        for (int64_t c = 0; c < num; c++)
            if (chosen[c] >= 0 && chosen[c] < X) choices[ends[chosen[c]]++] = c;
    }
};

template <class T>
void experts(const Experts& given) {
    const int64_t E = given.E, I = given.I, C = given.C;
    const Grouped grouped(given.chosen, given.n * C, given.X);
    const int64_t blocks = grouped.experts.size(), num = grouped.choices.size();
    const int64_t of_gate = (I + SLICE - 1) / SLICE, of_down = (E + SLICE - 1) / SLICE;
    const T *gate_up = static_cast<const T*>(given.gate_up), *down = static_cast<const T*>(given.down);
    std::vector<Floats> gated_numbers(num * I / W), found_numbers(given.n * C * E / W);  // aligned, unlike floats
    float *gated = reinterpret_cast<float*>(gated_numbers.data()), *found = reinterpret_cast<float*>(found_numbers.data());
#pragma omp parallel num_threads(given.threads) if (num * I * E > ALONE)
    {
        std::vector<float> ups(BLOCK_ROWS * SLICE);
        const float* from[BLOCK_ROWS];
        float *gates[BLOCK_ROWS], *to[BLOCK_ROWS];
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < blocks * of_gate; task++) {
            const int64_t block = task / of_gate, i = task % of_gate * SLICE, wide = std::min(SLICE, I - i);
            const int64_t begin = grouped.begins[block], rows = grouped.begins[block + 1] - begin;
            for (int64_t q = 0; q < rows; q++) {
                from[q] = given.x + grouped.choices[begin + q] / C * E;
                gates[q] = gated + (begin + q) * I + i;
                to[q] = ups.data() + q * SLICE;
            }
            const T* weight = gate_up + (grouped.experts[block] * 2 * I + i) * E;
            outputs(rows, from, weight, E, gates, wide);
            outputs(rows, from, weight + I * E, E, to, wide);
            for (int64_t q = 0; q < rows; q++)
                for (int64_t k = 0; k < wide; k += W) store(gates[q] + k, silu(load(gates[q] + k)) * load(to[q] + k));
        }
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < blocks * of_down; task++) {
            const int64_t block = task / of_down, e = task % of_down * SLICE;
            const int64_t begin = grouped.begins[block], rows = grouped.begins[block + 1] - begin;
            for (int64_t q = 0; q < rows; q++) {
                from[q] = gated + (begin + q) * I;
                to[q] = found + grouped.choices[begin + q] * E + e;
            }
            outputs(rows, from, down + (grouped.experts[block] * E + e) * I, I, to, std::min(SLICE, E - e));
        }
#pragma omp for schedule(static)
        for (int64_t row = 0; row < given.n; row++)
            for (int64_t e = 0; e < E; e += W) {
                Floats total = {};
                for (int64_t c = row * C; c < (row + 1) * C; c++) total += given.shares[c] * load(found + c * E + e);
                store(given.out + row * E + e, total);
            }
    }
}

// --- choosing a token --------------------------------------------------------------------------------------------------

constexpr int64_t BLOCK = 256;  // tokens in a block: the first random number selects a block, the second a token in it

// Index of the first of `num` running sums that exceeds `uniform` times the last one. If none does, the last index that
// adds anything.
inline int64_t drawn(const double* running, int64_t num, double uniform) {
    const double total = running[num - 1];
    int64_t above = std::upper_bound(running, running + num, uniform * total) - running;
    int64_t last = std::lower_bound(running, running + num, total) - running;
    return std::max<int64_t>(0, std::min({above, last, num - 1}));
}

template <class T>
void choose(const T* logits, const double* uniforms, int64_t* ids, float* logprobs, int64_t B, int64_t V,
            float temperature, int threads) {
    const int64_t blocks = (V + BLOCK - 1) / BLOCK;
#pragma omp parallel num_threads(threads) if (B * V > ALONE)
    {
        std::vector<float> scaled(blocks * BLOCK, -INFINITY), weights(blocks * BLOCK);
        std::vector<double> running(blocks), inside(BLOCK);
#pragma omp for schedule(static)
        for (int64_t b = 0; b < B; b++) {
            for (int64_t v = 0; v + W <= V; v += W) store(&scaled[v], load(logits + b * V + v) / temperature);
            for (int64_t v = V / W * W; v < V; v++) scaled[v] = value_of(logits[b * V + v]) / temperature;
            Floats top = load(&scaled[0]);
            for (int64_t v = W; v < blocks * BLOCK; v += W) {
                Floats x = load(&scaled[v]);
                top = x > top ? x : top;
            }
            const float highest = largest(top);
            double total = 0;
            for (int64_t block = 0; block < blocks; block++) {
                Floats of_block = {};
                for (int64_t v = block * BLOCK; v < (block + 1) * BLOCK; v += W) {
                    Floats weight = exponential(load(&scaled[v]) - highest);
                    of_block += weight;
                    store(&weights[v], weight);
                }
                running[block] = total += sum(of_block);
            }
            const int64_t block = drawn(running.data(), blocks, uniforms[2 * b]);
            double in_block = 0;
            for (int64_t v = 0; v < BLOCK; v++) inside[v] = in_block += weights[block * BLOCK + v];
            ids[b] = std::min(block * BLOCK + drawn(inside.data(), BLOCK, uniforms[2 * b + 1]), V - 1);
            logprobs[b] = scaled[ids[b]] - highest - float(std::log(total));
        }
    }
}

}  // namespace

// --- functions for Python: pointers to float32, or to bfloat16 if `half` -----------------------------------------------

extern "C" {

void posttrain_attend_rows(bool half, const Attention* given) {
    half ? attend_rows<bfloat16>(*given) : attend_rows<float>(*given);
}

void posttrain_attend_segments(bool half, bool backward, const Segments* given) {
    if (backward)
        half ? attend_segments<bfloat16, true>(*given) : attend_segments<float, true>(*given);
    else
        half ? attend_segments<bfloat16, false>(*given) : attend_segments<float, false>(*given);
}

void posttrain_rms_norm(bool half, const void* x, const float* weight, void* out, int64_t L, int64_t E, float epsilon,
                        int threads) {
    half ? rms_norm((const bfloat16*)x, weight, (bfloat16*)out, L, E, epsilon, threads)
         : rms_norm((const float*)x, weight, (float*)out, L, E, epsilon, threads);
}

void posttrain_rotate(bool half, void* x, const void* cosines, const void* sines, int64_t L, int64_t heads, int64_t D,
                      int64_t stride, int threads) {
    half ? rotate((bfloat16*)x, (const bfloat16*)cosines, (const bfloat16*)sines, L, heads, D, stride, threads)
         : rotate((float*)x, (const float*)cosines, (const float*)sines, L, heads, D, stride, threads);
}

void posttrain_choose(bool half, const void* logits, const double* uniforms, int64_t* ids, float* logprobs, int64_t B,
                      int64_t V, float temperature, int threads) {
    half ? choose((const bfloat16*)logits, uniforms, ids, logprobs, B, V, temperature, threads)
         : choose((const float*)logits, uniforms, ids, logprobs, B, V, temperature, threads);
}

void posttrain_linear(const float* x, const float* weight, const float* bias, float* out, int64_t N, int64_t K, int64_t M,
                      int threads) {
    linear(x, weight, bias, out, N, K, M, threads);
}

#ifdef PAIRS
void posttrain_linear_of_pairs(const void* x, const void* weight, const void* bias, void* out, int64_t N, int64_t K,
                               int64_t M, int threads) {
    linear((const bfloat16*)x, (const bfloat16*)weight, (const bfloat16*)bias, (bfloat16*)out, N, K, M, threads);
}
#endif

void posttrain_experts(bool half, const Experts* given) {
    half ? experts<bfloat16>(*given) : experts<float>(*given);
}

void posttrain_silu_gate(bool half, const void* gate, const void* up, void* out, int64_t L, int64_t I, int64_t stride,
                         int threads) {
    half ? silu_gate((const bfloat16*)gate, (const bfloat16*)up, (bfloat16*)out, L, I, stride, threads)
         : silu_gate((const float*)gate, (const float*)up, (float*)out, L, I, stride, threads);
}
}
