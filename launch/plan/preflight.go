package plan

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"lockstep/internal/cli"
	"lockstep/internal/launcher"
)

// preflight looks for what would keep the line from working. Errors are cli.Usage, on one line. It
// does not ask hosts again that were already asked.
func preflight(ctx context.Context, w launcherHere, j job, s site, asked bool) error {
	if err := checkProgram(w.name, j.prog[0]); err != nil {
		return cli.Usage{Err: err}
	}
	for _, h := range j.hosts {
		if what, do := launcher.CheckName(h.name); what != "" && strings.HasPrefix(w.name, "openmpi") {
			return usage("%s: %s", what, do)
		}
		if w.name == "slurm" || j.agent != "" {
			continue
		}
		if err := resolves(h.name); err != nil {
			return cli.Usage{Err: err}
		}
	}
	if err := checkRoom(j, s); err != nil {
		return err
	}
	if strings.HasPrefix(w.name, "openmpi") {
		if err := launcher.CheckRoom(s.getenv); err != nil {
			return cli.Usage{Err: err}
		}
		// what mpirun has: Go raises its own limit
		if n, err := strconv.ParseUint(strings.TrimSpace(ask("sh", "-c", "ulimit -n")), 10, 64); err == nil {
			if what, do := launcher.CheckFiles(n, j.most); what != "" {
				return usage("%s: %s", what, do)
			}
		}
	}
	if !j.here && !asked {
		return compareHosts(ctx, w, j, s)
	}
	return nil
}

// checkRoom refuses more ranks than this host has cores or GPUs. Other hosts say it themselves.
func checkRoom(j job, s site) error {
	if !j.here || len(j.hosts) > 0 || j.oversubscribe {
		return nil
	}
	switch {
	case s.gpus > 0 && j.ranks > s.gpus && !onHost(j.prog):
		return usage("%d ranks, but %d GPUs here: give -np %d, or --oversubscribe", j.ranks, s.gpus, s.gpus)
	case j.ranks > s.cores && !j.dense:
		return usage("%d ranks, but %d cores here: give -np %d, or --oversubscribe", j.ranks, s.cores, s.cores)
	}
	return nil
}

// resolveTime is how long a name server may take.
const resolveTime = 10 * time.Second

func resolves(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), resolveTime)
	defer cancel()
	if _, err := net.DefaultResolver.LookupHost(ctx, name); err != nil {
		return fmt.Errorf("host %s is not known here: check the name, or add it to /etc/hosts (%w)", name, err)
	}
	return nil
}

// programPath returns where mpirun finds the program.
func programPath(prog string) (string, error) {
	if !strings.Contains(prog, "/") {
		path, err := exec.LookPath(prog)
		if err == nil {
			return path, nil
		}
		if _, err := os.Stat(prog); err == nil {
			return "", fmt.Errorf("%s is not in PATH, but in this folder: type ./%s", prog, prog)
		}
		return "", fmt.Errorf("%s is not in PATH: give the path of the program, such as bin/%s", prog, prog)
	}
	st, err := os.Stat(prog)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("%s does not exist: build it first, or give its path from here", prog)
	case err != nil:
		return "", err
	case st.IsDir():
		return "", fmt.Errorf("%s is a folder: give the path of a program", prog)
	case st.Mode()&0o111 == 0:
		return "", fmt.Errorf("%s is not executable: chmod +x %s", prog, prog)
	}
	return prog, nil
}

// checkProgram checks that this machine can start the program, and that its MPI is the launcher's.
func checkProgram(by, prog string) error {
	path, err := programPath(prog)
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrPermission) {
		return nil // it can be executed all the same
	}
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, 2)
	if _, err := io.ReadFull(f, head); err == nil && string(head) == "#!" {
		return nil
	}
	file, err := launcher.ReadLinked(f)
	if err != nil {
		return fmt.Errorf("%s is neither a program of this system nor a script that begins with #!: give the path "+
			"of a program", prog)
	}
	if file.Arch != runtime.GOARCH {
		return fmt.Errorf("%s is built for %s, and this machine is %s: build it here, or with GOARCH=%s",
			prog, file.Machine, runtime.GOARCH, runtime.GOARCH)
	}
	return checkMPI(by, prog, file.MPI, func() string { return ask("ldd", path) })
}

// checkMPI compares the MPI library that a program needs, if any, with the launcher. ldd returns
// where the loader finds libraries. Open MPI 5's is libmpi.so.40.40 or above.
func checkMPI(by, prog, lib string, ldd func() string) error {
	if lib == "" {
		return nil
	}
	path := ""
	for line := range strings.Lines(ldd()) {
		if name, found, ok := strings.Cut(strings.TrimSpace(line), " => "); ok && name == lib {
			if strings.HasPrefix(found, "not found") {
				return fmt.Errorf("%s needs %s, which the loader does not find: install that MPI, or name its "+
					"folder in LD_LIBRARY_PATH", prog, lib)
			}
			path, _, _ = strings.Cut(found, " ")
		}
	}
	built := "mpich"
	switch {
	case launcher.Family(lib) == "MPICH":
	case by == "openmpi4" || by == "openmpi5":
		built = by
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			break
		}
		var minor int
		if _, err := fmt.Sscanf(filepath.Base(real), "libmpi.so.40.%d", &minor); err == nil {
			built = "openmpi4"
			if minor >= 40 {
				built = "openmpi5"
			}
		}
	default:
		built = "openmpi4"
	}
	if by == "slurm" || built == by {
		return nil
	}
	if path != "" {
		lib = path
	}
	return fmt.Errorf("%s is linked with %s, of %s, but the launcher is that of %s: add --launcher %s, or build the "+
		"program with this one's mpicc",
		prog, lib, built, by, built)
}

// facts has a host's answers about the program.
type facts struct {
	Host   string `json:"host"`
	Launch bool   `json:"launch"` // false: there is no launch to look
	Arch   string `json:"arch"`
	SHA256 string `json:"sha256"` // of the program
	Error  string `json:"error"`  // why the program cannot be started
}

func factsOf(prog string) facts {
	name, _ := os.Hostname()
	f := facts{Host: name, Launch: true, Arch: runtime.GOARCH}
	path, err := programPath(prog)
	if err == nil {
		f.SHA256, err = launcher.Checksum(path)
	}
	if err != nil && !errors.Is(err, fs.ErrPermission) {
		f.Error = err.Error()
	}
	return f
}

func (f facts) write(w io.Writer) error { return json.NewEncoder(w).Encode(f) }

// factsTime is how long the hosts may take to say what they know.
const factsTime = 60 * time.Second

// shellFacts asks launch on a host for its facts, or says that it is missing there.
const shellFacts = `if [ -x "$0" ]; then exec "$0" run ` + tellFacts + ` "$1"; fi; echo "{\"host\":\"$(uname -n)\"}"`

// askHosts starts one process on each host of j, as the program will be, and returns what they
// find, within limit.
func askHosts(ctx context.Context, w launcherHere, j job, s site, limit time.Duration) ([]facts, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	one := j
	one.ranks, one.most, one.even = j.nodes, 1, true
	opts := *j.options
	opts.gpus, opts.cpus = 0, 0
	one.options = &opts
	one.hosts = slices.Clone(j.hosts)
	for i := range one.hosts {
		one.hosts[i].slots = 1
	}
	one.prog = []string{"sh", "-c", shellFacts, self, j.prog[0]}
	l := build(w, one, s)
	l.Groups = slices.DeleteFunc(l.Groups, func(g Group) bool { return g.Words[0] == labelWord })
	words := l.Words()

	runtime.LockOSThread() // the kernel ends mpirun when the thread that started it ends
	defer runtime.UnlockOSThread()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	known := readFacts(&stdout)
	if err == nil && len(known) == j.nodes {
		return known, nil
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("nothing for %v", limit)
	}
	return known, fmt.Errorf("%s: %s", words[0], said(stderr.String(), err))
}

// compareHosts compares the hosts' facts about the program.
func compareHosts(ctx context.Context, w launcherHere, j job, s site) error {
	known, err := askHosts(ctx, w, j, s, factsTime)
	if err != nil {
		return usage("%d of %d hosts answered: try ssh to each of them, or leave the look out with --no-preflight (%w)",
			len(known), j.nodes, err)
	}
	return judge(j.prog[0], known)
}

// judge says what keeps a program from running on some hosts, as cli.Usage.
func judge(prog string, known []facts) error {
	warning, err := judgeFacts(prog, known)
	if warning != "" {
		fmt.Fprintln(os.Stderr, "launch: warning:", warning)
	}
	if err != nil {
		return cli.Usage{Err: err}
	}
	return nil
}

// said returns the first meaningful line of a launcher's message.
func said(text string, err error) string {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); strings.Trim(line, "-=*") != "" {
			return line
		}
	}
	return fmt.Sprint(err)
}

func readFacts(r io.Reader) []facts {
	var all []facts
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var f facts
		if json.Unmarshal(lines.Bytes(), &f) == nil && f.Host != "" {
			all = append(all, f)
		}
	}
	return all
}

// judgeFacts says what keeps a program from running on these hosts, and which hosts are unknown.
func judgeFacts(prog string, all []facts) (warning string, err error) {
	slices.SortFunc(all, func(a, b facts) int { return strings.Compare(a.Host, b.Host) })
	var blind []string
	var one *facts
	for i, f := range all {
		switch {
		case !f.Launch:
			blind = append(blind, f.Host)
		case f.Error != "":
			return "", fmt.Errorf("on %s: %s (the program has to be at the same path on each host)", f.Host, f.Error)
		case one == nil:
			one = &all[i]
		case f.Arch != one.Arch:
			return "", fmt.Errorf("%s is %s and %s is %s: name hosts of one architecture",
				one.Host, one.Arch, f.Host, f.Arch)
		case f.SHA256 != one.SHA256:
			return "", fmt.Errorf("%s on %s is not the one on %s: copy it to both", prog, f.Host, one.Host)
		}
	}
	if len(blind) > 0 {
		warning = fmt.Sprintf("launch is not at its path on %s: not known whether %s is there",
			strings.Join(blind, ", "), prog)
	}
	return warning, nil
}
