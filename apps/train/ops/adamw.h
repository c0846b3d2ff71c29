// The loop of the optimizer on the host. Arrays are float32.
#ifndef TRAIN_ADAMW_H
#define TRAIN_ADAMW_H

#include <stdint.h>

// AdamW on elements [lo, hi); decay says which blocks of 64 decay; hyper is
// rate, 1/(1-beta1^t), 1/(1-beta2^t); g is multiplied by gscale first.
void train_adamw(float *p, float *m, float *v, const float *g, const uint8_t *decay, const float *hyper,
                 float gscale, float beta1, float beta2, float eps, float weight_decay, long lo, long hi);

#endif
