// The arithmetic of projection.py for CPUs, in one pass: a row is read once and written once.
//
// What is computed is written there. Rows whose dot products are not safe in float are done again in
// double precision, where the square of a float neither under- nor overflows: no row needs scaling.
// Sums are kept in LANES parts, always the same ones: y equal to v gives y·v = v·v, and exactly 0.
//
// One call does a range of parts, so that threads can share the work: a part is one row of the batch,
// one head of v with the query heads that share it, and BLOCK tokens.

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

constexpr int LANES = 16;
constexpr int BLOCK = 64;
constexpr int MOST = 1024;  // dims of a value; longer ones are left to projection.py

float widen(float x) { return x; }

float widen(uint16_t x) {  // bfloat16
    const uint32_t bits = uint32_t(x) << 16;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}

template <typename T>
T narrow(float x);

template <>
float narrow<float>(float x) { return x; }

template <>
uint16_t narrow<uint16_t>(float x) {  // to the nearest, of two as near to the even one
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return uint16_t(x == x ? rounded : (bits >> 16) | 0x40);
}

}  // namespace

extern "C" {

struct Rows {  // (batch, kv_head, group, token, dim), the last axis contiguous
    void* data;
    int64_t batch, head, group, token;
};

struct Strength {  // (batch, kv_head, group, token)
    const double* data;
    int64_t batch, head, group, token;
};

struct Projection {
    Rows y, v, z;
    Rows gz, gy, gv;  // of the gradient only
    Strength alpha;
    float* c;         // (batch, kv_head, group, token): a times a power of two near |v|
    float* g_alpha;   // the same shape
    int32_t batch, kv_heads, group, tokens, dim, is_half;
};
}

namespace {

template <typename T>
T* row(const Rows& r, int64_t b, int64_t h, int64_t g, int64_t t) {
    return static_cast<T*>(r.data) + b * r.batch + h * r.head + g * r.group + t * r.token;
}

double strength(const Strength& s, int64_t b, int64_t h, int64_t g, int64_t t) {
    return s.data[b * s.batch + h * s.head + g * s.group + t * s.token];
}

template <typename A>
A sum(A* lanes) {
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int k = 0; k < half; ++k) lanes[k] += lanes[k + half];
    return lanes[0];
}

template <typename A>
A dot(const A* __restrict__ x, const A* __restrict__ v, int dim) {
    A lanes[LANES] = {};
    int d = 0;
    for (; d + LANES <= dim; d += LANES)
        for (int k = 0; k < LANES; ++k) lanes[k] += x[d + k] * v[d + k];
    for (int k = 0; d + k < dim; ++k) lanes[k] += x[d + k] * v[d + k];
    return sum(lanes);
}

template <typename A, typename T>
void read(const T* __restrict__ from, A* __restrict__ to, int dim) {
    for (int d = 0; d < dim; ++d) to[d] = widen(from[d]);
}

template <typename A, typename T>
void write(const A* __restrict__ from, T* __restrict__ to, int dim) {
    for (int d = 0; d < dim; ++d) to[d] = narrow<T>(from[d]);
}

// The power of two near |v|, from |v|² by its bits: a·scale is a number wherever y is.
double scale_of(double vv) {
    int64_t bits;
    std::memcpy(&bits, &vv, 8);
    const int64_t exponent = (bits >> 52) - 1023;
    const int64_t made = (vv > 0 ? (exponent >> 1) + 1023 : 1023) << 52;
    double scale;
    std::memcpy(&scale, &made, 8);
    return scale;
}

// Dot products in float that lost nothing to under- or overflow, nor will what is made of them.
bool is_safe(float vv) { return vv >= 0x1p-40f && vv <= 0x1p40f; }

bool is_safe(float vv, float xv, bool forward) {
    const float size = std::fabs(xv);
    return is_safe(vv) && size <= 0x1p80f && (!forward || size >= 0x1p-80f || size == 0);
}

bool is_safe(double) { return true; }

bool is_safe(double, double, bool) { return true; }

// One token by arithmetic in A; false where it must be done in double: of the projection from query
// head g on, because z may be y, and is written by then.
template <typename A, typename T, int D>
bool project_token(const Projection& p, int64_t b, int64_t h, int64_t t, int64_t* g) {
    A v[D ? D : MOST], y[D ? D : MOST];
    const int dim = D ? D : p.dim;
    read(row<T>(p.v, b, h, 0, t), v, dim);
    const A vv = dot(v, v, dim);
    if (!is_safe(vv)) return false;
    const double scale = scale_of(vv);
    for (; *g < p.group; ++*g) {
        read(row<T>(p.y, b, h, *g, t), y, dim);
        const A yv = dot(y, v, dim);
        if (!is_safe(vv, yv, true)) return false;
        const A a = vv == 0 ? A(0) : yv / vv;
        p.c[((b * p.kv_heads + h) * p.group + *g) * p.tokens + t] = float(a * scale);
        const A part = A(strength(p.alpha, b, h, *g, t)) * a;
        for (int d = 0; d < dim; ++d) y[d] -= part * v[d];
        write(y, row<T>(p.z, b, h, *g, t), dim);
    }
    return true;
}

template <typename A, typename T, int D>
bool gradient_token(const Projection& p, int64_t b, int64_t h, int64_t t) {
    A v[D ? D : MOST], gv[D ? D : MOST], gz[D ? D : MOST], z[D ? D : MOST];
    const int dim = D ? D : p.dim;
    read(row<T>(p.v, b, h, 0, t), v, dim);
    const A vv = dot(v, v, dim);
    if (!is_safe(vv)) return false;
    for (int d = 0; d < dim; ++d) gv[d] = 0;
    for (int64_t g = 0; g < p.group; ++g) {
        const int64_t cell = ((b * p.kv_heads + h) * p.group + g) * p.tokens + t;
        read(row<T>(p.gz, b, h, g, t), gz, dim);
        read(row<T>(p.z, b, h, g, t), z, dim);
        const A gzv = dot(gz, v, dim);
        if (!is_safe(vv, gzv, false)) return false;
        const A a = vv == 0 ? A(0) : A(p.c[cell] / scale_of(vv)), b_ = vv == 0 ? A(0) : gzv / vv;
        const A alpha = A(strength(p.alpha, b, h, g, t));
        for (int d = 0; d < dim; ++d) {
            gv[d] -= alpha * (b_ * z[d] + a * (gz[d] - b_ * v[d]));
            gz[d] -= alpha * b_ * v[d];
        }
        write(gz, row<T>(p.gy, b, h, g, t), dim);
        p.g_alpha[cell] = float(-a * gzv);
    }
    write(gv, row<T>(p.gv, b, h, 0, t), dim);
    return true;
}

template <typename T, int D>
void project(const Projection& p, int64_t b, int64_t h, int64_t t) {
    int64_t g = 0;
    if (!project_token<float, T, D>(p, b, h, t, &g)) project_token<double, T, D>(p, b, h, t, &g);
}

template <typename T, int D>
void gradient(const Projection& p, int64_t b, int64_t h, int64_t t) {
    if (!gradient_token<float, T, D>(p, b, h, t)) gradient_token<double, T, D>(p, b, h, t);
}

template <void (*TOKEN)(const Projection&, int64_t, int64_t, int64_t)>
void parts(const Projection& p, int64_t begin, int64_t end) {
    const int64_t blocks = (p.tokens + BLOCK - 1) / BLOCK;
    for (int64_t part = begin; part < end; ++part) {
        // heads innermost: they lie side by side in memory, as projections leave them
        const int64_t h = part % p.kv_heads, rest = part / p.kv_heads;
        const int64_t from = rest % blocks * BLOCK, b = rest / blocks;
        const int64_t to = from + BLOCK < p.tokens ? from + BLOCK : p.tokens;
        for (int64_t t = from; t < to; ++t) TOKEN(p, b, h, t);
    }
}

template <typename T>
void project_parts(const Projection& p, int64_t begin, int64_t end) {
    switch (p.dim) {  // where it is known, loops over it are unrolled
        case 64: return parts<project<T, 64>>(p, begin, end);
        case 128: return parts<project<T, 128>>(p, begin, end);
        default: return parts<project<T, 0>>(p, begin, end);
    }
}

template <typename T>
void gradient_parts(const Projection& p, int64_t begin, int64_t end) {
    switch (p.dim) {
        case 64: return parts<gradient<T, 64>>(p, begin, end);
        case 128: return parts<gradient<T, 128>>(p, begin, end);
        default: return parts<gradient<T, 0>>(p, begin, end);
    }
}

}  // namespace

extern "C" {

void outward_project(const Projection* p, int64_t begin, int64_t end) {
    if (p->is_half) project_parts<uint16_t>(*p, begin, end);
    else project_parts<float>(*p, begin, end);
}

void outward_gradient(const Projection* p, int64_t begin, int64_t end) {
    if (p->is_half) gradient_parts<uint16_t>(*p, begin, end);
    else gradient_parts<float>(*p, begin, end);
}
}
