// Random numbers of sixteen replicas side by side, in loops that a compiler turns into vectors: Philox, and normal numbers in single
// precision by Box and Muller.
#pragma once
#include <cmath>
#include <cstdint>

constexpr int LANES = 16;
#define LANE _Pragma("omp simd") for (int j = 0; j < LANES; j++)

struct Words {
    alignas(64) uint32_t a[LANES], b[LANES], c[LANES], d[LANES];
};

static inline void philox(Words& w, uint64_t step, const uint32_t* run, uint32_t purpose, uint32_t seed) {
    LANE { w.a[j] = uint32_t(step); w.b[j] = uint32_t(step >> 32); w.c[j] = run[j]; w.d[j] = purpose; }
    uint32_t k0 = seed, k1 = 0;
    for (int round = 0; round < 10; round++) {
        LANE {
            uint64_t x = 0xD2511F53ull * w.a[j], y = 0xCD9E8D57ull * w.c[j];
            uint32_t a = uint32_t(y >> 32) ^ w.b[j] ^ k0, c = uint32_t(x >> 32) ^ w.d[j] ^ k1;
            w.a[j] = a; w.b[j] = uint32_t(y); w.c[j] = c; w.d[j] = uint32_t(x);
        }
        k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
    }
}

static inline float logarithm(float u) {  // as Cephes has it
    union { float f; int32_t i; } v = {u};
    int32_t e = (v.i - 0x3F3504F3) >> 23;
    v.i -= e << 23;
    float f = v.f - 1.0f, z = f * f, y = 7.0376836292e-2f;
    y = y * f - 1.1514610310e-1f; y = y * f + 1.1676998740e-1f; y = y * f - 1.2420140846e-1f; y = y * f + 1.4249322787e-1f;
    y = y * f - 1.6668057665e-1f; y = y * f + 2.0000714765e-1f; y = y * f - 2.4999993993e-1f; y = y * f + 3.3333331174e-1f;
    return f + (y * f * z - 0.5f * z + 0.69314718f * float(e));
}

static inline void normal_pairs(const uint32_t* size, const uint32_t* turns, float* x, float* y) {
    LANE {
        float u = (float(int32_t(size[j] >> 8)) + 0.5f) * 0x1p-24f, r = sqrtf(-2.0f * logarithm(u));
        uint32_t turn = turns[j], quarter = (turn + 0x20000000u) >> 30;  // the nearest of four
        float t = float(int32_t(turn - (quarter << 30))) * (6.2831853f * 0x1p-32f), z = t * t;
        float sine = t + t * z * (-1.6666654611e-1f + z * (8.3321608736e-3f - z * 1.9515295891e-4f));
        float cosine = 1 - 0.5f * z + z * z * (4.1666645683e-2f + z * (-1.3887316255e-3f + z * 2.4433157118e-5f));
        float c = quarter & 1 ? sine : cosine, q = quarter & 1 ? cosine : sine;
        x[j] = r * ((quarter + 1) & 2 ? -c : c);
        y[j] = r * (quarter & 2 ? -q : q);
    }
}
