package scaffold

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"lockstep/internal/cli"
)

var (
	moduleLine = regexp.MustCompile(`(?m)^module[ \t]+"?lockstep"?[ \t]*(//.*)?$`)
	goLine     = regexp.MustCompile(`(?m)^go[ \t].*\n`)
)

// checkoutAbove returns the folder at dir or above it whose go.mod is the checkout's.
func checkoutAbove(dir string) (string, bool) {
	for {
		if isCheckout(dir) {
			return dir, true
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", false
		}
		dir = up
	}
}

// isCheckout reports whether dir is the root of a checkout.
func isCheckout(dir string) bool {
	text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	return err == nil && moduleLine.Match(text)
}

// builtFrom is the checkout that this program was built from, where the build notes it by -ldflags.
// Otherwise the paths of its sources tell, unless it was built with -trimpath.
var builtFrom string

// checkout returns the checkout that a module of its own uses: flag, the value of --lockstep, if it
// is given, else the one that this program lies in, else the one that it was built from.
func checkout(flag string) (string, error) {
	if flag != "" {
		dir, err := filepath.Abs(flag)
		if err != nil {
			return "", err
		}
		if !isCheckout(dir) {
			return "", cli.Usage{Err: fmt.Errorf(
				"--lockstep %s is no checkout of Lockstep: there is no go.mod with the line \"module lockstep\"", flag)}
		}
		return dir, nil
	}
	if exe, err := os.Executable(); err == nil {
		if root, ok := checkoutAbove(filepath.Dir(exe)); ok {
			return root, nil
		}
	}
	from := builtFrom
	if _, source, _, _ := runtime.Caller(0); from == "" && filepath.IsAbs(source) { // with -trimpath it is not
		from = filepath.Join(filepath.Dir(source), "..", "..")
	}
	if from != "" && isCheckout(from) {
		return from, nil
	}
	return "", cli.Usage{Err: fmt.Errorf(
		"the checkout of Lockstep that this program was built from is not there any more: say where one is, with " +
			"--lockstep DIR")}
}

// module returns the go.mod and go.sum of a module that uses the checkout in from, for tidy to
// complete: with the checkout's language version, and the sums of all that it may require.
func module(name, from string) (map[string][]byte, error) {
	mod, err := os.ReadFile(filepath.Join(from, "go.mod"))
	if err != nil {
		return nil, err
	}
	sum, err := os.ReadFile(filepath.Join(from, "go.sum"))
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("module %s\n\n%s\nrequire lockstep v0.0.0\n\nreplace lockstep => %s\n",
		name, goLine.Find(mod), strconv.Quote(from))
	return map[string][]byte{"go.mod": []byte(text), "go.sum": sum}, nil
}

// tidy leaves in the go.mod and go.sum in dir what the program there needs, in the versions of the
// checkout. Nothing is fetched if that has been built.
func tidy(dir string) error {
	cmd := exec.Command("go", "mod", "tidy")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	if lines := strings.Split(strings.TrimSpace(string(out)), "\n"); lines[0] != "" {
		err = fmt.Errorf("%w: %s", err, lines[len(lines)-1])
	}
	return fmt.Errorf("go mod tidy: %w", err)
}
