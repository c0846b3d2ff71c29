package spmd_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"lockstep/internal/mpirun"
	"lockstep/spmd/spmdtest"
)

// TestReadmeProgram does with the README's program what stands below it, as a newcomer would.
func TestReadmeProgram(t *testing.T) {
	spmdtest.HostOnly(t, "it compiles a program, which a machine with GPUs may not be able to")
	t.Parallel()
	root, err := filepath.Abs("..")
	spmdtest.Must(t, err)
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	spmdtest.Must(t, err)
	_, rest, _ := strings.Cut(string(readme), "```go\n")
	program, rest, ok := strings.Cut(rest, "```")
	section, _, _ := strings.Cut(rest, "\n## ")
	commands := strings.Join(regexp.MustCompile(`(?m)^    .*\n`).FindAllString(section, -1), "")
	if !ok || commands == "" {
		t.Fatal("README.md has no program, or does not say how to run it")
	}
	dir := t.TempDir()
	spmdtest.Must(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o666))
	// The modules are those that make build has fetched: a newcomer has not run make lint.
	script := `cache=$(go env GOMODCACHE) packages="./apps/... ./launch/..."
for m in $(cd PATH && go list -deps -f '{{with .Module}}{{.Dir}}{{end}}' $packages | sed -n "s|^$cache/||p" | sort -u); do
    files=cache/download/${m%@*}/@v
    mkdir -p .modules/$files .modules/${m%/*}
    ln -s $cache/$m .modules/$m
    ln -s $cache/$files/${m##*@}.* .modules/$files
done
export GOMODCACHE=$PWD/.modules GOFLAGS="$GOFLAGS -modcacherw"
(cd PATH && GOPROXY=file://$cache/cache/download go list -deps $packages >/dev/null)
` + commands
	script = strings.ReplaceAll(script, "PATH", root)
	sh := exec.CommandContext(mpirun.Patience(t), "sh", "-ec", script)
	sh.Dir, sh.WaitDelay = dir, 5*time.Second
	sh.Env = append(mpirun.Env(3), mpirun.BuildEnv()...)
	if out, err := sh.CombinedOutput(); err != nil || !strings.Contains(string(out), "sum=3") {
		t.Fatalf("%v\n%s\n%s", err, script, out)
	}
}
