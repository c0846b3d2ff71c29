package main

import (
	"fmt"
	"go/format"
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

// block is what stands between two fences of a page.
type block struct {
	line       int // of the first fence
	kind, file string
	text       string
}

// blocks cuts a page into its blocks.
func blocks(t *testing.T, page string) []block {
	t.Helper()
	text, err := os.ReadFile(page)
	spmdtest.Must(t, err)
	var all []block
	open, n := false, 0
	for line := range strings.Lines(string(text)) {
		n++
		fence, is := strings.CutPrefix(line, "```")
		switch {
		case is && open:
			open = false
		case is:
			kind, file, _ := strings.Cut(strings.TrimSpace(fence), " ")
			all, open = append(all, block{line: n, kind: kind, file: file}), true
		case open:
			all[len(all)-1].text += line
		}
	}
	if open {
		t.Fatalf("%s: the last block has no end", page)
	}
	return all
}

// shownCommand is a line behind a $, and the lines that are to come of it.
type shownCommand struct {
	typed  string
	want   []string
	status string
}

var statusIs = regexp.MustCompile(`# exit status (\d+)$`)

// commands reads a console block.
func (b block) commands(t *testing.T) []shownCommand {
	t.Helper()
	var all []shownCommand
	for line := range strings.Lines(b.text) {
		line = strings.TrimSuffix(line, "\n")
		if typed, is := strings.CutPrefix(line, "$ "); is {
			c := shownCommand{typed: typed, status: "0"}
			if m := statusIs.FindStringSubmatch(typed); m != nil {
				c.status = m[1]
			}
			all = append(all, c)
		} else if len(all) == 0 {
			t.Fatalf("line %d: a console block that does not begin with $", b.line)
		} else {
			all[len(all)-1].want = append(all[len(all)-1].want, line)
		}
	}
	return all
}

// What differs between two runs, beside what stands as ... on the page.
var differs = strings.NewReplacer(`\.\.\.`, `.*`, `12:00:00`, `\d\d:\d\d:\d\d`, `1\.000s`, `\d+\.\d+s`)

// printed says whether the lines of out are those that are wanted.
func (c shownCommand) printed(out string) bool {
	pattern := ""
	for _, line := range c.want {
		pattern += differs.Replace(regexp.QuoteMeta(line)) + "\n"
	}
	return regexp.MustCompile("^" + pattern + "$").MatchString(out)
}

// stand puts an executable into a folder.
func stand(t *testing.T, dir, name, script string) {
	t.Helper()
	spmdtest.Must(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/bash\nset -e\n"+script), 0o777))
}

// TestTutorial follows the page from its first line to its last, as a newcomer would.
func TestTutorial(t *testing.T) {
	spmdtest.HostOnly(t, "it compiles programs, which a machine with GPUs may not be able to")
	root, err := filepath.Abs("..")
	spmdtest.Must(t, err)
	bin, dir := t.TempDir(), t.TempDir()
	// The page has more ranks than a machine may have GPUs: here it has none.
	env := append(append(mpirun.Env(8), "CUDA_VISIBLE_DEVICES=", "PATH="+bin+":"+os.Getenv("PATH")),
		mpirun.BuildEnv()...)
	ctx := mpirun.Patience(t)
	do := func(script string) (string, error) {
		sh := exec.CommandContext(ctx, "bash", "-c", script)
		sh.Dir, sh.Env, sh.WaitDelay = dir, env, 5*time.Second
		out, err := sh.CombinedOutput()
		return string(out), err
	}
	launch := filepath.Join(bin, "launch")
	if out, err := do(fmt.Sprintf(
		"go build -C %q -ldflags \"-X 'lockstep/launch/scaffold.builtFrom=%s'\" -o %q ./launch",
		root, root, launch)); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// As Slurm calls them; what is not known of srun's options is refused.
	stand(t, bin, "sbatch", "export SLURM_JOB_ID=7 SLURM_CPUS_PER_TASK=8\nbash \"$@\" >pi-7.out 2>&1\n"+
		"echo Submitted batch job 7\n")
	stand(t, bin, "srun", "[ \"$1 $2\" = \"--mpi=pmix --cpus-per-task=8\" ]\nshift 2\nexec mpirun -np 8 \"$@\"\n")
	here := strings.NewReplacer("~/lockstep/bin/launch", launch, "~/lockstep", root, "$HOME/lockstep", root,
		"node1:2,node2:2", "localhost:4")
	ran := 0
	for _, b := range blocks(t, "../docs/tutorial.md") {
		if b.kind != "console" {
			if b.file == "" {
				t.Fatalf("tutorial.md:%d: a block that is neither a file nor what to type", b.line)
			}
			spmdtest.Must(t, os.WriteFile(filepath.Join(dir, b.file), []byte(b.text), 0o666))
			continue
		}
		for _, c := range b.commands(t) {
			ran++
			if to, is := strings.CutPrefix(c.typed, "cd "); is {
				dir = filepath.Join(dir, to)
				continue
			}
			began := time.Now()
			out, err := do(here.Replace(c.typed))
			t.Logf("%s: %v", c.typed, time.Since(began).Round(time.Millisecond))
			status := "0"
			if err != nil {
				status = strings.TrimPrefix(err.Error(), "exit status ")
			}
			if status != c.status || !c.printed(out) {
				t.Fatalf("tutorial.md:%d: %s: status %s, want %s, and it prints\n%s\nwant\n%s",
					b.line, c.typed, status, c.status, out, strings.Join(c.want, "\n"))
			}
		}
	}
	if ran < 20 {
		t.Errorf("only %d commands", ran)
	}
}

// The programs of the page look as gofmt leaves them.
func TestTutorialFormat(t *testing.T) {
	for _, b := range blocks(t, "../docs/tutorial.md") {
		if b.kind != "go" {
			continue
		}
		if text, err := format.Source([]byte(b.text)); err != nil || string(text) != b.text {
			t.Errorf("tutorial.md:%d: gofmt would change %s: %v", b.line, b.file, err)
		}
	}
}

// A command whose output differs from the page is seen.
func TestPrinted(t *testing.T) {
	c := shownCommand{want: []string{"12:00:00 INF start ... ranks=2 ...", "ok  \tpi\t1.000s"}}
	for out, want := range map[string]bool{
		"08:15:03 INF start device=host ranks=2 threads=1\nok  \tpi\t0.613s\n":       true,
		"08:15:03 INF start device=host ranks=3 threads=1\nok  \tpi\t0.613s\n":       false,
		"08:15:03 INF start device=host ranks=2 threads=1\n":                         false,
		"08:15:03 INF start device=host ranks=2 threads=1\nok  \tpi\t0.613s\nmore\n": false,
	} {
		if got := c.printed(out); got != want {
			t.Errorf("%v for\n%s", got, out)
		}
	}
}
