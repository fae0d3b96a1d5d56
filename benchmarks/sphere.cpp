// The chain of phase retrieval by one unit on the sphere, by hand: what a specialist would write for this one problem.
//
// Random numbers as in `philox.h`, chi-square by Marsaglia and Tsang without the rejections (fewer than one in a million at these
// dimensions), states in double precision.
#include "philox.h"

extern "C" void advance(double* m, int64_t vectors, int64_t steps, double d, double lr, uint32_t seed) {
    const double dof = d - 2.0, third = dof / 2 - 1.0 / 3, slope = 1 / std::sqrt(9 * third), rate = 2 * lr / d;
    alignas(64) float along[LANES], across[LANES], chi[LANES], unused[LANES];
    alignas(64) double state[LANES];
    alignas(64) uint32_t run[LANES];
    Words w;
    for (int64_t v = 0; v < vectors; v++) {
        for (int j = 0; j < LANES; j++) { state[j] = m[v * LANES + j]; run[j] = uint32_t(v * LANES + j); }
        for (int64_t n = 0; n < steps; n++) {
            philox(w, n, run, 1, seed);
            normal_pairs(w.a, w.b, along, across);
            philox(w, n, run, 2, seed);
            normal_pairs(w.a, w.b, chi, unused);
            LANE {
                double root = 1 + slope * double(chi[j]), square = 2 * third * root * root * root;
                double a = along[j], b = across[j], here = state[j], rest = std::sqrt(1 - here * here);
                double field = here * a + rest * b, c = rate * (field * field - a * a) * field;
                double x = here - c * a, y = rest - c * b;
                state[j] = x / std::sqrt(x * x + y * y + c * c * square);
            }
        }
        for (int j = 0; j < LANES; j++) m[v * LANES + j] = state[j];
    }
}
