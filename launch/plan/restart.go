package plan

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"lockstep/internal/cli"
	"lockstep/internal/launcher"
	"lockstep/internal/process"
	"lockstep/internal/runfiles"
)

// recovery is the flags of run that say what follows a failed job.
type recovery struct {
	restarts int
	minRanks int
}

func (r *recovery) flags(fs *pflag.FlagSet) {
	fs.IntVar(&r.restarts, "restarts", 0, "how many times a job that has failed is started again (default: never)")
	fs.IntVar(&r.minRanks, "min-ranks", 0,
		"start without the hosts that do not answer, where this many ranks are left (default: all of them)")
}

// check settles the flags for j. Errors are cli.Usage.
func (r *recovery) check(fs *pflag.FlagSet, j job) error {
	switch {
	case r.restarts < 0:
		return usage("--restarts %d: give a number from 0", r.restarts)
	case fs.Changed("min-ranks") && r.minRanks < 1:
		return usage("--min-ranks %d: give a number from 1", r.minRanks)
	case r.minRanks > j.ranks:
		return usage("--min-ranks %d is more than the %d ranks", r.minRanks, j.ranks)
	case r.minRanks > 0 && j.here:
		return usage("--min-ranks is for several hosts, of which one may be left out: add -H NAME,NAME or " +
			"--hostfile FILE")
	}
	return nil
}

// flagOf returns the value of a flag in a program's arguments, or "".
func flagOf(args []string, flag string) (value string) {
	for i, a := range args {
		if a == "--" {
			break
		}
		if v, ok := strings.CutPrefix(a, flag+"="); ok {
			value = v
		} else if a == flag && i+1 < len(args) {
			value = args[i+1]
		}
	}
	return value
}

// newestIn returns the checkpoint with the greatest serial, or nil. ok says whether the folder can
// be seen from this host. Times of files count for nothing: a clock may have been ahead.
func newestIn(folder string) (newest *runfiles.Checkpoint, ok bool) {
	all, err := runfiles.Checkpoints(folder)
	if err != nil || len(all) == 0 {
		return nil, err == nil
	}
	return &all[0], true
}

// supervisor starts a job, and starts it again if it fails.
type supervisor struct {
	recovery
	launcher    launcherHere
	job         job // as it was asked for
	site        site
	logs        string
	noPreflight bool
	signals     chan os.Signal

	without []string // hosts that the start before had to do without
	stuck   int      // starts in a row that no later checkpoint has come of
	before  int      // the serial of the newest checkpoint when the last start began; -1 if there was none
	cause   string   // of the last failure
}

const (
	mostStuck    = 3 // starts that may fail without a new checkpoint between them
	firstBackoff = time.Second
	mostBackoff  = time.Minute
)

// Exit statuses of a program that is not to be started again.
const (
	statusUsage = 2
	statusLater = 75 // EX_TEMPFAIL: it was asked to end early, and a queue will start it
)

// run returns when the job has ended well, or for good. The cause is the last line.
func (s *supervisor) run() error {
	s.signals = make(chan os.Signal, 8)
	process.Notify(s.signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2)
	// SIGQUIT ends nothing. A shell ignores it for its background processes.
	signal.Notify(s.signals, syscall.SIGQUIT)
	defer signal.Stop(s.signals)
	defer killOrphans()
	backoff := firstBackoff
	for n := 0; ; n++ {
		s.before = -1
		if newest, _ := newestIn(s.job.saved); newest != nil {
			s.before = newest.Serial
		}
		begun := time.Now()
		e, err := s.start(n)
		switch {
		case err == nil, e.asked != 0, s.restarts == 0, n == 0 && errors.As(err, new(cli.Usage)), e.refused(err):
			fmt.Fprint(os.Stderr, e.unsaid)
			e.asked.say()
			return err
		}
		why := e.words(err, time.Since(begun))
		if s.progress(e, err) {
			backoff = firstBackoff
		}
		switch {
		case n == s.restarts:
			return s.giveUp(err, "%s; --restarts %d: not started again", why, s.restarts)
		case s.stuck >= mostStuck:
			return s.giveUp(err, "%s; %d starts in a row have failed %s: not started again", why, s.stuck, s.where())
		}
		fmt.Fprintf(os.Stderr, "launch: %s; restart %d of %d in %v, %s\n", why, n+1, s.restarts, backoff, s.from())
		if sig := s.wait(backoff); sig != 0 {
			sig.say()
			return cli.Status(128 + int(sig))
		}
		backoff = min(2*backoff, mostBackoff)
	}
}

// giveUp prints the last line, and returns err without a line of its own.
func (s *supervisor) giveUp(err error, format string, args ...any) error {
	fmt.Fprintf(os.Stderr, "launch: "+format+"\n", args...)
	var status cli.Status
	if errors.As(err, &status) {
		return status
	}
	return cli.Status(1)
}

// progress reports whether the last start has come further than the one before, and counts those
// that have not.
func (s *supervisor) progress(e outcome, err error) bool {
	newest, seen := newestIn(s.job.saved)
	was := s.cause
	s.cause = e.words(err, 0)
	switch {
	case newest != nil && newest.Serial > s.before:
		s.stuck = 0
		return true
	case !seen && s.cause != was: // how far it came is not known, but it failed otherwise
		s.stuck = 1
	default:
		s.stuck++
	}
	return false
}

// from says where the next start begins.
func (s *supervisor) from() string {
	newest, _ := newestIn(s.job.saved)
	switch {
	case s.job.saved == "":
		return "from what the program has saved, if anything: no --checkpoint or --run-dir says where"
	case newest == nil:
		return "from the beginning: there is no checkpoint in " + s.job.saved
	}
	return fmt.Sprintf("from step %d, the newest checkpoint in %s", newest.Step, s.job.saved)
}

// where says at which point the job fails again and again.
func (s *supervisor) where() string {
	if newest, seen := newestIn(s.job.saved); seen && newest != nil {
		return fmt.Sprintf("without a checkpoint after step %d", newest.Step)
	}
	return "without a checkpoint"
}

// wait waits for d, or until a signal asks the job to end.
func (s *supervisor) wait(d time.Duration) request {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return 0
		case sig := <-s.signals:
			if sig := request(sig.(syscall.Signal)); sig.endsJob() {
				return sig
			}
		}
	}
}

// request is a signal to launch run; 0 is none.
type request syscall.Signal

// endsJob reports whether a signal asks a job to end, at once or after it has saved its state.
func (r request) endsJob() bool {
	return slices.Contains([]syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1},
		syscall.Signal(r))
}

// say prints that the job has ended because of this.
func (r request) say() {
	if r != 0 {
		fmt.Fprintf(os.Stderr, "launch: the job was asked to end by %s\n", unix.SignalName(syscall.Signal(r)))
	}
}

// start makes the n-th start, on the present hosts.
func (s *supervisor) start(n int) (outcome, error) {
	j := s.job
	if !s.noPreflight || s.minRanks > 0 {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		looked := make(chan error, 1)
		go func() {
			err := error(nil)
			if s.minRanks > 0 {
				j, err = s.leaveOut(ctx)
			}
			if err == nil && !s.noPreflight {
				err = preflight(ctx, s.launcher, j, s.site, s.minRanks > 0)
			}
			looked <- err
		}()
		for waits := true; waits; {
			select {
			case err := <-looked:
				if err != nil {
					return outcome{}, err
				}
				waits = false
			case sig := <-s.signals:
				if sig := request(sig.(syscall.Signal)); sig.endsJob() {
					cancel()
					<-looked
					return outcome{asked: sig}, cli.Status(128 + int(sig))
				}
			}
		}
	}
	logs := s.logs
	if n > 0 && !slices.Contains([]string{logsPrefix, logsPipe, logsPlain}, logs) { // those of the starts before stay
		logs = filepath.Join(logs, fmt.Sprintf("restart-%d", n))
	}
	return run(build(s.launcher, j, s.site), j, logs, s.signals)
}

// outcome is how a job ended, beside its status.
type outcome struct {
	asked  request // what has asked it to
	heard  bool    // all that the ranks have said came through here, or lies in files of this host
	cause  launcher.Cause
	unsaid string // what only the launcher has said of it, and is not printed yet; "" where a rank has said why
}

// refused reports whether a program has refused its input: another start would end in the same way.
// A Go panic has the same status, so it is unknown for a program that nobody has heard.
func (e outcome) refused(err error) bool {
	status, ok := err.(cli.Status)
	return ok && (status == statusLater || status == statusUsage && e.heard && !e.cause.Own)
}

// words says on one line why a job has failed after some time.
func (e outcome) words(err error, ran time.Duration) string {
	var how string
	status, ended := err.(cli.Status)
	switch {
	case !ended:
		return "the job cannot start: " + err.Error()
	case status > 128 && unix.SignalName(syscall.Signal(status-128)) != "":
		how = fmt.Sprintf("status %d (%s)", int(status), unix.SignalName(syscall.Signal(status-128)))
	default:
		how = fmt.Sprintf("status %d", int(status))
	}
	if ran > 0 {
		how += fmt.Sprintf(" after %.1f s", ran.Seconds())
	}
	if c := e.cause.String(); c != "" {
		return c + "; " + how
	}
	return "the job has failed; " + how
}
