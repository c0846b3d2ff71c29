package doctor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"lockstep/internal/mpirun"
	"lockstep/internal/testkit"
)

var binaries struct {
	sync.Once
	dir string
	err error
}

// build returns a folder with launch and launch-probe.
func build(t *testing.T) string {
	t.Helper()
	b := &binaries
	b.Do(func() {
		if b.dir, b.err = os.MkdirTemp("", "doctor"); b.err != nil {
			return
		}
		if b.err = os.Chmod(b.dir, 0o755); b.err != nil {
			return
		}
		if b.err = copyFile(os.Args[0], filepath.Join(b.dir, "launch"), nil); b.err != nil {
			return
		}
		cmd := exec.CommandContext(mpirun.Patience(t), "go", "build", "-buildvcs=false", "-o", b.dir,
			"lockstep/launch/launch-probe")
		if out, err := cmd.CombinedOutput(); err != nil {
			b.err = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if b.err != nil {
		t.Fatal(b.err)
	}
	return b.dir
}

// copyFile copies a program, changed by change.
func copyFile(from, to string, change func([]byte) []byte) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if change != nil {
		data = change(data)
	}
	return os.WriteFile(to, data, 0o755)
}

// set is a broken set-up in the making.
type set struct {
	t   *testing.T
	dir string // of the test: launch and launch-probe, and prepare's files
	cmd *exec.Cmd
}

func (s *set) write(name, text string) {
	s.t.Helper()
	testkit.Must(s.t, os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o755))
}

// replace copies a program of the set, changed, to another name of it.
func (s *set) replace(from, to string, change func([]byte) []byte) {
	s.t.Helper()
	to = filepath.Join(s.dir, to)
	data, err := os.ReadFile(filepath.Join(s.dir, from))
	if err == nil {
		os.Remove(to) // it may be a link
		err = os.WriteFile(to, change(data), 0o755)
	}
	testkit.Must(s.t, err)
}

// node makes a folder that stands for a node's own disk.
func (s *set) node(name string) {
	s.t.Helper()
	testkit.Must(s.t, os.Mkdir(filepath.Join(s.dir, name), 0o755))
	for _, f := range []string{"launch", "launch-probe"} {
		testkit.Must(s.t, os.Symlink(filepath.Join(s.dir, f), filepath.Join(s.dir, name, f)))
	}
}

func (s *set) env(kv ...string) { s.cmd.Env = append(s.cmd.Env, kv...) }

// probe replaces launch-probe by a script, which may run the real one as "$real".
func (s *set) probe(script string) {
	testkit.Must(s.t, os.Rename(filepath.Join(s.dir, "launch-probe"), filepath.Join(s.dir, "real-probe")))
	s.write("launch-probe", "#!/bin/sh\nreal="+s.dir+"/real-probe\n"+script)
}

var doubles sync.Once

// gpus lets the ranks find doubles of the CUDA driver, with n devices, and of NCCL.
func (s *set) gpus(n int, env ...string) {
	s.t.Helper()
	shared := filepath.Join(build(s.t), "lib")
	doubles.Do(func() {
		nccl, err := filepath.Abs("../../nccl/testdata/fakenccl.c")
		if err == nil {
			err = os.Mkdir(shared, 0o755)
		}
		testkit.Must(s.t, err)
		testkit.BuildCUDA(s.t, shared)
		testkit.BuildLibrary(s.t, shared, "libnccl.so.2", nccl)
	})
	path := filepath.Join(s.dir, "lib") + ":" + shared // a row's files in its own folder come first
	if old := os.Getenv("LD_LIBRARY_PATH"); old != "" {
		path += ":" + old
	}
	s.env(append(env, "LD_LIBRARY_PATH="+path, fmt.Sprintf("FAKECUDA_DEVICES=%d", n))...)
}

func needRoot(t *testing.T, tools ...string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root may do this")
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
}

// twoNodes makes folders node0 and node1 with a program each; "" for none.
func twoNodes(s *set, text0, text1 string) {
	s.t.Helper()
	for node, text := range map[string]string{"node0": text0, "node1": text1} {
		s.node(node)
		if text != "" {
			s.write(node+"/prog", "#!/bin/sh\n# "+text+"\n")
		}
	}
}

// prefix puts a command before mpirun.
func (s *set) prefix(name string, args ...string) {
	path, err := exec.LookPath(name)
	if err != nil {
		s.t.Skip(err)
	}
	s.cmd.Args = append(append([]string{path}, args...), append([]string{s.cmd.Path}, s.cmd.Args[1:]...)...)
	s.cmd.Path = path
}

// preload puts functions of C before those of libmpi.
func (s *set) preload(text string) {
	s.t.Helper()
	s.write("before.c", text)
	testkit.BuildLibrary(s.t, s.dir, "before.so", filepath.Join(s.dir, "before.c"))
	s.env("LD_PRELOAD=" + filepath.Join(s.dir, "before.so"))
}
