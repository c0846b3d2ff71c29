package plan

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"lockstep/internal/cli"
	"lockstep/internal/launcher"
	"lockstep/internal/process"
)

// RunCommand is `launch run`.
func RunCommand() *cobra.Command {
	o, s := &options{}, &supervisor{}
	cmd := &cobra.Command{
		Use:   "run [flags] -- PROGRAM [ARGS]",
		Short: "Start a program on several ranks, with the line that launch plan prints",
		Long: `Start a program on several ranks, with launch plan's line for the mpirun that is here; inside a Slurm
allocation with srun, if that has PMIx. The status is that of the first rank that failed. If a rank says why, mpirun's
own words about the job's end are left out: the cause is the last line.

SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 reach every rank as they are. Signals that are ignored at the
start, as SIGHUP under nohup, stay ignored. A rank may take its time over the first two that ask it to end; the third
ends all of them. On several hosts under Open MPI the first SIGTERM or SIGHUP reaches the ranks as SIGUSR1, which is
the same to a Lockstep program, since its mpirun would leave them one second; SIGQUIT reaches only those of this host.
The last line names the signal. Standard input, if it is no terminal, is that of rank 0.

With --restarts a job that fails is started again, from its newest checkpoint if the program saves any: 1 s later, then
2 s, 4 s, up to a minute, and 1 s after each start with a new checkpoint. A line says each time why. There is no further
start if the program refuses its input (status 2), if it was asked to end (a signal to launch run, or status 75), or
after 3 starts in a row without a new checkpoint. With --min-ranks each start leaves out the hosts that do not answer;
the program goes on from its checkpoint on fewer ranks, and on all of them once the hosts are back.`,
		Example: `  launch run -np 4 -- bin/train --model tiny
  launch run -np 4 -- bin/train --json - | jq .loss
  launch run -H n1:8,n2:8 --logs logs -- bin/train --model gpt2
  launch run --restarts 10 --min-ranks 8 -H n1:8,n2:8 -- bin/train --model gpt2 --checkpoint runs/a --save-every 100`,
		DisableFlagParsing: true, // for -np, which pflag would take for -n p
	}
	o.flags(cmd.Flags())
	cmd.Flags().StringVar(&s.logs, "logs", logsAuto,
		"where output of the ranks goes: prefix: the rank before each line (on several hosts mpirun may cut lines "+
			"when ranks print much at once); pipe: the same of standard error, and standard output as it is; plain: "+
			"as mpirun passes it on; else a `FOLDER`, for rank.N.out and rank.N.err, on each host; auto is prefix "+
			"where standard output is a terminal, else pipe")
	cmd.Flags().BoolVar(&s.noPreflight, "no-preflight", false, "start without looking whether it can work")
	s.flags(cmd.Flags())
	cli.Group(cmd.Flags(), "Before the start, and after a failure", "no-preflight", "restarts", "min-ranks",
		"checkpoints")
	cli.Group(cmd.Flags(), cli.Output, "logs")
	cli.Choices(cmd.Flags(), "logs", logsAuto, logsPrefix, logsPipe, logsPlain)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch { // what run starts of itself
		case len(args) == 2 && args[0] == tellFacts:
			return factsOf(args[1]).write(cmd.OutOrStdout())
		case len(args) == 1 && args[0] == standGuard:
			return guard(os.Stdin)
		}
		prog, help, err := parse(cmd, args)
		if err != nil || help {
			return err
		}
		if s.logs == logsAuto {
			s.logs = logsPipe
			if term.IsTerminal(int(os.Stdout.Fd())) {
				s.logs = logsPrefix
			}
		}
		s.site = thisSite()
		if s.launcher, s.job, err = o.plan(s.site, prog); err != nil {
			return err
		}
		if err := s.check(cmd.Flags(), s.job); err != nil {
			return err
		}
		// Processes that a killed mpirun leaves behind become children of this process,
		// which ends them.
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("PR_SET_CHILD_SUBREAPER: %w", err)
		}
		return s.run()
	}
	return cmd
}

// Arguments of launch run by which it starts itself.
const (
	tellFacts  = "--facts"
	standGuard = "--guard"
)

// plan returns what to start, and the launcher.
func (o *options) plan(s site, prog []string) (launcherHere, job, error) {
	if w := launcher.Environment(); w.Size > 1 && w.Name != "slurm" { // slurm: a batch script, too, looks so
		return launcherHere{}, job{}, usage(
			"%s has already started this as rank %d of %d: type launch run once, without it", w.Name, w.Rank, w.Size)
	}
	if o.launcher == "all" {
		return launcherHere{}, job{}, usage("--launcher all is for launch plan: name another, or leave it out")
	}
	j, err := o.job(s, prog)
	if err != nil {
		return launcherHere{}, job{}, err
	}
	if j.nodes > 1 && len(j.hosts) == 0 && s.getenv("SLURM_JOB_ID") == "" {
		return launcherHere{}, job{}, usage(
			"--nodes %d, and no hosts: add -H NAME,NAME or --hostfile FILE, or start it in a Slurm allocation", j.nodes)
	}
	var w launcherHere
	switch {
	case o.launcher == "slurm" && s.getenv("SLURM_JOB_ID") == "":
		return launcherHere{}, job{}, usage(
			"srun needs an allocation: type salloc --nodes=%d first, or sbatch with the file that launch plan "+
				"--launcher slurm prints", j.nodes)
	case o.launcher == "slurm", o.launcher == "auto" && s.getenv("SLURM_JOB_ID") != "" &&
		pmix.MatchString(ask("srun", "--mpi=list")):
		w = find("slurm")
	case o.launcher != "auto":
		w = find(o.launcher)
	default:
		w, _ = findMPI("")
	}
	switch {
	case w.version != "":
		return w, j, nil
	case o.launcher == "slurm":
		return launcherHere{}, job{}, usage(
			"srun is not in PATH: apt-get install slurm-client, or leave --launcher out")
	case o.launcher == "mpich":
		return launcherHere{}, job{}, usage(
			"no mpirun of MPICH is in PATH: apt-get install mpich, or leave --launcher out")
	case o.launcher != "auto":
		return launcherHere{}, job{}, usage(
			"no mpirun of %s is in PATH: apt-get install openmpi-bin, or leave --launcher out", o.launcher)
	default:
		return launcherHere{}, job{}, usage(
			"no mpirun of Open MPI or MPICH is in PATH: apt-get install openmpi-bin, or load the cluster's module")
	}
}

// run starts the line, and passes on output and signals. It returns the line's status when all of
// its processes have ended, and the cause that they gave.
func run(l Line, j job, logs string, signals <-chan os.Signal) (outcome, error) {
	begun := time.Now()
	if l.Launcher == "openmpi4" {
		defer holdSessions(os.Getpid())()
	}
	if j.here { // signals reach the ranks from here: mpirun kills nobody a second later
		if err := os.Setenv(launcher.KillVariable, "60"); err != nil {
			return outcome{}, err
		}
	}
	out, err := openOutput(&l, j, logs)
	if err != nil {
		return outcome{}, err
	}
	words := l.Words()
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if l.Launcher == "mpich" {
		cmd.Stdout, err = out.stdout()
	}
	if err == nil && (l.Launcher == "mpich" || logs != logsPlain) { // plain: the ranks write to it, too
		cmd.Stderr, err = out.stderr()
		out.heardAll = true
	}
	if err != nil {
		out.close()
		return outcome{}, err
	}
	if !term.IsTerminal(int(os.Stdin.Fd())) { // mpirun is in the background of the terminal, and would be stopped
		cmd.Stdin = os.Stdin
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that Ctrl-C comes to it from here only
	watch, err := startGuard()
	if err != nil {
		out.close()
		return outcome{}, err
	}
	if err := cmd.Start(); err != nil {
		watch.dismiss()
		out.close()
		return outcome{}, err
	}
	watch.over(cmd.Process.Pid)
	ended := make(chan struct{})
	var e outcome
	var forwarding, overseeing sync.WaitGroup
	var why string
	if j.here && l.Launcher != "slurm" {
		o := oversee(words[0], cmd.Process.Pid, watch.cmd.Process.Pid, j)
		overseeing.Go(func() { why = o.watch(ended) })
	}
	forwarding.Go(func() {
		f := forwarder{l.Launcher, j, cmd.Process.Pid, 0}
		for {
			select {
			case sig := <-signals:
				if asks := request(sig.(syscall.Signal)); e.asked == 0 && asks.endsJob() {
					e.asked = asks
				}
				f.forward(sig.(syscall.Signal), ended)
			case <-ended:
				return
			}
		}
	})
	err = cmd.Wait()
	close(ended)
	forwarding.Wait()
	overseeing.Wait()
	watch.dismiss()
	killOrphans()
	if l.Launcher == "openmpi4" {
		launcher.RemoveSession(os.TempDir(), cmd.Process.Pid) // if it has crashed or was killed
	}
	out.close()
	err = status(words[0], err)
	if why != "" && err == nil {
		err = cli.Status(1) // how the ranks have ended is not known
	}
	if out.folder != "" {
		if full := hasRoom(out.folder); full != nil {
			fmt.Fprintf(os.Stderr, "launch: --logs: %v: output of the ranks may be missing\n", full)
			err = cmp.Or(err, error(cli.Status(1)))
		}
	}
	if err != nil {
		if out.folder != "" {
			out.ListenTo(out.folder, begun)
		}
		e.heard = out.heardAll && (out.folder == "" || j.here)
		e = out.why(e, err, j.ranks)
		if why != "" && e.cause == (launcher.Cause{}) {
			e.cause, e.unsaid = launcher.Cause{What: why}, ""
		}
	}
	if e.cause == (launcher.Cause{}) && e.asked == 0 {
		os.Stderr.Write(out.errors)
	}
	return e, err
}

// holdSessions is launcher.HoldSessions for a launch run.
func holdSessions(pid int) (release func()) {
	return launcher.HoldSessions(os.TempDir(), fmt.Sprintf("launch.%d", pid))
}

// status returns how a launcher has ended, as an exit status if it has one.
func status(launcher string, err error) error {
	var failed *exec.ExitError
	switch {
	case err == nil || !errors.As(err, &failed):
		return err
	case failed.Exited():
		return cli.Status(failed.ExitCode())
	default:
		sig := failed.Sys().(syscall.WaitStatus).Signal()
		fmt.Fprintf(os.Stderr, "launch: %s was ended by %s\n", launcher, unix.SignalName(sig))
		return cli.Status(128 + int(sig))
	}
}

// watcher is a process that ends the job if this one is killed. The kernel's PR_SET_PDEATHSIG does
// not do: each thread of this process would send its signal, and at the second SIGTERM Open MPI's
// mpirun leaves its ranks behind.
type watcher struct {
	cmd *exec.Cmd
	to  io.WriteCloser
}

func startGuard() (watcher, error) {
	self, err := os.Executable()
	if err != nil {
		return watcher{}, err
	}
	w := watcher{cmd: exec.Command(self, "run", standGuard)}
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if w.to, err = w.cmd.StdinPipe(); err != nil {
		return watcher{}, err
	}
	return w, w.cmd.Start()
}

// over makes the watcher end the process pid, and all below it, if this process ends
// before dismiss.
func (w watcher) over(pid int) { fmt.Fprintln(w.to, pid) }

func (w watcher) dismiss() {
	fmt.Fprintln(w.to, 0)
	w.to.Close()
	_ = w.cmd.Wait()
}

// guard is the watcher's process. It reads process ids until one is 0, or until nobody is left
// to write one. Then it kills the last process and all below it, and removes the rest of its Open
// MPI session.
func guard(from io.Reader) error {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	pid, last, launch := 0, 0, os.Getppid()
	for {
		if _, err := fmt.Fscan(from, &last); err != nil {
			break
		}
		pid = last
	}
	if pid > 0 {
		process.KillTree(pid)
		defer holdSessions(launch)()
		launcher.RemoveSession(os.TempDir(), pid)
	}
	return nil
}

// forwarder passes signals on to the ranks.
type forwarder struct {
	launcher string
	job      job
	pid      int // of mpirun or srun
	asked    int // times that the job was asked to end
}

// startTime is how long a signal waits for ranks to exist.
const startTime = 10 * time.Second

// forward passes sig on to ranks on this host itself, since launchers do other things with it (Open
// MPI 4.1.4 and 5.0.7, MPICH 4.0.2). Open MPI's mpirun turns SIGINT and SIGHUP into SIGTERM and
// kills the ranks a second later. At the second one it leaves them behind, and it dies of SIGQUIT.
// Hydra's dies of SIGHUP and SIGUSR2.
func (f *forwarder) forward(sig syscall.Signal, ended <-chan struct{}) {
	ends := sig == syscall.SIGTERM || sig == syscall.SIGINT || sig == syscall.SIGHUP
	if ends {
		f.asked++
	}
	if f.asked > 2 {
		below := process.Below(f.pid)
		_ = syscall.Kill(f.pid, syscall.SIGKILL) // first, so that it has nothing to say of the others
		process.Kill(below, syscall.SIGKILL)
		return
	}
	if f.launcher == "slurm" { // srun reaches every rank
		_ = syscall.Kill(f.pid, sig)
		return
	}
	if !f.job.here {
		switch {
		case (sig == syscall.SIGTERM || sig == syscall.SIGHUP) && f.asked == 1 && f.launcher != "mpich" &&
			f.job.grace == 0:
			_ = syscall.Kill(f.pid, syscall.SIGUSR1)
			return
		case sig == syscall.SIGHUP, sig == syscall.SIGINT:
			_ = syscall.Kill(f.pid, syscall.SIGTERM)
			return
		case sig == syscall.SIGTERM, sig == syscall.SIGUSR1, sig == syscall.SIGUSR2 && f.launcher != "mpich":
			_ = syscall.Kill(f.pid, sig)
			return
		}
	}
	for deadline := time.Now().Add(startTime); ; {
		ranks := ranksOf(f.pid)
		if len(ranks) > 0 {
			process.Kill(ranks, sig)
			return
		}
		if ends || time.Now().After(deadline) {
			break
		}
		select {
		case <-ended:
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
	if ends { // nothing has started that would need time
		_ = syscall.Kill(f.pid, syscall.SIGTERM)
		time.AfterFunc(termLooks*lookEvery, func() {
			select {
			case <-ended:
			default:
				process.KillTree(f.pid)
			}
		})
		return
	}
	fmt.Fprintf(os.Stderr, "launch: no rank runs on this host: %s is not passed on\n", unix.SignalName(sig))
}

// killOrphans ends what the launcher has left behind, within seconds.
func killOrphans() {
	self := os.Getpid()
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
		left := process.Below(self)
		if len(left) == 0 {
			return
		}
		process.Kill(left, syscall.SIGKILL)
	}
}

// ranksOf returns the processes below pid that MPI's launcher has started as ranks.
func ranksOf(pid int) []process.Process {
	var ranks []process.Process
	is := map[int]bool{}
	for _, p := range process.Below(pid) { // parents first
		if is[p.Parent] || isRank(p.PID) {
			if !is[p.Parent] {
				ranks = append(ranks, p)
			}
			is[p.PID] = true
		}
	}
	return ranks
}

// isRank reports whether a process has the variables of a rank in its environment.
func isRank(pid int) bool {
	f, err := os.Open(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return false
	}
	defer f.Close()
	env, err := io.ReadAll(io.LimitReader(f, 4<<20))
	return err == nil && rankVariable.Match(env)
}
