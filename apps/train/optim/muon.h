// The loops of Muon on the host. Arrays are float32.
#ifndef TRAIN_MUON_H
#define TRAIN_MUON_H

// m = momentum·m + (1 - momentum)·g, elements [0, n), and the sum of the squares of momentum·m + (1 - momentum)·g. g is
// multiplied by gscale first.
double train_muon_momentum(float *m, const float *g, float gscale, float momentum, long n);
// x = (momentum·m + (1 - momentum)·g)·scale.
void train_muon_direction(float *x, const float *m, const float *g, float gscale, float momentum, float scale, long n);
// p = (1 - decay)·p - rate·x.
void train_muon_update(float *p, const float *x, float rate, float decay, long n);

#endif
