#include "stencil.h"

#include "../../host/loops.h"

#define T float
#define NAME(x) x##_f32
#include "loops.h"
#undef T
#undef NAME

#define T double
#define NAME(x) x##_f64
#include "loops.h"
