package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/internal/source"
)

// folder makes a package of one file.
func folder(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "kernels.go", text)
	return dir
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

func generate(dir string) ([]byte, error) { return Generate(dir, source.Output) }

// Code that GPUs do not have is refused in one line, with its line in Go. Line 5 is the first
// of each body.
func TestRefused(t *testing.T) {
	for body, want := range map[string]string{
		"x[i] = len(make([]int, 3))": "kernels.go:5: a kernel cannot allocate: it " +
			"cannot call make",
		"m := map[int]int{}\n\tx[i] = m[0]": "kernels.go:5: a kernel cannot use the type map[int]int: GPUs have " +
			"integers",
		"go func() {}()":   "kernels.go:5: a kernel cannot have a go statement",
		"defer println(1)": "kernels.go:5: a kernel cannot have a defer statement",
		"x[i] = 1\n\tf := func() int { return 2 }\n\tx[i] = f()": "kernels.go:6: a kernel cannot have a function " +
			"literal",
		"x[i] = len(\"text\" + name)": "kernels.go:5: a kernel cannot call len",
		"x[i] = counter": "kernels.go:5: a kernel cannot use the variable counter: give it as an " +
			"argument",
		"x[i] = again(i)": "kernels.go:17: a kernel cannot call again in again: GPUs have no stack " +
			"for recursion",
		"x[i] = os.Getpid()":  "kernels.go:5: a kernel cannot call os.Getpid: functions of this package",
		"x[i] = any(i).(int)": "kernels.go:5: a kernel cannot have interfaces",
		"x[i] = undefined":    "kernels.go:5: undefined: undefined",
		"x[i] += 1.5":         "kernels.go:5: 1.5 (untyped float constant) truncated",
		"panic(i)":            "kernels.go:5: a kernel cannot panic",
		"p := &pair{1, 2}\n\tx[i] = p.a": "kernels.go:5: a kernel cannot allocate: it cannot take the address of a " +
			"new value",
		"select {}": "kernels.go:5: a kernel cannot have channels",
	} {
		t.Run(body, func(t *testing.T) {
			t.Parallel()
			dir := folder(t, "package p\n\n//spmd:kernel\nfunc k(i int, x []int) {\n\t"+body+"\n}\n"+
				strings.Repeat("\n", 3-strings.Count(body, "\n"))+
				"var counter int\n\nvar name string\n\ntype pair struct{ a, b int }\n\n\n"+
				"func again(n int) int { return again(n - 1) }\n")
			if strings.Contains(body, "os.") {
				text, err := os.ReadFile(filepath.Join(dir, "kernels.go"))
				if err != nil {
					t.Fatal(err)
				}
				write(t, dir, "kernels.go", strings.Replace(string(text), "\n\n", "; import \"os\"\n\n", 1))
			}
			got, err := generate(dir)
			if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %q\n%s", err, want, got)
			}
		})
	}
}

// A comment that somebody has meant for a mark is not passed over.
func TestMarks(t *testing.T) {
	const kernel = "//spmd:kernel\nfunc k(i int, x []float64) { x[i] = 1 }\n"
	for text, want := range map[string]string{
		"//spmd:kernal\nfunc k(i int) {}": "kernels.go:3: //spmd:kernal is no comment of spmdgen: there " +
			"are //spmd:kernel, //spmd:host and //spmd:tolerance",
		"// spmd:kernel\nfunc k(i int) {}": "kernels.go:3: write //spmd:kernel without a space",
		"//spmd:kernel\n\nfunc k(i int) {}": "kernels.go:3: //spmd:kernel belongs to no function: leave " +
			"no empty line behind it",
		"//spmd: kernel\nfunc k(i int) {}":                "kernels.go:3: write //spmd:kernel without a space",
		"//spmd:kernel,max\nfunc k(i int) int64":          "kernels.go:3: write //spmd:kernel with a space behind it",
		"//spmd:kernel\n//spmd:kernel max\nfunc k(i int)": "kernels.go:4: the function has another //spmd:kernel",
		"//spmd:tolerance 1e-6\nvar x int\n" +
			kernel: "kernels.go:3: //spmd:tolerance belongs to no function: leave no empty line behind it",
		"// The comment //spmd:kernel makes a kernel, spmd: is a prefix.\n\n// spmd: the package\n" + kernel: "",
	} {
		_, err := generate(folder(t, "package p\n\n"+text+"\n"))
		if got := fmt.Sprint(err); got != want && (want != "" || err != nil) {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

func TestRefusedKernels(t *testing.T) {
	many := "x0"
	for k := range 33 {
		many += fmt.Sprintf(", x%d", k+1)
	}
	for head, want := range map[string]string{
		"func k(x []float64) {}":                             "k: a kernel begins with its indices",
		"func k(row, n int, x []float64) {}":                 "or one int of another name and then no int",
		"func k(n int32, x []float64) {}":                    "k: a kernel begins with its indices",
		"func k(i int, x []string) {}":                       "cannot use the type string",
		"func k(i int, x []int16) {}":                        "the parameter x: buffers have no elements of type int16",
		"func k(i int, x []int) {}":                          "the parameter x: buffers have no elements of type int",
		"func k(i int, f func()) {}":                         "cannot use the type func()",
		"func k(i int, x *[]int64) {}":                       "a variable with a pointer to it holds no slices",
		"func k(i int, a [70000]int64) {}":                   "a thread has 262144 bytes for variables",
		"func k(i int, " + many + " []int64) {}":             "k: a kernel has at most 64 arguments in CUDA",
		"func k(i int) (a, b int64) { return }":              "k: a kernel returns at most one value, of which the sum",
		"func k(i int) bool { return true }":                 "k: a kernel returns int32, uint32",
		"func (t T) k(i int) {}\ntype T int":                 "a kernel cannot be a method",
		"func k[A, B int32](i int, a []A, b []B) {}":         "more than one type parameter",
		"func k[T ~int32 | int64](i int, x []T) {}":          "kernels.go:4: a kernel cannot have ~int32",
		"func k(i int, args_ ...int) {}":                     "any number of arguments",
		"func k(i int, t T) {}\ntype T struct{ p *float64 }": "field p points to memory of the host",
	} {
		t.Run(head, func(t *testing.T) {
			t.Parallel()
			_, err := generate(folder(t, "package p\n\n//spmd:kernel\n"+head+"\n"))
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %q", err, want)
			}
		})
	}
	for words, want := range map[string]string{
		"reduce=nobody": "//spmd:kernel reduce=nobody: want the name of a function of two values of the type that k " +
			"returns",
		"reduce=k":    "//spmd:kernel reduce=k: want the name of a function",
		"loop":        "a kernel that loops has one index i, uses x[i] of a slice, and begins with if c { return }",
		"average":     "//spmd:kernel average: want one of sum, prod, min, max",
		"max min":     "//spmd:kernel max min: one is enough",
		"max\tmin":    "//spmd:kernel max min: one is enough",
		"max rows=32": "and returns nothing",
	} {
		if _, err := generate(folder(t,
			"package p\n\n//spmd:kernel "+words+"\nfunc k(i int) int64 { return 1 }\n")); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// Elements of a row run all at once. What they cannot do is refused at its line.
func TestRefusedRows(t *testing.T) {
	for _, tc := range [][2]string{
		{"for j := range x {\n\t\tif x[j] > 3 { break }\n\t}",
			"kernels.go:6: a kernel of rows cannot leave a loop over elements"},
		{"for j := range x {\n\t\tif x[j] > 3 { return }\n\t}",
			"kernels.go:6: a kernel of rows cannot return from a loop over elements"},
		{"last := 0.0\n\tfor j := range x {\n\t\tlast = x[j]\n\t}\n\tx[0] = last",
			"kernels.go:7: a kernel of rows cannot set last for each element"},
		{"s := 0.0\n\tfor j := range x {\n\t\ts += x[j]\n\t\tx[j] = s\n\t}",
			"kernels.go:8: a kernel of rows cannot use s here"},
		{"s := 0.0\n\tfor j := range x {\n\t\ts += x[j]\n\t\ts = max(s, 1)\n\t}",
			"kernels.go:8: a kernel of rows cannot have both the sum and the max"},
		{"var a [4]float64\n\tfor j := range 4 {\n\t\ta[3-j] = x[j]\n\t}\n\tb := a\n\tx[0] = b[0]",
			"kernels.go:5: a kernel of rows cannot have a as a whole"},
		{"a := [4]float64{}\n\tfor j := range 4 {\n\t\ta[j] = x[j]\n\t}",
			"kernels.go:5: a kernel of rows cannot begin a with a value"},
		{"x[1] = 2\n\tv := bump(x)\n\tx[0] = v",
			"kernels.go:6: a kernel of rows cannot set variables and memory at once"},
		{"var p pair\n\tfor _, v := range x {\n\t\tp.sum += v\n\t}",
			"kernels.go:7: a kernel of rows cannot set p for each"},
		{"var p pair\n\tfor _, v := range x {\n\t\tp.add(v)\n\t}",
			"kernels.go:7: a kernel of rows cannot set p for each"},
		{"for j := range x {\n\t\tx[j] = x[len(x)-1-j]\n\t}",
			"kernels.go:6: a kernel of rows cannot read and write x in one loop"},
		{"var s float64\n\tfor _, v := range x {\n\t\taddTo(&s, v)\n\t}",
			"kernels.go:7: a kernel of rows cannot set s for each"},
		{"var s [2]float64\n\tfor _, v := range x {\n\t\ts[0] += v\n\t}\n\tx[0] = s[0]",
			"kernels.go:7: a kernel of rows cannot change s here for each element"},
		{"for j := range x {\n\t\tx[int(x[j])]++\n\t}", "kernels.go:6: a kernel of rows cannot change x here"},
		{"for _, v := range x {\n\t\tx[i] = v\n\t}", "kernels.go:6: a kernel of rows cannot change x here"},
		{"for _, v := range x {\n\t\taddTo(&x[i], v)\n\t}", "kernels.go:6: a kernel of rows cannot change x here"},
		{"for j := range 3 {\n\t\tother(j, x)\n\t}",
			"kernels.go:6: a kernel cannot call other: it is a kernel of rows"},
		{"b := false\n\tfor range x {\n\t\tb = max(b, true)\n\t}",
			"kernels.go:7: "},
	} {
		body, want := tc[0], tc[1]
		t.Run(body, func(t *testing.T) {
			t.Parallel()
			got, err := generate(folder(t,
				"package p\n\n//spmd:kernel rows\nfunc k(i int, x []float64) {\n\t"+body+
					"\n}\n\n//spmd:kernel rows\nfunc other(i int, x []float64) {}\n\n"+
					"type pair struct{ by, sum float64 }\n\n"+
					"func (p *pair) add(v float64) { p.sum += v }\n\nfunc addTo(s *float64, v float64) { *s += v }\n\n"+
					"func bump(x []float64) float64 {\n\tx[0]++\n\treturn x[0]\n}\n"))
			if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %q\n%s", err, want, got)
			}
		})
	}
	for head, want := range map[string]string{
		"rows=48\nfunc k(i int, x []float64) {}":              "a row has 32, 64, 128, 256, 512 or 1024 threads",
		"rows\nfunc k(i, j int, x []float64) {}":              "k: a kernel of rows has one index",
		"rows\nfunc k(i int, x []float64) int64 { return 1 }": "and returns nothing",
	} {
		if _, err := generate(folder(t, "package p\n\n//spmd:kernel "+head+"\n")); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// A file is old if a kernel, or code that it uses, has changed or moved, if a kernel is new, or if
// there is none any more. Other code may change.
func TestFresh(t *testing.T) {
	const text = "package p\n\nconst two = 2\n\n//spmd:kernel\nfunc k(i int, x []float64) { x[i] = twice(x[i]) }\n\n" +
		"func twice[T number](v T) T {\n\tvar a [size]T\n\treturn two*v + a[0]\n}\n\n" +
		"func other() int { return 1 }\n\nconst size = 4\n\ntype number interface{ float32 | float64 }\n"
	dir := folder(t, text)
	want := func(what string) {
		t.Helper()
		err := source.Fresh(dir)
		if what == "" && err != nil || what != "" && (err == nil || !strings.Contains(err.Error(), what)) {
			t.Errorf("%v, want %q", err, what)
		}
	}
	make := func() {
		t.Helper()
		if _, err := Write(dir); err != nil {
			t.Fatal(err)
		}
		want("")
	}
	want("kernels_spmd.go is missing, for k (kernels.go:6): type go generate there")
	make()
	for _, change := range []struct{ from, to, want string }{
		{"return 1", "return 2", ""},
		{"const two = 2", "const two = 3",
			"is old: one of k, number, size, twice, two, or the file itself, has changed"},
		{"size = 4", "size = 5", "is old"},
		{"float32 | float64", "float64 | float32", "is old"},
		{"two*v", "two*v*v", "is old"},
		{"package p\n", "package p\n\n", "is old"},
		{"//spmd:kernel", "//spmd:kernel max", "is old"},
		{"func other", "//spmd:kernel\nfunc more(i int, x []float64) {}\n\nfunc other",
			"it has no kernel more (kernels.go:14)"},
		{"//spmd:kernel", "//", "is left over"},
	} {
		write(t, dir, "kernels.go", strings.Replace(text, change.from, change.to, 1))
		want(change.want)
	}
	write(t, dir, "kernels.go", text)
	generated, err := os.ReadFile(filepath.Join(dir, source.Output))
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, source.Output, strings.Replace(string(generated), "launchK(s", "launchK(z", 1))
	want("is old")
	write(t, dir, "kernels.go", strings.Replace(text, "//spmd:kernel", "//", 1))
	if changed, err := Write(dir); !changed || err != nil {
		t.Errorf("the file that is left over: %v, %v", changed, err)
	}
	want("")
}

// A file is old, too, if a constant of another package has another value.
func TestFreshConstants(t *testing.T) {
	dir := folder(t, "package p\n\nimport \"m/of\"\n\n"+
		"//spmd:kernel\nfunc k(i int, x []float64) { x[i] = of.Half + of.Two }\n")
	write(t, dir, "go.mod", "module m\n")
	if err := os.Mkdir(filepath.Join(dir, "of"), 0o777); err != nil {
		t.Fatal(err)
	}
	for k, text := range []string{"const Half, Two = 0.5, 2", "const Half, Two = 0.25, 2", "const Half, Two = 0.5, 3",
		"const Two, Half = 2, 1.0/2"} {
		write(t, dir, "of/of.go", "package of\n\n"+text+"\n")
		if k == 0 {
			if _, err := Write(dir); err != nil {
				t.Fatal(err)
			}
		}
		got := fmt.Sprint(source.Fresh(dir))
		if old := k == 1 || k == 2; old != strings.Contains(got, "is old: ") || !old && got != "<nil>" {
			t.Errorf("%s: %s", text, got)
		}
	}
}

// Files are those that the compiler takes. A constant of another package is as it was, or the file
// does not compile.
func TestFiles(t *testing.T) {
	dir := folder(t, "package p\n\nimport \"math/bits\"\n\n//spmd:kernel\n"+
		"func k(i int, x []int64) { x[i] = of * bits.UintSize }\n")
	write(t, dir, "a.go", "//go:build ignore\n\npackage main\n\nconst of = 1\n\nfunc main() {}\n")
	write(t, dir, "b.go", "//go:build !linux\n\npackage p\n\nconst of = 2\n")
	write(t, dir, "c_linux.go", "package p\n\nconst of = 3\n")
	text, err := generate(dir)
	if want := "_ = [1]int{}[bits.UintSize-(64)]"; err != nil || !strings.Contains(string(text), " = 192;") ||
		!strings.Contains(string(text), want) {
		t.Errorf("%v\n%s", err, text)
	}
}

// What the output declares, and Go's own names in it, are not the package's.
func TestNamesOfPackage(t *testing.T) {
	const kernel = "package p\n\n//spmd:kernel max\nfunc k(i int, x []int64) int64 { return x[i] }\n\n"
	for more, want := range map[string]string{
		"func max(a, b int64) int64 { return a }\n": "kernels.go:6: kernels_spmd.go cannot be a part of the package: " +
			"the package has a max of its own",
		"var gokernel int\n": "kernels.go:6: kernels_spmd.go cannot be a part of the package: the package has a " +
			"gokernel of its own",
		"//spmd:kernel\nfunc _(i int) {}\n":       "kernels.go:7: a kernel has a name",
		"func launchK() {}\n":                     "kernels.go:6: kernels_spmd.go cannot be a part of the package: ",
		"var kKernel, hostK, spmdgenSource int\n": "",
	} {
		_, err := generate(folder(t, kernel+more))
		if got := fmt.Sprint(err); !strings.HasPrefix(got, want) || want == "" && err != nil {
			t.Errorf("%s: %s, want %s", more, got, want)
		}
	}
}

// Kernels in tests go into a file of the tests' package, also beside kernels of the package itself.
func TestKernelsInTests(t *testing.T) {
	const kernel = "\n\n//spmd:kernel\nfunc k(i int, x []float64) { x[i] = 1 }\n"
	for _, text := range []string{"package p\n", "package p" + kernel} {
		dir := folder(t, text)
		write(t, dir, "kernels_test.go", "package p_test"+kernel)
		write(t, dir, "inside_test.go", "package p\n\nfunc k(i int) {}\n")
		if _, err := Write(dir); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]bool{
			source.Output: strings.Contains(text, kernel), source.TestOutput: true,
		} {
			got, err := os.ReadFile(filepath.Join(dir, name))
			if there := err == nil; there != want {
				t.Errorf("beside %q: %s: %v", text, name, err)
			}
			if pkg := strings.TrimSuffix(name, ".go")[len("kernels_spmd"):]; want &&
				!strings.Contains(string(got), "\npackage p"+pkg+"\n") {
				t.Errorf("%s is not of package p%s:\n%s", name, pkg, got)
			}
		}
		if err := source.Fresh(dir); err != nil {
			t.Error(err)
		}
		write(t, dir, "inside_test.go", "package p"+kernel)
		const inside = "inside_test.go:4: a kernel in a test is of the package p_test"
		if err := source.Fresh(dir); err == nil || err.Error() != inside {
			t.Errorf("%v, want %s", err, inside)
		}
		write(t, dir, "inside_test.go", "package p\n")
		write(t, dir, "kernels_test.go", "package p_test\n"+kernel)
		if err := source.Fresh(dir); err == nil || !strings.HasPrefix(err.Error(), source.TestOutput+" is old") {
			t.Errorf("a kernel of the tests has moved: %v", err)
		}
	}
}

// Names with a meaning in C++, or in the output, work. Two variables of one name in Go stay two.
func TestNames(t *testing.T) {
	dir := folder(t, `package p

//spmd:kernel
func update(i int, register, this []float64, lo, hi, s, n, args, at float64) (out float64) {
	double := register[i]
	if double > 0 {
		double := double * 2
		this[i] = double
	}
	π := lo + hi + s + n + args + at
	return double + π
}
`)
	text, err := generate(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"double double_ = AT(register_, i_,", "double double_1 = (double_ * 2.0)",
		"func launchUpdate(s_ *spmd.Stream, out spmd.Buffer[float64], n_ int,",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// The file has the types of the kernels as they were, so that the compiler names what to type where
// they have changed. Indices keep their names also behind a kernel of one index.
func TestAsItWas(t *testing.T) {
	text, err := generate(folder(t, `package p

type pair struct{ a, b int32 }

//spmd:kernel
func move(i int, x []pair, by float32) { x[i].a += int32(by) }

//spmd:kernel
func scale[T float32 | float64](i, j int, x []T, to []uint8) T { return x[i] }
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\tgokernel.GoGenerateIsNeeded[func(int, []pair, float32)](move)\n",
		"\tgokernel.GoGenerateIsNeeded[func(int, int, []float32, []uint8) float32](scale[float32])\n",
		"scale(i, j, x, to)", "ni, nj int, x",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

// The kernels of the examples are translated as they are: their tests see only a copy.
func TestExamplesFresh(t *testing.T) {
	mains, err := filepath.Glob("../../docs/examples/*/main.go")
	if err != nil || len(mains) == 0 {
		t.Fatal(mains, err)
	}
	for _, file := range mains {
		if err := source.Fresh(filepath.Dir(file)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}
