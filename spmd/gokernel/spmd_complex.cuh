// Complex numbers for kernels in Go, behind Go's floats in spmd_go.cuh.
#ifndef SPMD_COMPLEX_CUH
#define SPMD_COMPLEX_CUH

namespace spmd {

// Complex numbers, with Go's layout, products and quotients.
template <typename T> struct complex {
	T re, im;
	complex() = default;
	SPMD_INLINE complex(T r, T i = 0) : re(r), im(i) {}
	template <typename U> SPMD_INLINE explicit complex(complex<U> z) : re((T)z.re), im((T)z.im) {}
	SPMD_INLINE complex operator-() const { return {-re, -im}; }
	SPMD_INLINE complex operator+(complex b) const { return {re + b.re, im + b.im}; }
	SPMD_INLINE complex operator-(complex b) const { return {re - b.re, im - b.im}; }
	SPMD_INLINE complex operator*(complex b) const; // in double, also of floats
	SPMD_INLINE complex operator/(complex b) const;
	SPMD_INLINE complex &operator+=(complex b) { return *this = *this + b; }
	SPMD_INLINE complex &operator-=(complex b) { return *this = *this - b; }
	SPMD_INLINE complex &operator*=(complex b) { return *this = *this * b; }
	SPMD_INLINE complex &operator/=(complex b) { return *this = *this / b; }
	SPMD_INLINE bool operator==(complex b) const { return re == b.re && im == b.im; }
	SPMD_INLINE bool operator!=(complex b) const { return !(*this == b); }
};
SPMD_FN bool is_finite(double x) { return x - x == 0; }
SPMD_FN double inf_to_one(double x) { return copysign(is_inf(x, 0) ? 1.0 : 0.0, x); }
// quotient is by R. L. Smith's algorithm, with the infinities and zeros of C99, as in Go's runtime.
SPMD_FN complex<double> quotient(complex<double> n, complex<double> m) {
	double a = n.re, b = n.im, c = m.re, d = m.im, e, f;
	if (fabs(c) >= fabs(d)) {
		double ratio = d / c, by = c + ratio * d;
		e = (a + b * ratio) / by;
		f = (b - a * ratio) / by;
	} else {
		double ratio = c / d, by = d + ratio * c;
		e = (a * ratio + b) / by;
		f = (b * ratio - a) / by;
	}
	if (e == e || f == f) return {e, f};
	if (c == 0 && d == 0 && (a == a || b == b)) return {copysign(inf(1), c) * a, copysign(inf(1), c) * b};
	if ((is_inf(a, 0) || is_inf(b, 0)) && is_finite(c) && is_finite(d)) {
		a = inf_to_one(a);
		b = inf_to_one(b);
		return {inf(1) * (a * c + b * d), inf(1) * (b * c - a * d)};
	}
	if ((is_inf(c, 0) || is_inf(d, 0)) && is_finite(a) && is_finite(b)) {
		c = inf_to_one(c);
		d = inf_to_one(d);
		return {0 * (a * c + b * d), 0 * (b * c - a * d)};
	}
	return {e, f};
}
template <typename T> SPMD_INLINE complex<T> complex<T>::operator*(complex<T> z) const {
	double a = re, b = im, c = z.re, d = z.im;
	return {(T)(a * c - b * d), (T)(a * d + b * c)};
}
template <typename T> SPMD_INLINE complex<T> complex<T>::operator/(complex<T> b) const {
	return complex<T>(quotient(complex<double>(*this), complex<double>(b)));
}
SPMD_FN complex<double> conj(complex<double> z) { return {z.re, -z.im}; }
SPMD_FN double complex_abs(complex<double> z) { return hypot(z.re, z.im); }

} // namespace spmd

#endif
