// The loops of the kernels on the host. Arrays are row-major float32, c is the width of a row. Rows [lo, hi) are
// computed; a value never depends on how the work was split. What may be missing is NULL.
#ifndef TRAIN_MODERN_H
#define TRAIN_MODERN_H

#include <stdint.h>

// out = x/√(mean of x² + ε), of the rows wte[token].
void modern_embed(float *out, const int32_t *tokens, const float *wte, long c, long lo, long hi);
// d = the gradient of wte[token] from d, that of out.
void modern_embed_backward(float *d, const int32_t *tokens, const float *wte, long c, long lo, long hi);

// sum = x + skip·kept, and out its norm; without kept that of x.
void modern_norm(float *out, float *sum, const float *x, const float *kept, const float *skip, long c, long lo, long hi);
// From dnorm, the gradient of out, and d, that of x by other ways if add: g, that of x, in which kept is added already. Then
// d = g (+ above), dkept = skip·g, and of each row a number of sums, that for skip.
void modern_norm_backward(float *d, float *dkept, float *sums, const float *dnorm, const float *x, const float *kept,
                          const float *above, const float *skip, long c, int add, long lo, long hi);

// out(3,heads,size) of qkv(3,heads,size): queries and keys normed if norm, and turned by their position; queries times scale;
// values = mix[0]·value + mix[1]·table[token]. turn(t,size/4) has a cosine and a sine each.
void modern_heads(float *out, const float *qkv, const int32_t *tokens, const float *table, const float *mix, const float *turn,
                  long t, long heads, long size, int norm, float scale, long lo, long hi);
// d becomes the gradient of qkv; dtable (+)= that of table[token]; sums(2) of each row those for mix.
void modern_heads_backward(float *d, float *dtable, float *sums, const float *qkv, const int32_t *tokens, const float *table,
                           const float *mix, const float *turn, long t, long heads, long size, int norm, float scale, int fresh,
                           long lo, long hi);

#endif
