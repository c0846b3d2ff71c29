// The loops of the program's kernels on the host. stencil.cu says what they compute; out and in do not overlap, but in
// stencil_frame with only_pack.
#ifndef STENCIL_H
#define STENCIL_H

#include "box.h"

// Rows [lo, hi) of the inside, counted along axis 1 first.
void stencil_step_f32(float *out, const float *in, float centre, float beside, const struct box *b, long lo, long hi);
void stencil_step_f64(double *out, const double *in, double centre, double beside, const struct box *b, long lo, long hi);

// Cells [lo, hi) of the faces.
void stencil_frame_f32(float *out, const float *in, float *sent, const float *received, float centre, float beside,
                       const struct box *b, int only_pack, long lo, long hi);
void stencil_frame_f64(double *out, const double *in, double *sent, const double *received, double centre, double beside,
                       const struct box *b, int only_pack, long lo, long hi);

#endif
