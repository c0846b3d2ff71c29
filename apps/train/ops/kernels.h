// The loops of the model's kernels on the host. Arrays are row-major float32.
// lo and hi bound the part of the work that one call does; a value never depends
// on how the work was split.
#ifndef TRAIN_KERNELS_H
#define TRAIN_KERNELS_H

#include <stdint.h>

// out(n,c) = wte[token - first] + wpe[position], rows [lo, hi). wte has rows of its own, and other tokens 0;
// wpe counts with positions only.
void train_encoder_forward(float *out, const int32_t *tokens, const float *wte, const float *wpe,
                           long t, long c, long first, long own, int positions, long lo, long hi);
// token_part is rows of a token, order[first] to order[end-1]. split is for GPUs.
struct token_part { int32_t token, first, end, split; };

// dwte[token - first] += dout for tokens from first to below first + own, dwpe[position] (+)= dout for n rows,
// columns [lo, hi). Rows t to positions of dwpe are zeroed unless accumulate.
void train_encoder_backward(float *dwte, float *dwpe, const float *dout, const int32_t *order, const struct token_part *parts,
                            long count, long n, long t, long c, long positions, long first, long own, int accumulate,
                            long lo, long hi);

// out = (x - mean)·rstd·weight + bias, rows [lo, hi) of width c.
void train_layernorm_forward(float *out, float *mean, float *rstd, const float *x, const float *weight,
                             const float *bias, long c, long lo, long hi);
// dx (+)= the gradient through the normalisation, rows [lo, hi).
void train_layernorm_backward_input(float *dx, const float *dout, const float *x, const float *weight,
                                    const float *mean, const float *rstd, long c, int add, long lo, long hi);
// dweight, dbias (+)= sums over n rows, columns [lo, hi).
void train_layernorm_backward_params(float *dweight, float *dbias, const float *dout, const float *x,
                                     const float *mean, const float *rstd, long n, long c, int accumulate,
                                     long lo, long hi);

// dbias (+)= the sum of dy(n,c) over its rows, columns [lo, hi).
void train_bias_backward(float *dbias, const float *dy, long n, long c, int accumulate, long lo, long hi);

// losses = cross-entropy of rows [lo, hi) of logits(n,vp), of which v columns count.
// With grad, logits become their gradient times scale, and 0 beyond v.
void train_classifier(float *losses, float *logits, const int32_t *targets, long v, long vp,
                      float scale, int grad, long lo, long hi);

// sums(n,3) of rows [lo, hi) of logits(n,vp), of which v columns count, those of tokens from first on: the largest, the
// sum of e^(x - largest), and that of the target. -INFINITY is none.
void train_logit_sums(float *sums, const float *logits, const int32_t *targets, long v, long vp, long first, long lo, long hi);
// What train_classifier does, where all(parts,n,3) are such sums of all parts of the columns, these among them.
void train_classifier_of_parts(float *losses, float *logits, const int32_t *targets, const float *all, long parts, long n,
                               long v, long vp, long first, float scale, int grad, long lo, long hi);

#endif
