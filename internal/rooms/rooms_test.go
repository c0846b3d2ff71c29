package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
)

const root = "../.."

func packages(t *testing.T) []pkg {
	t.Helper()
	pkgs, err := list(root)
	testkit.Must(t, err)
	if len(pkgs) < 30 {
		t.Fatalf("go list finds %d packages", len(pkgs))
	}
	return pkgs
}

// parsed returns the files of Go of a package, without its tests.
func (p *pkg) parsed(t *testing.T, set *token.FileSet) (files []*ast.File) {
	t.Helper()
	for _, name := range p.sources {
		if filepath.Ext(name) == ".go" {
			f, err := parser.ParseFile(set, filepath.Join(p.dir, name), nil,
				parser.ParseComments|parser.SkipObjectResolution)
			testkit.Must(t, err)
			files = append(files, f)
		}
	}
	return files
}

// Packages import what house allows.
func TestImports(t *testing.T) {
	imports, homeless := forbidden(packages(t))
	for _, p := range homeless {
		t.Errorf("package %s has no room: give it one in rooms.go", p)
	}
	for _, name := range imports {
		t.Errorf("%s is no import that house in rooms.go allows", name)
	}
}

// forbidden returns the imports that house does not allow, each as "importer -> imported", and
// the packages without a room.
func forbidden(pkgs []pkg) (imports, homeless []string) {
	for _, p := range pkgs {
		from := roomOf(p.path)
		if from == nil {
			homeless = append(homeless, p.path)
			continue
		}
		for _, name := range p.imports {
			if to := roomOf(name); to != nil && to != from && !slices.Contains(from.below, to.name) {
				imports = append(imports, p.path+" -> "+name)
			}
		}
	}
	return imports, homeless
}

// Packages on top of spmd use nothing of its inside but own and kernels. Those that compute
// use no own, so a library outside of this module can do the same.
func TestHelpersStandOutside(t *testing.T) {
	var found []string
	compute := []string{"spmd/attention", "spmd/blas", "spmd/fft", "spmd/random"}
	parts := []string{"spmd/dashboard", "spmd/hostdata", "spmd/library", "spmd/managed"} // of spmd
	for _, p := range packages(t) {
		if !strings.HasPrefix(p.path, "spmd/") || strings.HasPrefix(p.path, "spmd/internal/") ||
			slices.Contains(parts, p.path) {
			continue
		}
		for _, name := range p.imports {
			if strings.HasPrefix(name, "spmd/internal/") &&
				name != "spmd/internal/kernels" &&
				(name != "spmd/internal/own" || slices.Contains(compute, p.path)) {
				found = append(found, p.path+" "+name)
			}
		}
	}
	if len(found) > 0 {
		t.Errorf("of spmd's inside they import %q", found)
	}
}

// Package spmd knows no CUDA and no NCCL: its inside does.
func TestFacadeKnowsNoGPU(t *testing.T) {
	pkgs := packages(t)
	i := slices.IndexFunc(pkgs, func(p pkg) bool { return p.path == "spmd" })
	for _, name := range pkgs[i].imports {
		if name == "nccl" || name == "cudampi" || name == "cuda" || strings.HasPrefix(name, "cuda/") {
			t.Errorf("spmd imports %s", name)
		}
	}
}

// A program that asks for little has no packages that would make it larger, and slower to link, by
// megabytes: TLS and its cryptography with net/http, fonts and pictures, templates, parsers of Go.
func TestLightPrograms(t *testing.T) {
	heavy := regexp.MustCompile(`^(net/http|github.com/prometheus/.*|` +
		`crypto/tls|crypto/x509|(html|text)/template|image|go/.*|gonum.org/v1/plot|lockstep/internal/source)$`)
	list := exec.Command("go", "list", "-deps", "./docs/examples/hello")
	list.Dir = root
	out, err := list.Output()
	testkit.Must(t, err)
	packages := strings.Fields(string(out))
	if !slices.Contains(packages, "lockstep/spmd") {
		t.Fatalf("go list finds %d packages", len(packages))
	}
	for _, p := range packages {
		if heavy.MatchString(p) {
			t.Errorf("programs have package %s in them", p)
		}
	}
}

// Rooms stand in an order in which all arrows go down, and none has a package that is gone.
func TestHouse(t *testing.T) {
	pkgs := packages(t)
	above := map[string]bool{}
	for _, r := range house {
		for _, pattern := range r.packages {
			if !slices.ContainsFunc(pkgs, func(p pkg) bool { ok, _ := path.Match(pattern, p.path); return ok }) {
				t.Errorf("%s: no package is named %s", r.name, pattern)
			}
		}
		above[r.name] = true
		for _, name := range r.below {
			if above[name] && name != r.name {
				t.Errorf("%s stands above %s and is imported by it", name, r.name)
			}
			if !slices.ContainsFunc(house, func(o room) bool { return o.name == name }) {
				t.Errorf("%s imports from %s, which is no room", r.name, name)
			}
		}
	}
}

// Folders at the top import from each other in one direction, with what they import in turn.
func TestFolders(t *testing.T) {
	to := map[string][]string{}
	for _, p := range packages(t) {
		from, _, _ := strings.Cut(p.path, "/")
		for _, name := range p.imports {
			if goal, _, _ := strings.Cut(name, "/"); goal != from && !slices.Contains(to[from], goal) {
				to[from] = append(to[from], goal)
			}
		}
	}
	var walk func(way []string)
	walk = func(way []string) {
		for _, next := range to[way[len(way)-1]] {
			if next == way[0] {
				t.Errorf("folders import each other: %q", append(way, next))
			} else if !slices.Contains(way, next) {
				walk(append(slices.Clone(way), next))
			}
		}
	}
	for from := range to {
		walk([]string{from})
	}
}

// The picture in docs/architecture.md is that of the code.
func TestPicture(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, page))
	testkit.Must(t, err)
	want, err := replace(string(text), draw(packages(t)))
	testkit.Must(t, err)
	if want != string(text) {
		t.Errorf("%s does not show the packages as they are: go run ./internal/rooms", page)
	}
}

// In a house of three floors, an import that skips a floor is not drawn,
// and one that goes up is found.
func TestArrows(t *testing.T) {
	old := house
	defer func() { house = old }()
	house = []room{
		{"top", "", []string{"a"}, []string{"middle", "ground"}},
		{"middle", "", []string{"b/*"}, []string{"ground"}},
		{"ground", "", []string{"c"}, nil},
	}
	pkgs := []pkg{
		{path: "a", imports: []string{"b/x", "c"}},
		{path: "b/x", imports: []string{"b/y"}},
		{path: "b/y", imports: []string{"c"}},
		{path: "c"},
	}
	imports, homeless := forbidden(append(pkgs, pkg{path: "c", imports: []string{"b/x"}}, pkg{path: "d"}))
	if !slices.Equal(imports, []string{"c -> b/x"}) || !slices.Equal(homeless, []string{"d"}) {
		t.Errorf("forbidden: %q, homeless: %q", imports, homeless)
	}
	want := "```mermaid\nflowchart TD\n    top[\"`****\n    a`\"]\n    middle[\"`****\n    b/x, y`\"]\n" +
		"    ground[\"`****\n    c`\"]\n" +
		"    top --> middle\n    middle --> ground\n```\n"
	if got := draw(pkgs); got != want {
		t.Errorf("drawn:\n%s\nwant:\n%s", got, want)
	}
	for _, text := range []string{"", first + "\n", last + "\n" + first + "\n"} {
		if _, err := replace(text, want); err == nil {
			t.Errorf("a picture is put into %q", text)
		}
	}
	got, err := replace("head\n"+first+"\nold\n"+last+"\ntail\n", "new\n")
	if err != nil || got != "head\n"+first+"\nnew\n"+last+"\ntail\n" {
		t.Errorf("%q, %v", got, err)
	}
}

// The page tells the truth about the code: each linked file exists, and has the names
// that stand behind the link.
func TestPage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, page))
	testkit.Must(t, err)
	links := regexp.MustCompile("\\[[^]]*\\]\\(([^)#]+)\\)((?: `[^`]+`)*)").FindAllStringSubmatch(string(text), -1)
	if len(links) < 20 {
		t.Errorf("only %d links", len(links))
	}
	for _, l := range links {
		name := filepath.Join(root, filepath.Dir(page), l[1])
		st, err := os.Stat(name)
		if err != nil {
			t.Errorf("the page links %s: %v", l[1], err)
			continue
		}
		if st.IsDir() {
			continue
		}
		source, err := os.ReadFile(name)
		testkit.Must(t, err)
		for _, symbol := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(l[2], -1) {
			if !regexp.MustCompile(`\b` + regexp.QuoteMeta(symbol[1]) + `\b`).Match(source) {
				t.Errorf("%s has no %s", l[1], symbol[1])
			}
		}
	}
}

// Packages of one folder share lines. A folder of many shows only their number.
func TestLines(t *testing.T) {
	few, many := []string{"b/y", "a", "b/x"}, []string{"c/other"}
	for _, base := range strings.Split("abcdefghijklmnopqrstu", "") {
		many = append(many, "d/"+base)
	}
	for _, tc := range []struct{ names, want []string }{
		{few, []string{"a", "b/x, y"}},
		{many, []string{"c/other", "d (21)"}},
	} {
		if got := lines(slices.Clone(tc.names)); !slices.Equal(got, tc.want) {
			t.Errorf("%q are drawn as %q, want %q", tc.names, got, tc.want)
		}
	}
}
