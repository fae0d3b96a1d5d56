// The chain of P units that learn K orthonormal ones of the same kind, by hand: error functions, or squares on the sphere.
//
// Random numbers as in `philox.h`, chi-square by Marsaglia and Tsang without the rejections, states in double precision: overlaps
// with the teachers, and a triangular factor of what is outside them, which two rounds of rotations keep triangular.
#include "philox.h"

constexpr int NUMBERS = K * P + P * (P + 1) / 2, NORMALS = K + P + 2, PAIRS = (NORMALS + 1) / 2, DEGREE = 12;

static inline double exponential(double x) {
    x = x < -700.0 ? -700.0 : x;
    double n = std::nearbyint(x * 1.4426950408889634), r = (x - n * 0.6931471803691238) - n * 1.9082149292705877e-10, y = 1.0 / 6227020800.0;
    y = y * r + 1.0 / 479001600; y = y * r + 1.0 / 39916800; y = y * r + 1.0 / 3628800; y = y * r + 1.0 / 362880; y = y * r + 1.0 / 40320;
    y = y * r + 1.0 / 5040; y = y * r + 1.0 / 720; y = y * r + 1.0 / 120; y = y * r + 1.0 / 24; y = y * r + 1.0 / 6; y = y * r + 0.5;
    y = (y * r + 1.0) * r + 1.0;
    union { double f; int64_t i; } v = {n + 6755399441055744.0};
    v.i = (v.i + 1023) << 52;
    return y * v.f;
}

// A unit, and its slope up to a factor; erf by a quotient of polynomials, whose numbers are in `erf`.
static inline double unit(double field, double& slope, const double* erf) {
#ifdef SQUARES
    slope = field;
    return field * field;
#else
    double x = std::fmin(std::fmax(std::sqrt(0.5) * field, -5.95), 5.95), z = x * x, above = erf[DEGREE], below = erf[2 * DEGREE + 1];
    for (int n = DEGREE - 1; n >= 0; n--) { above = above * z + erf[n]; below = below * z + erf[DEGREE + 1 + n]; }
    slope = exponential(-z);
    return x * (above / below);
#endif
}

extern "C" void advance(double* states, int64_t vectors, int64_t steps, double d, double lr, double noise, uint32_t seed,
                        const double* erf) {
    const double dof = d - K - P, third = dof / 2 - 1.0 / 3, slope = 1 / std::sqrt(9 * third);
#ifdef SQUARES
    const double rate = 2 * lr / d / P, spread = std::sqrt(noise);
#else
    const double rate = lr / d * std::sqrt(2 / M_PI) / P, spread = std::sqrt(noise);
#endif
    alignas(64) double m[P][K][LANES], T[P][P][LANES], x[2 * PAIRS][LANES], field[P][LANES], c[P][LANES], h[LANES], extra[P][LANES];
    alignas(64) float u[LANES], v[LANES];
    alignas(64) uint32_t run[LANES];
    Words w;
    for (int64_t vector = 0; vector < vectors; vector++) {
        double* here = states + vector * NUMBERS * LANES;
        for (int i = 0; i < P; i++) for (int r = 0; r < K; r++) LANE m[i][r][j] = here[(i * K + r) * LANES + j];
        for (int i = 0, n = K * P; i < P; i++) for (int l = 0; l <= i; l++, n++) LANE T[i][l][j] = here[n * LANES + j];
        for (int j = 0; j < LANES; j++) run[j] = uint32_t(vector * LANES + j);
        for (int64_t n = 0; n < steps; n++) {
            for (int q = 0; q < PAIRS; q += 2) {
                philox(w, n, run, 1 + q, seed);
                normal_pairs(w.a, w.b, u, v);
                LANE { x[2 * q][j] = u[j]; x[2 * q + 1][j] = v[j]; }
                if (q + 1 == PAIRS) break;
                normal_pairs(w.c, w.d, u, v);
                LANE { x[2 * q + 2][j] = u[j]; x[2 * q + 3][j] = v[j]; }
            }
            alignas(64) double error[LANES];
            LANE error[j] = -spread * x[K + P][j];
            for (int r = 0; r < K; r++) LANE {
                double unused;
                error[j] -= unit(x[r][j], unused, erf) / K;
            }
            for (int i = 0; i < P; i++) {
                LANE field[i][j] = 0;
                for (int r = 0; r < K; r++) LANE field[i][j] += m[i][r][j] * x[r][j];
                for (int l = 0; l <= i; l++) LANE field[i][j] += T[i][l][j] * x[K + l][j];
                LANE error[j] += unit(field[i][j], c[i][j], erf) / P;
            }
            for (int i = 0; i < P; i++) {
                LANE c[i][j] *= -rate * error[j];
                for (int r = 0; r < K; r++) LANE m[i][r][j] += c[i][j] * x[r][j];
                LANE extra[i][j] = 0;
            }
            // turn the input into one more direction, which makes the factor lower Hessenberg, and back
            LANE { double root = 1 + slope * x[K + P + 1][j]; h[j] = std::sqrt(2 * third * root * root * root); }
            for (int l = P - 1; l >= 0; l--) {
                alignas(64) double co[LANES], si[LANES];
                LANE {
                    double g = x[K + l][j], size = 1 / std::sqrt(h[j] * h[j] + g * g);
                    co[j] = h[j] * size; si[j] = g * size; h[j] = (h[j] * h[j] + g * g) * size;
                }
                for (int i = l; i < P; i++) LANE {
                    double a = T[i][l][j], b = extra[i][j];
                    T[i][l][j] = co[j] * a - si[j] * b; extra[i][j] = si[j] * a + co[j] * b;
                }
            }
            for (int i = 0; i < P; i++) LANE extra[i][j] += c[i][j] * h[j];
            for (int l = 0; l < P; l++) {
                alignas(64) double co[LANES], si[LANES];
                LANE {
                    double a = T[l][l][j], b = extra[l][j], size = 1 / std::sqrt(a * a + b * b);
                    co[j] = a * size; si[j] = b * size;
                }
                for (int i = l; i < P; i++) LANE {
                    double a = T[i][l][j], b = extra[i][j];
                    T[i][l][j] = co[j] * a + si[j] * b; extra[i][j] = co[j] * b - si[j] * a;
                }
            }
#ifdef SQUARES
            for (int i = 0; i < P; i++) {
                alignas(64) double size[LANES] = {};
                for (int r = 0; r < K; r++) LANE size[j] += m[i][r][j] * m[i][r][j];
                for (int l = 0; l <= i; l++) LANE size[j] += T[i][l][j] * T[i][l][j];
                LANE size[j] = 1 / std::sqrt(size[j]);
                for (int r = 0; r < K; r++) LANE m[i][r][j] *= size[j];
                for (int l = 0; l <= i; l++) LANE T[i][l][j] *= size[j];
            }
#endif
        }
        for (int i = 0; i < P; i++) for (int r = 0; r < K; r++) LANE here[(i * K + r) * LANES + j] = m[i][r][j];
        for (int i = 0, n = K * P; i < P; i++) for (int l = 0; l <= i; l++, n++) LANE here[n * LANES + j] = T[i][l][j];
    }
}
