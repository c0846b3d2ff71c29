package main

import (
	"strings"
	"testing"
)

// Kernels of this file once meant something else in C++, or failed there.
const meanings = `package main

import (
	"math"

	"lockstep/spmd"
)

type params struct {
	by, sum float32
}

func (p *params) set(v float32) { p.by = v }

type vec struct{ a, b int32 }

func (v vec) add(by int32) int32 { return v.a + by }

func vec_add(v vec, by int32) int32 { return v.b - by }

func next(s *uint32) uint32 {
	*s = *s*1664525 + 1013904223
	return *s >> 8
}

func f(v uint32) int32 { return int32(v%1000) * 3 }

func minus(a, b int32) int32 { return a - b }

func two(n int) (int, int32) { return n - 1, int32(7 * n) }

func halves(x []float32) (a, b []float32) { return x[:len(x)/2], x[len(x)/2:] }

func middle(x int32) (_, b, _ int32) {
	b = x * 5
	return
}

func noisy(n *int32, v bool) bool {
	*n += 1
	return v
}

func at(n int) int { return n & 7 }

func put(x []int32, v int32) int32 {
	x[0] += v
	return x[0]
}

func one() int32          { return 1 }
func sum3(a, b, c int32) int32 { return a + 10*b + 100*c }

//spmd:kernel
func once(i int, out []int32) {
	s := uint32(i)
	k := int(next(&s)%8) * 2
	out[k/2+8*(i%8)] += 0
	out[16*i+k] = int32(s)
}

//spmd:kernel
func order(i int, out []int32) {
	s := uint32(i)
	out[16*i] = minus(f(next(&s)), f(next(&s)))
	var own [4]int32
	own[next(&s)%4] = f(next(&s))
	for k, v := range own {
		out[16*i+1+k] = v
	}
	out[16*i+5] = sum3(f(next(&s)), one(), f(next(&s))) + f(next(&s))*f(next(&s))
	t := [3]int32{f(next(&s)), f(next(&s)), f(next(&s))}
	out[16*i+6], out[16*i+7], out[16*i+8] = t[2], t[1], t[0]
}

//spmd:kernel
func places(i int, out []int32) {
	var t [8]int32
	n := 4
	n, t[n] = two(3)
	t[n], n = int32(n), 6
	t[n]++
	s := uint32(i)
	t[at(n)] += f(next(&s))
	for k := range t {
		out[16*i+k] = t[k]
	}
}

//spmd:kernel
func decides(i int, out []int32) {
	n := int32(0)
	if noisy(&n, i%2 == 0) && noisy(&n, i%3 == 0) || noisy(&n, i%5 == 0) {
		n += 100
	}
	for noisy(&n, n < 110) && n < 120 {
		if n%3 == 0 {
			n += 2
			continue
		}
		n++
	}
	switch v := int32(i % 4); {
	case noisy(&n, v == 1), noisy(&n, v == 2):
		n *= 2
	case noisy(&n, v == 3):
		n *= 3
	default:
		n = -n
	}
	out[i] = n
}

//spmd:kernel
func steps(i int, out []int32) {
	n, k := int32(0), int32(1)
	for a, b := 0, 10; a < b; a, b = a+1, b-1 {
		if a == 2 {
			continue
		}
		n += int32(b-a) * k
		k++
	}
	out[i] = n
}

//spmd:kernel
func hostile(i int, exp, sin, linux, unix, errno, I, r_, AT, SUB, main, x_n, x_p, x_ []float32) {
	floor, sqrt, NULL, assert, M_PI, INFINITY, stdin := exp[i], float32(math.Exp(float64(sin[i]/100))), float32(1),
		float32(2), float32(3), float32(4), float32(5)
	double := floor + sqrt + NULL + assert + M_PI + INFINITY + stdin
	for double_1 := range 3 {
		double := double * float32(double_1)
		linux[i] += double
	}
	unix[i] = float32(math.Floor(float64(floor))) + double
	x_[i], x_n[i], x_p[i] = 1, 2, 3
	errno[i], I[i], r_[i], AT[i], SUB[i], main[i] = 4, 5, 6, 7, 8, 9
}

//spmd:kernel
func div(i int, x []float32) { x[i] /= 3 }

//spmd:kernel
func rename(i int, x []float32) { x[i] -= 3 }

//spmd:kernel
func gamma(i int, x []float32) { x[i] += 3 }

//spmd:kernel
func scale(i int, x []float32) { x[i] *= 3 }

//spmd:kernel
func Scale(i int, x []float32) { x[i] *= 4 }

//spmd:kernel
func scale_any(i int, x []float32) { x[i] *= 5 }

//spmd:kernel
func étape(i int, x []float32, élan float32) { x[i] *= élan }

//spmd:kernel float32
func total[T float32 | float64](i int, x []T) (s T) { return x[i] }

//spmd:kernel max
func total_float32(i int, x []float32) float32 { return x[i] }

//spmd:kernel
func methods(i int, out []int32) {
	v := vec{int32(i), 1000}
	out[i] = v.add(1) + 10000*vec_add(v, 1)
}

func sumOf[T int32 | int64](x []T) (s T) {
	for _, v := range x {
		s += v
	}
	return s
}

func sumOf_int32(x []int32) int32 { return x[0] }

//spmd:kernel
func instances(i int, out, x []int32) { out[i] = sumOf(x[i:i+5]) + 3*sumOf_int32(x[i:i+5]) }

//spmd:kernel
func blanks(i int, out, x []int32) {
	a, b, c := middle(x[i])
	out[3*i], out[3*i+1], out[3*i+2] = a, b, c
}

//spmd:kernel
func edges(i int, out []float64, x []float32) {
	v := float64(x[i])
	out[8*i] = math.Max(math.Inf(1), math.NaN()) + math.Min(v, 3)
	out[8*i+1] = math.Min(math.NaN(), math.Inf(-1))
	if math.Abs(float64(float32(math.Pow(0.999, float64(x[i]))))/math.Pow(0.999, v)-1) < 1e-7 {
		out[8*i+2] = 1
	}
	out[8*i+3] = math.Max(v, -v) + math.Max(math.Copysign(0, -1), 0)
}

//spmd:kernel
func halved(i int, x []float32, y []float32) {
	a, b := halves(x)
	a[i] = b[i] + y[i]
}

//spmd:kernel
func swapped(i int, src, dst []float32) {
	for range 3 {
		dst[i] = src[i] * 2
		src, dst = dst, src
	}
}

//spmd:kernel
func literals(i int, out []int32, x []float32) {
	out[i] = [3]int32{int32(i), 2, 3}[i%3] + vec{1, int32(i)}.b + [2]vec{{1, 2}, {3, int32(i)}}[i%2].b
	k := vec2{float32(i), x[i]}
	out[i+64] = int32(k.a+x[[2]int{i, i + 1}[i%2]])
	out[i+64] = put(out[i+128:], vec{a: 3}.a)
}

type vec2 struct{ a, b float32 }

//spmd:kernel rows=64
func state(i int, out, x []float32) {
	var p params
	p.set(2)
	row, to := x[i*200:(i+1)*200], out[i*200:(i+1)*200]
	for j, v := range row {
		to[j] = v * p.by
	}
}

//spmd:kernel rows=64
func meets(i int, x, out []float32) {
	row, to := x[i*200:(i+1)*200], out[i*200:(i+1)*200]
	a, b := halves(row)
	for j := range b {
		b[j] = float32(j)
	}
	for j := range to {
		to[j] = row[199-j]
	}
	for j := range a {
		a[j] += 2
	}
	low, high := row[:100], row[100:]
	for j := range low {
		low[j], high[j] = high[j], low[j]
	}
	for j := range to {
		to[j] *= row[199-j]
	}
}

//spmd:kernel rows=64
func turns(i int, x, y, z []int32, out []int32) {
	a, b, c := x[i*200:(i+1)*200], y[i*200:(i+1)*200], z[i*200:(i+1)*200]
	for t := int32(0); t < 5; t++ {
		for j := range b {
			b[j] += t
		}
		sum := int32(0)
		for j := range c {
			sum += c[199-j] * int32(j)
		}
		out[5*i+int(t)] = sum
		d := c
		c = b
		b = a
		a = d
	}
}

//spmd:kernel rows=64
func waits(i int, x []float32, n []int32) {
	row := x[i*200 : (i+1)*200]
	n[i] = 3
	for n[i] > 0 {
		for j := range row {
			row[j] += float32(n[i])
		}
		n[i]--
	}
	row[0], row[1] = row[1], row[0]
	first := row[0]
	row[0] = 7
	for j := range row {
		row[j] -= first
	}
}

type floats []float32

func (v floats) at(i int) float32 { return v[i%len(v)] }

type m3 [3]float32

func (m *m3) turn(by float32) (*m3, bool) {
	m[0], m[1], m[2] = m[1], m[2], m[0]*by
	return m, m[0] > 0
}

func (m3) nothing(_ int32, _ float32) (int32, bool) { return 1, false }

type class struct{ class, float int32 }

func idle(x []float32) {}

func none() (p *m3) { return nil }

//spmd:kernel
func odd(i int, x, w []float32, z []uint8) {
	y := floats(w)
	var m m3
	m[1], m[2] = x[i], y.at(i+1)
	p, up := m.turn(2)
	q, _ := p.turn(y[i])
	n, _ := q.nothing(1, 2)
	idle(x)
	e := class{class: n}
	e.float++
	if up != (none() == nil) {
		e.class += e.float << z[i]
	}
	z[i] &^= z[i] << 3
	z[i] -= 200
	x[i] = q[0] + m[1]*float32(e.class) + float32(z[i]>>1)
	var none []float32
	none = nil
	if none = x[:0]; len(none) == 0 {
		x[i] += [...]float32{2: 1, 0: x[i]}[2]
	}
	type_ := complex(x[i], 2)
	type_ *= complex64(1i)
	x[i] -= real(type_) * imag(type_)
}

//spmd:kernel
func zero(i int, x []int32) { x[i] %= x[i] - x[i] }

//spmd:kernel
func negative(i int, x []int32) { x[i] = 1 << (x[i] - x[i] - 1) }

//spmd:kernel
func methodOf(i int, x []float32, c []spmd.BF16, k int8, wide [2]int32) {
	x[i] += float32(k) + c[i].Float32() + float32(wide[0])
}

//spmd:kernel
func free(row int, i, lo []float32, k float32) { i[row] += lo[row] * k }

//spmd:kernel rows
func freeRow(at int, x []float32) {
	row := x[at*200:(at+1)*200]
	for i := range row {
		row[i] *= float32(at)
	}
}

//spmd:kernel
func hidden(i int, spmd, gokernel, len []float32, string, int32 float32) {
	spmd[i] += gokernel[i]*string + len[i]*int32
}
`

func TestMeanings(t *testing.T) {
	got := runBoth(t, meanings, quick, "false")
	if n := strings.Count(meanings, "//spmd:kernel"); len(got) != n {
		t.Errorf("%d kernels of %d ran", len(got), n)
	}
	ends := map[string]string{"zero": "is divided by 0", "negative": "is by a negative number"}
	for name, what := range got {
		if want := ends[name]; what != "same" && want == "" ||
			!strings.Contains(what, want) {
			t.Errorf("%s: %s", name, what)
		}
	}
}

// What the normal form cannot prove is refused, at its line.
func TestUnproven(t *testing.T) {
	for _, tc := range [][2]string{
		{"s := uint32(1)\n\tx[i] = float32(s + next(&s))", "kernels.go:6: a kernel cannot use s here and change"},
		{"s := uint32(1)\n\tx[i] = float32(next(&s) + s)", "kernels.go:6: a kernel cannot use s here and change it"},
		{"s := uint32(1)\n\ts += next(&s)", "kernels.go:6: a kernel cannot use s here"},
		{"s := uint32(1)\n\tx[s] = float32(next(&s))", "kernels.go:6: a kernel cannot use "},
		{"var p *uint32\n\tfor k := range 3 {\n\t\tv := uint32(k)\n\t\tp = &v\n\t}\n\tx[i] = float32(*p)",
			"kernels.go:7: a kernel cannot allocate: p, which keeps the address of v, lives longer"},
		{"x[i] = float32(*dangling())", "a kernel cannot allocate: dangling returns the address of v"},
		{"switch (pair{1, 2}) {\n\tcase pair{2, 1}:\n\t\tx[i] = 1\n\t}",
			"kernels.go:5: a kernel cannot compare values of type pair"},
		{"x[i] = float32(add(both()))", "kernels.go:5: a kernel cannot give the results of a call as arguments"},
		{"var y [2][]float32\n\ty[0] = x\n\tp := &y\n\tx[i] = (*p)[0][0]",
			"kernels.go:7: a kernel cannot use the type"},
		{"type mine struct{ a int32 }\n\tx[i] = float32(mine{1}.a)", "kernels.go:5: a kernel cannot declare a type"},
		{"goto end\nend:\n\tx[i] = 1", "kernels.go:5: a kernel cannot have goto"},
		{"x[i] = float32(any(3).(int))", "kernels.go:5: a kernel cannot have interfaces"},
		{"f := next\n\t_ = f", "kernels.go:5: a kernel cannot use"},
	} {
		body, want := tc[0], tc[1]
		t.Run(body, func(t *testing.T) {
			t.Parallel()
			got, err := generate(folder(t, "package p\n\n//spmd:kernel\nfunc k(i int, x []float32) {\n\t"+body+
				"\n}\n\nfunc next(s *uint32) uint32 {\n\t*s++\n\treturn *s\n}\n\n"+
				"func dangling() *uint32 {\n"+
				"\tv := uint32(1)\n\treturn &v\n}\n\ntype pair struct{ a, b int32 }\n\n"+
				"func both() (a, b int32) { return }\n\n"+
				"func add(a, b int32) int32 { return a + b }\n"))
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %q\n%s", err, want, got)
			}
		})
	}
}
