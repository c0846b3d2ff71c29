package scaffold

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/internal/cli"
	"lockstep/internal/mpirun"
	"lockstep/internal/testkit"
)

// The tests may have been built with -trimpath.
func init() {
	var err error
	if builtFrom, err = filepath.Abs("../.."); err != nil {
		panic(err)
	}
}

// Without a note of the build the sources' paths tell where the checkout is, and
// with -trimpath nothing does.
func TestBuiltFrom(t *testing.T) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		t.Fatal("no build info")
	}
	trimmed := slices.Contains(info.Settings, debug.BuildSetting{Key: "-trimpath", Value: "true"})
	defer func(noted string) { builtFrom = noted }(builtFrom)
	builtFrom = ""
	switch got, err := checkout(""); {
	case trimmed && (err == nil || !strings.Contains(err.Error(), "--lockstep DIR")):
		t.Errorf("with -trimpath: %q, %v", got, err)
	case !trimmed && (err != nil || got != repository(t)):
		t.Errorf("%q, %v, want %s", got, err, repository(t))
	}
	builtFrom = t.TempDir()
	if got, err := checkout(""); err == nil {
		t.Errorf("a note of a folder that is no checkout: %q", got)
	}
}

// newApp runs `launch new` with args in dir and returns what it prints.
func newApp(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	t.Chdir(dir)
	t.Setenv("GOPROXY", "off") // what it needs is here, since this was built
	var out bytes.Buffer
	cmd := Command()
	cmd.SetArgs(append([]string{}, args...)) // not nil, for which cobra takes this process's own
	cmd.SetOut(&out)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true // as the launch command does
	err := cmd.Execute()
	return out.String(), err
}

// sh runs a shell script in dir, without network for Go.
func sh(t *testing.T, dir, script string) string {
	t.Helper()
	cmd := exec.CommandContext(mpirun.Patience(t), "sh", "-ec", script)
	cmd.Dir = dir
	cmd.Env = append(mpirun.Env(2), mpirun.BuildEnv()...)
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s\n%s", err, script, out)
	}
	return string(out)
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	testkit.Must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func repository(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	testkit.Must(t, err)
	return root
}

// TestModule does what a newcomer does: writes an application, types what is printed, and
// starts it on several ranks.
func TestModule(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "it's here")
	testkit.Must(t, os.Mkdir(dir, 0o777))
	printed, err := newApp(t, dir, "heat-2d")
	testkit.Must(t, err)
	app := filepath.Join(dir, "heat-2d")
	want := []string{"README.md", "go.mod", "go.sum", "kernels_spmd.go", "main.go", "main_test.go", "step.go"}
	if got := names(t, app); !slices.Equal(got, want) || len(names(t, dir)) != 1 {
		t.Errorf("%v in %v, want %v", got, names(t, dir), want)
	}
	for _, name := range want {
		text, err := os.ReadFile(filepath.Join(app, name))
		testkit.Must(t, err)
		if strings.Contains(string(text), "{{") || strings.Contains(string(text), placeholder) {
			t.Errorf("%s has places that are not filled in:\n%s", name, text)
		}
		if !strings.HasSuffix(name, ".go") {
			continue
		}
		if formatted, err := format.Source(text); err != nil || !bytes.Equal(formatted, text) {
			t.Errorf("gofmt would change %s: %v", name, err)
		}
	}

	mod, err := os.ReadFile(filepath.Join(app, "go.mod"))
	testkit.Must(t, err)
	for module, want := range map[string]bool{
		"github.com/spf13/pflag ": true, "github.com/sbromberger/gompi ": true, "gonum.org/v1/plot ": false,
		"honnef.co/go/tools ": false,
	} {
		if strings.Contains(string(mod), module) != want {
			t.Errorf("%q in go.mod: want %t\n%s", module, want, mod)
		}
	}

	_, commands, ok := strings.Cut(printed, "Next:\n\n")
	if !ok || strings.Count(commands, "\n") != 5 {
		t.Fatalf("printed:\n%s", printed)
	}
	// Its tests pass here, too: what may be different elsewhere is how the
	// kernels and the program are found.
	check := "go test -v -run 'TestKernelsCompile|TestProgram'"
	if testkit.More(t, 1, "programs of launch new of which all tests run"); testkit.AllCases() {
		check = "go vet . && go test -v"
	}
	out := sh(t, "/", strings.Replace(commands, "go test", check, 1))
	if n := strings.Count(out, " INF done "); n != 2 {
		t.Errorf("%d runs ended well, want 2:\n%s", n, out)
	}
	for _, name := range []string{"KernelsCompile", "Program"} {
		skipped := name == "KernelsCompile" && strings.Contains(out, "--- SKIP: TestKernelsCompile ") // without NVRTC
		if !skipped && !strings.Contains(out, "--- PASS: Test"+name+" ") {
			t.Errorf("Test%s did not run:\n%s", name, out)
		}
	}

	for ranks := 1; ranks <= 3; ranks++ {
		if testkit.Quick() && ranks < 3 {
			continue
		}
		cmd := mpirun.Command(mpirun.Patience(t), ranks, filepath.Join(app, "heat-2d"), "--device", "host", "--json",
			"-", "--iters", "7", "--graph")
		line, err := cmd.Output()
		var r struct {
			App   string
			Ranks int
			OK    bool
		}
		if err == nil {
			err = json.Unmarshal(line, &r)
		}
		if err != nil || r.App != "heat-2d" || r.Ranks != ranks || !r.OK {
			t.Errorf("on %d ranks: %v: %s", ranks, err, line)
		}
	}
}

// What is printed to type next has a flag for root only where mpirun needs it.
func TestReport(t *testing.T) {
	for _, allowed := range []string{"", "1"} {
		t.Setenv("OMPI_ALLOW_RUN_AS_ROOT", allowed)
		t.Setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", allowed)
		var out strings.Builder
		app{Binary: "./heat", dir: "/heat"}.report(&out)
		got, want := strings.Contains(out.String(), "--allow-run-as-root"), allowed == "" && os.Geteuid() == 0
		if got != want {
			t.Errorf("allowed is %q:\n%s", allowed, &out)
		}
	}
}

// TestKinds writes every kind of application. Its program and tests are built and run where
// they stand, under another name.
func TestKinds(t *testing.T) {
	dir := t.TempDir()
	entries, err := programs.ReadDir("kinds")
	if err != nil || len(entries) != len(kinds)+1 { // and the template of the README
		t.Errorf("%d kinds, and %d files of them: %v", len(kinds), len(entries), err)
	}
	for _, k := range kinds {
		a := app{Name: "heat-2d", Binary: "bin/heat-2d", Root: dir, Build: "BUILD", Test: "TEST", kind: k.name}
		files, err := a.files()
		testkit.Must(t, err)
		for _, name := range []string{"main.go", "main_test.go", "kernels_spmd.go", readme} {
			if len(files[name]) == 0 {
				t.Errorf("%s has no %s", k.name, name)
			}
		}
		for name, text := range files {
			if strings.Contains(string(text), "{{") || strings.Contains(string(text), placeholder) {
				t.Errorf("%s: %s has places that are not filled in:\n%s", k.name, name, text)
			}
		}
		if main := string(files["main.go"]); !strings.HasPrefix(main, "// Command heat-2d ") ||
			strings.Count(main, `pflag.NewFlagSet("heat-2d", `) != 1 {
			t.Errorf("%s: the program has another name:\n%s", k.name, main)
		}
		for _, want := range []string{"# heat-2d\n", "    BUILD\n    TEST\n", "    mpirun -np 4 bin/heat-2d --"} {
			if !strings.Contains(string(files[readme]), want) {
				t.Errorf("%s: the page lacks %q:\n%s", k.name, want, files[readme])
			}
		}
	}
}

// TestInCheckout writes into an empty checkout, and builds as if that were this one.
func TestInCheckout(t *testing.T) {
	root, fake := repository(t), t.TempDir()
	below := filepath.Join(fake, "apps", "train")
	testkit.Must(t, os.MkdirAll(below, 0o777))
	testkit.Must(t, os.WriteFile(filepath.Join(fake, "go.mod"), []byte("module lockstep\n\ngo 1.26\n"), 0o666))
	printed, err := newApp(t, below, "heat")
	testkit.Must(t, err)
	for _, want := range []string{
		"cd " + fake + "\n", "go build -o bin/ ./apps/heat\n", " -np 2 bin/heat --device host\n",
		"go test ./apps/heat\n",
	} {
		if !strings.Contains(printed, want) {
			t.Errorf("%q is not printed:\n%s", want, printed)
		}
	}
	app := filepath.Join(fake, "apps", "heat")
	want := []string{"README.md", "kernels_spmd.go", "main.go", "main_test.go", "step.go"}
	if got := names(t, app); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if info, plain := stat(t, app), stat(t, below); info.Mode() != plain.Mode() {
		t.Errorf("the folder has mode %v, others %v", info.Mode(), plain.Mode())
	}

	replace := map[string]string{}
	for _, name := range want {
		replace[filepath.Join(root, "apps", "heat", name)] = filepath.Join(app, name)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	testkit.Must(t, err)
	testkit.Must(t, os.WriteFile(filepath.Join(fake, "overlay.json"), overlay, 0o666))
	out := sh(t, root, fmt.Sprintf(
		"go build -overlay %[1]s/overlay.json -o %[1]s ./apps/heat && %[1]s/heat --device host", quote(fake)))
	if !strings.Contains(out, " INF done ") {
		t.Error(out)
	}
}

func stat(t *testing.T, path string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	testkit.Must(t, err)
	return info
}

// TestRefused: bad input is one line with what to type instead, status 2, and no file.
func TestRefused(t *testing.T) {
	root := repository(t)
	for _, tc := range []struct {
		args []string
		want string
	}{
		{nil, "such as: launch new heat"},
		{[]string{"a", "b"}, "such as: launch new heat"},
		{[]string{"heat", "--kind", "pde"}, "--kind pde: want stencil, train, solver, sweep"},
		{[]string{"heat", "--lockstep", "/nowhere"}, "--lockstep /nowhere is no checkout of Lockstep"},
		{[]string{"heat", "--lockstep", filepath.Join(root, "apps")}, "no go.mod with the line"},
		{[]string{""}, "type lower-case letters"},
		{[]string{"."}, "type lower-case letters"},
		{[]string{".."}, "type lower-case letters"},
		{[]string{"../heat"}, "type lower-case letters"},
		{[]string{"/tmp/heat"}, "type lower-case letters"},
		{[]string{"a/b"}, "type lower-case letters"},
		{[]string{"a\\b"}, "type lower-case letters"},
		{[]string{".heat"}, "type lower-case letters"},
		{[]string{"_heat"}, "type lower-case letters"},
		{[]string{"heat-"}, "type lower-case letters"},
		{[]string{"heat.go"}, "type lower-case letters"},
		{[]string{"2d"}, "type lower-case letters"},
		{[]string{"Heat"}, "type lower-case letters"},
		{[]string{"wärme"}, "type lower-case letters"},
		{[]string{"a b"}, "type lower-case letters"},
		{[]string{"a\nb"}, "type lower-case letters"},
		{[]string{"$(id)"}, "type lower-case letters"},
		{[]string{strings.Repeat("a", 65)}, "at most 64"},
		{[]string{"range"}, "type another, such as my-range"},
		{[]string{"main"}, "type another, such as my-main"},
		{[]string{"test"}, "type another, such as my-test"},
		{[]string{"testdata"}, "type another"},
		{[]string{"vendor"}, "type another"},
		{[]string{"internal"}, "type another"},
		{[]string{"lockstep"}, "type another"},
		{[]string{"launch"}, "type another"},
		{[]string{"sort"}, "Go has a package sort"},
	} {
		dir := t.TempDir()
		out, err := newApp(t, dir, tc.args...)
		if err == nil {
			t.Errorf("%q: no error", tc.args)
			continue
		}
		code, say := cli.ExitStatus(err)
		if code != 2 || !say || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: status %d, %v, want status 2 and one line with %q", tc.args, code, err, tc.want)
		}
		if left := names(t, dir); out != "" || len(left) > 0 {
			t.Errorf("%q: printed %q, left %v", tc.args, out, left)
		}
	}
	if _, err := newApp(t, filepath.Join(root, "apps"), "heat", "--lockstep", root); err == nil ||
		!strings.Contains(err.Error(), "leave it out") {
		t.Errorf("--lockstep in a checkout: %v", err)
	}
}

func TestGoodNames(t *testing.T) {
	for _, name := range []string{"a", "heat", "heat2d", "heat-2d", "heat_2d", "string", strings.Repeat("a", 64)} {
		if err := checkName(name); err != nil {
			t.Error(err)
		}
	}
}

// TestStandardPackages: a module cannot have the name of any of this Go's packages.
func TestStandardPackages(t *testing.T) {
	for _, name := range strings.Fields(sh(t, "/", "go list std")) {
		if err := checkName(name); err == nil {
			t.Errorf("%s is a package of Go", name)
		}
	}
}

// TestExisting: what is there stays as it is.
func TestExisting(t *testing.T) {
	dir := t.TempDir()
	testkit.Must(t, os.Mkdir(filepath.Join(dir, "folder"), 0o777))
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "file"), []byte("mine"), 0o666))
	testkit.Must(t, os.Symlink("nowhere", filepath.Join(dir, "link")))
	for _, name := range []string{"folder", "file", "link"} {
		_, err := newApp(t, dir, name)
		code, _ := cli.ExitStatus(err)
		if code != 2 || !strings.Contains(err.Error(), filepath.Join(dir, name)+" exists") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, "file")); string(text) != "mine" {
		t.Errorf("%q, %v", text, err)
	}
	left := append(names(t, dir), names(t, filepath.Join(dir, "folder"))...)
	if !slices.Equal(left, []string{"file", "folder", "link"}) {
		t.Errorf("left %v", left)
	}
}

// TestUnwritable: nobody may write in /proc, root neither.
func TestUnwritable(t *testing.T) {
	_, err := newApp(t, "/proc", "heat")
	code, _ := cli.ExitStatus(err)
	if code != 1 || !strings.HasPrefix(err.Error(), "cannot write in /proc (") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
}

// TestNothingHalfWritten: a failure after the first file, and one at the very end,
// leave the folder as it was.
func TestNothingHalfWritten(t *testing.T) {
	for name, prepare := range map[string]func(a *app) error{
		"a file": func(a *app) error {
			a.mod = map[string][]byte{"no/such/folder": nil}
			return nil
		},
		"the rename": func(a *app) error { // somebody else was faster
			return os.MkdirAll(filepath.Join(a.dir, "theirs"), 0o777)
		},
	} {
		dir := t.TempDir()
		a := app{Name: "heat", kind: "stencil", dir: filepath.Join(dir, "heat")}
		testkit.Must(t, prepare(&a))
		before := names(t, dir)
		if err := a.write(); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s failed: %v", name, err)
		}
		if left := names(t, dir); !slices.Equal(left, before) {
			t.Errorf("%s failed, and left %v, of %v", name, left, before)
		}
	}
}

// TestCheckoutPaths: Go finds the checkout at a path that must be quoted.
func TestCheckoutPaths(t *testing.T) {
	root, dir := repository(t), t.TempDir()
	for _, name := range []string{"a b", "a'b,c", `a"b`} {
		link := filepath.Join(dir, name)
		testkit.Must(t, os.Symlink(root, link))
		at := t.TempDir()
		if _, err := newApp(t, at, "heat", "--lockstep", filepath.Join("..", filepath.Base(dir), name)); err != nil {
			t.Error(err)
			continue
		}
		got := sh(t, filepath.Join(at, "heat"), "go list -m -f '{{.Dir}}' lockstep")
		if strings.TrimSpace(got) != link {
			t.Errorf("the checkout is %q, want %q", strings.TrimSpace(got), link)
		}
	}
}

func TestIsCheckout(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]bool{
		"module lockstep\n":                         true,
		"// Lockstep.\nmodule \"lockstep\" // it\n": true,
		"module lockstep/x\n":                       false,
		"module x\n\nrequire lockstep v0.0.0\n":     false,
		"":                                          false,
	} {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte(text), 0o666))
		if got := isCheckout(dir); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
