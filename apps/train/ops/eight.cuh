// Copies in 8-bit floats, as kernels make them: those of fp8.cu, and those of kernels.cu and norms.cu beside what they compute.
#include "spmd.cuh"

// code stores 8 values times scale, and returns the largest size of these and of top. A NaN has none.
template <typename T> SPMD_FN float code(T *to, const float (&v)[8], float scale, float top) {
    float s[8];
#pragma unroll
    for (int k = 0; k < 8; k++) {
        top = fmaxf(top, fabsf(v[k]));
        s[k] = v[k] * scale;
    }
    store8(to, s);
    return top;
}

// Activations of float have no codes.
template <typename T> SPMD_FN float code(T *, const float (&)[4], float, float top) { return top; }

// raise makes *peak at least top, which is not negative, of all threads of the block; peak may be missing.
SPMD_FN void raise(float *peak, float top) {
    top = block_max(top);
    if (peak && threadIdx.x == 0 && top > *(volatile float *)peak) atomicMax((int *)peak, __float_as_int(top));
}
