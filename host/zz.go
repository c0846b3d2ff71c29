package host

/*
#cgo CFLAGS: -march=native
#define _GNU_SOURCE
#include <pthread.h>
#include <time.h>
#include <stddef.h>
__attribute__((noinline)) static double rd(const float*x,size_t n){float lane[64]={0};for(size_t i=0;i+64<=n;i+=64)for(int l=0;l<64;l++)lane[l]+=x[i+l];double s=0;for(int l=0;l<64;l++)s+=lane[l];return s;}
static double now(){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec*1e6+t.tv_nsec*1e-3;}
static pthread_barrier_t bar;static double B[2],E[2];static volatile double sink; static const float*A;static size_t NN;
static void*run(void*v){long t=(long)v;pthread_barrier_wait(&bar);B[t]=now();sink=rd(A+t*NN/2,NN/2);E[t]=now();return 0;}
static double two(const float*a,size_t n){A=a;NN=n;pthread_t t[2];pthread_barrier_init(&bar,0,2);for(long i=0;i<2;i++)pthread_create(&t[i],0,run,(void*)i);for(int i=0;i<2;i++)pthread_join(t[i],0);return (E[0]>E[1]?E[0]:E[1])-(B[0]<B[1]?B[0]:B[1]);}
void sum_chunks(double *part, const float *x, size_t n, size_t chunk);
static void zsum(double*p,const float*x,size_t n){sum_chunks(p,x,n,n);}
*/
import "C"

func zRd(x []float32) { C.rd(floats(x), C.size_t(len(x))) }
func zTwo(x []float32) float64 { return float64(C.two(floats(x), C.size_t(len(x)))) }

func zSum(p []float64, x []float32) {
	C.zsum((*C.double)(&p[0]), floats(x), C.size_t(len(x)))
}
