// The measures of bias.py in one pass over q, k, v and y, and their sums per bucket; for CPUs.
//
// What is computed is written in bias.py and tally.py; this file only computes it faster. One call
// does a range of parts, so that threads can share the work: a part of `bias` is one row of the batch
// and `span` heads of v with the query heads that share them; of `tally`, one measure of one head.
// Running sums are kept in double precision, everything else in float, like there.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int BINS = 128;
constexpr int MOST = 1024;  // dims of a value; longer ones are left to bias.py

struct Heads {  // a tensor (batch, head, token, dim), its last axis contiguous
    const void* data;
    int64_t batch, head, token;
};

float widen(float x) { return x; }

float widen(uint16_t x) {  // bfloat16
    uint32_t bits = uint32_t(x) << 16;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}

template <typename T>
const T* row(const Heads& h, int64_t b, int64_t head, int64_t token) {
    return static_cast<const T*>(h.data) + b * h.batch + head * h.head + token * h.token;
}

template <typename T>
float dot(const T* a, const T* b, int n) {
    float sum = 0;
    for (int d = 0; d < n; ++d) sum += widen(a[d]) * widen(b[d]);
    return sum;
}

float over(float a, float b) { return b == 0 ? 0.0f : a / b; }

}  // namespace

extern "C" {

struct Call {
    Heads q, k, v, y;
    const float* lse;  // (batch, head, token); null: weights are given
    const float *own, *sink, *previous;  // the same; null: from q, k and lse
    float* out;  // (measure, batch, head, token)
    double* pairs;  // (batch, kv_head, document), NaN before
    const int32_t *first, *end, *start, *document;  // (rows, token)
    const uint8_t *itself, *valid;
    int32_t rows, batch, heads, kv_heads, tokens, documents, dim, query_dim;
    float scale, centred_floor;
    int32_t is_half, span;
};

struct Table {
    const float* values;  // (measure, batch, head, token)
    const uint8_t *kept, *bucket;  // (rows, token)
    const int32_t* kind;  // per measure: 0 equal bins from -1, 1 from 0; 2 + by bits; 3 + signed
    const int32_t* lowest;
    double *count, *total, *squares;  // (measure, batch, head, bucket)
    double *low, *high;  // (measure, head, bucket)
    int64_t* histogram;  // (measure, head, bucket, bin)
    int32_t rows, batch, heads, tokens, buckets;
};
}

namespace {

// e^x to a rounding or two, without a branch; below e^-87 nothing is left of a weight.
inline float exponential(float x) {
    const float near = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    const float n = std::floor(near * 1.44269504f + 0.5f);
    const float r = (near - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const int32_t power = (int32_t(n) + 127) << 23;
    float two_to_n;
    std::memcpy(&two_to_n, &power, 4);
    const float found = p * two_to_n;
    return x < -87.0f ? 0.0f : x == x ? found : x;
}

// The dot products of the tokens of one head of v and of each query head that shares it.
enum OfValue { VV, SV, VM2, OF_VALUE };
enum OfQuery { YY, YV, YU, YM2, YMVM, OWN, SINK, PREVIOUS, OF_QUERY };

// What is known of one head of v while its tokens are read in order. D: its dims, 0 if not fixed.
template <typename T, int D>
struct Head {
    const Call& c;
    const int64_t b, g;
    double* sum;         // of the values in [first, end)
    double* directions;  // of their directions
    double* document;    // of the directions of the valid tokens of the document
    float *values, *queries;  // (OfValue, token), (query head, OfQuery, token)
    int64_t first = 0, end = 0, tokens = 0, directed = 0, number = -1;

    Head(const Call& call, int64_t batch, int64_t head, double* sums, float* dots)
        : c(call), b(batch), g(head), sum(sums), directions(sums + call.dim), document(sums + 2 * call.dim) {
        values = dots;
        queries = dots + OF_VALUE * c.tokens;
        clear(0);
        begin(-1);
    }

    int64_t group() const { return c.heads / c.kv_heads; }

    int dim() const { return D ? D : c.dim; }

    void clear(int64_t at) {
        first = end = at;
        for (int d = 0; d < dim(); ++d) sum[d] = directions[d] = 0;
    }

    void add(int64_t token, double sign) {
        const T* v = row<T>(c.v, b, g, token);
        const float size = std::sqrt(dot(v, v, dim()));
        const double inverse = size == 0 ? 0 : sign / size;
        for (int d = 0; d < dim(); ++d) {
            const double x = widen(v[d]);
            sum[d] += sign * x;
            directions[d] += inverse * x;
        }
    }

    void reach(int64_t from, int64_t to) {
        if (from < first || to < end || from > end) clear(from);
        for (; end < to; ++end) add(end, 1);
        for (; first < from; ++first) add(first, -1);
    }

    void pair(const float* v, float size, int64_t of) {
        if (of != number) begin(of);
        const double inverse = size == 0 ? 0 : 1.0 / size;
        for (int d = 0; d < dim(); ++d) document[d] += inverse * v[d];
        ++tokens, directed += size != 0;
    }

    void begin(int64_t of) {
        if (tokens > 1) {
            double square = 0;
            for (int d = 0; d < dim(); ++d) square += document[d] * document[d];
            c.pairs[(b * c.kv_heads + g) * c.documents + number] =
                (square - directed) / (double(tokens) * (tokens - 1));
        }
        number = of, tokens = directed = 0;
        for (int d = 0; d < dim(); ++d) document[d] = 0;
    }

    // The scores of the own, the first and the previous key; those that are not seen are -infinity.
    void scores(int64_t h, int64_t i, int64_t at, float* found) const {
        const T* q = row<T>(c.q, b, h, i);
        const int64_t from = c.first[at], to = c.end[at], start = c.start[at];
        const bool some = to > from;
        const bool seen[3] = {some && c.itself[at], some && start >= from && start < to, some && i > start && i > from};
        const int64_t key[3] = {i, start, i - 1};
        const int dims = D ? D : c.query_dim;
        for (int m = 0; m < 3; ++m) {
            const float s = c.scale * dot(q, row<T>(c.k, b, g, seen[m] ? key[m] : i), dims);
            found[m * c.tokens] = seen[m] ? s : -INFINITY;
        }
    }

    void token(int64_t i) {
        const int64_t at = (c.rows == 1 ? 0 : b) * c.tokens + i;
        const int64_t count = c.end[at] - c.first[at];
        if (count > 0) reach(c.first[at], c.end[at]);
        const T* own = row<T>(c.v, b, g, i);
        float m[D ? D : MOST], u[D ? D : MOST], v[D ? D : MOST];
        float vv = 0, sv = 0, vm2 = 0;
        const float share = 1.0f / (count > 1 ? count : 1);
        for (int d = 0; d < dim(); ++d) {
            v[d] = widen(own[d]);
            const float s = sum[d];
            u[d] = directions[d];
            m[d] = s * share;
            const float vm = v[d] - m[d];
            vv += v[d] * v[d], sv += s * v[d], vm2 += vm * vm;
        }
        values[VV * c.tokens + i] = vv, values[SV * c.tokens + i] = sv, values[VM2 * c.tokens + i] = vm2;
        if (c.valid[at]) pair(v, std::sqrt(vv), c.document[at]);
        for (int64_t r = 0; r < group(); ++r) {
            const int64_t h = g * group() + r;
            const T* y = row<T>(c.y, b, h, i);
            float yy = 0, yv = 0, yu = 0, ym2 = 0, ymvm = 0;
            for (int d = 0; d < dim(); ++d) {
                const float x = widen(y[d]), ym = x - m[d];
                yy += x * x, yv += x * v[d], yu += x * u[d];
                ym2 += ym * ym, ymvm += ym * (v[d] - m[d]);
            }
            float* found = queries + r * OF_QUERY * c.tokens + i;
            found[YY * c.tokens] = yy, found[YV * c.tokens] = yv, found[YU * c.tokens] = yu;
            found[YM2 * c.tokens] = ym2, found[YMVM * c.tokens] = ymvm;
            if (!c.own) scores(h, i, at, found + OWN * c.tokens);
        }
    }

    // Weights first, then all that is made of them: one loop over tokens, which the compiler widens.
    void measures(int64_t r) {
        const int64_t h = g * group() + r, T_ = c.tokens, cell = (b * c.heads + h) * T_;
        const int64_t step = int64_t(c.batch) * c.heads * T_, at = (c.rows == 1 ? 0 : b) * T_;
        float* __restrict__ x = queries + r * OF_QUERY * T_;
        const float* given[3] = {c.own, c.sink, c.previous};
        for (int m = 0; m < 3; ++m) {
            float* P = x + (OWN + m) * T_;
            if (c.own) std::memcpy(P, given[m] + cell, T_ * sizeof(float));
            else for (int64_t i = 0; i < T_; ++i) P[i] = exponential(P[i] - c.lse[cell + i]);
        }
        const float* __restrict__ w = values;
        const int32_t *first = c.first + at, *end = c.end + at;
        const uint8_t* itself_ = c.itself + at;
        float* __restrict__ out = c.out + cell;
        for (int64_t i = 0; i < T_; ++i) {
            const float n = end[i] - first[i], itself = n > 0 ? float(itself_[i]) : 0.0f;
            const float others = n - itself > 1 ? n - itself : 1.0f;
            const float P = x[OWN * T_ + i], vv = w[VV * T_ + i];
            const float v_size = std::sqrt(vv), y_size = std::sqrt(x[YY * T_ + i]);
            const float ym_size = std::sqrt(x[YM2 * T_ + i]), vm_size = std::sqrt(w[VM2 * T_ + i]);
            const float per_y = over(1.0f, y_size), both = over(per_y, v_size);
            const float cosine = x[YV * T_ + i] * both;
            const float null = (x[YU * T_ + i] * per_y - itself * cosine) / others;
            const float self = P * v_size * per_y;
            const float common = (1 - P) * ((w[SV * T_ + i] - itself * vv) / others) * both;
            const bool sure = (ym_size >= c.centred_floor * y_size) & (n >= 3);
            const float centred = x[YMVM * T_ + i] / (ym_size * vm_size);
            out[i] = P;
            out[step + i] = P * n;
            out[2 * step + i] = cosine;
            out[3 * step + i] = null;
            out[4 * step + i] = cosine - null;
            out[5 * step + i] = self;
            out[6 * step + i] = common;
            out[7 * step + i] = cosine - self - common;
            out[8 * step + i] = cosine - self;
            out[9 * step + i] = sure ? centred : NAN;
            out[10 * step + i] = cosine * cosine;
            out[11 * step + i] = x[SINK * T_ + i];
            out[12 * step + i] = x[PREVIOUS * T_ + i];
        }
    }
};

// Token by token, all heads of each: that is how they lie in memory.
template <typename T, int D>
void bias_of_heads(const Call& c, int64_t b, int64_t from, int64_t to) {
    thread_local std::vector<double> sums;  // kept: fresh memory is dear
    thread_local std::vector<float> dots;
    const int64_t many = (OF_VALUE + c.heads / c.kv_heads * OF_QUERY) * c.tokens;
    sums.resize(3 * c.dim * (to - from));
    dots.resize(many * (to - from));
    std::vector<Head<T, D>> heads;
    heads.reserve(to - from);
    for (int64_t g = from; g < to; ++g)
        heads.emplace_back(c, b, g, sums.data() + 3 * c.dim * (g - from), dots.data() + many * (g - from));
    for (int64_t i = 0; i < c.tokens; ++i)
        for (auto& head : heads) head.token(i);
    for (auto& head : heads) {
        head.begin(-1);
        for (int64_t r = 0; r < head.group(); ++r) head.measures(r);
    }
}

template <typename T>
void bias_of_part(const Call& c, int64_t b, int64_t from, int64_t to) {
    if (c.dim == 64 && (c.own || c.query_dim == 64)) bias_of_heads<T, 64>(c, b, from, to);
    else if (c.dim == 128 && (c.own || c.query_dim == 128)) bias_of_heads<T, 128>(c, b, from, to);
    else if (c.dim == 32 && (c.own || c.query_dim == 32)) bias_of_heads<T, 32>(c, b, from, to);
    else bias_of_heads<T, 0>(c, b, from, to);
}

// The bin of a number, as in histogram.py. KIND: 0 equal bins from -1; 1 from 0; 2 by bits; 3 signed.
template <int KIND>
inline int bin_of(float x, int lowest) {
    if (KIND < 2) {
        const float t = KIND == 0 ? (x + 1) * (BINS / 2) : x * BINS;
        return t > 0 ? (t < BINS ? int(t) : BINS - 1) : 0;
    }
    const int many = KIND == 3 ? BINS / 2 : BINS;
    const float size = KIND == 3 ? std::fabs(x) : (x > 0 ? x : 0);
    int32_t bits;
    std::memcpy(&bits, &size, 4);
    int n = (bits >> 20) - (((127 + lowest) << 3) - 1);
    n = n < 0 ? 0 : n < many ? n : many - 1;
    return KIND != 3 ? n : x < 0 ? many - 1 - n : many + n;
}

struct Cell {
    double *count, *total, *squares, *low, *high;
    int64_t* histogram;
};

// Tokens of one bucket in a row.
template <int KIND>
void tally_run(const float* x, const uint8_t* kept, int64_t many, int lowest, const Cell& cell) {
    double count = 0, total = 0, squares = 0;
    float low = INFINITY, high = -INFINITY;
    for (int64_t i = 0; i < many; ++i) {
        const bool counts = kept[i] && x[i] - x[i] == 0;  // neither NaN nor infinity
        const float value = counts ? x[i] : 0.0f;
        count += counts, total += value, squares += double(value) * value;
        const float lower = counts ? x[i] : INFINITY, higher = counts ? x[i] : -INFINITY;
        low = lower < low ? lower : low, high = higher > high ? higher : high;
    }
    *cell.count += count, *cell.total += total, *cell.squares += squares;
    *cell.low = low < *cell.low ? low : *cell.low;
    *cell.high = high > *cell.high ? high : *cell.high;
    for (int64_t i = 0; i < many; ++i)
        if (kept[i] && x[i] - x[i] == 0) cell.histogram[bin_of<KIND>(x[i], lowest)] += 1;
}

template <int KIND>
void tally_part(const Table& t, int64_t part) {
    const int64_t measure = part / t.heads, h = part % t.heads;
    for (int64_t b = 0; b < t.batch; ++b) {
        const int64_t cell = (measure * t.batch + b) * t.heads + h;
        const float* x = t.values + cell * t.tokens;
        const int64_t row = (t.rows == 1 ? 0 : b) * t.tokens;
        const uint8_t *kept = t.kept + row, *bucket = t.bucket + row;
        for (int64_t from = 0, to; from < t.tokens; from = to) {
            for (to = from + 1; to < t.tokens && bucket[to] == bucket[from]; ++to) {}
            const int64_t k = bucket[from], sum = cell * t.buckets + k, all = part * t.buckets + k;
            const Cell into = {t.count + sum, t.total + sum, t.squares + sum,
                               t.low + all, t.high + all, t.histogram + all * BINS};
            tally_run<KIND>(x + from, kept + from, to - from, t.lowest[measure], into);
        }
    }
}

}  // namespace

extern "C" {

void outward_bias(const Call* c, int64_t begin, int64_t end) {
    const int64_t blocks = (c->kv_heads + c->span - 1) / c->span;
    for (int64_t part = begin; part < end; ++part) {
        const int64_t b = part / blocks, from = part % blocks * c->span;
        const int64_t to = from + c->span < c->kv_heads ? from + c->span : c->kv_heads;
        if (c->is_half) bias_of_part<uint16_t>(*c, b, from, to);
        else bias_of_part<float>(*c, b, from, to);
    }
}

void outward_tally(const Table* t, int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
        switch (t->kind[part / t->heads]) {
            case 0: tally_part<0>(*t, part); break;
            case 1: tally_part<1>(*t, part); break;
            case 2: tally_part<2>(*t, part); break;
            default: tally_part<3>(*t, part);
        }
    }
}
}
