// Package inspect looks at jobs from outside: it asks the ranks of one that runs, reads
// the trace of one that has ended, and draws what several have measured. bench draws
// its curves in the same way.
package inspect

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"lockstep/internal/cli"
	"lockstep/internal/process"
	"lockstep/internal/readable"
)

// whoLimit is how long a rank that is well may take to say who it is.
const whoLimit = 3 * time.Second

// StatusCommand is `launch status`.
func StatusCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "status [JOB|PID]",
		Short: "Show what every rank of a running job does, and where in the source",
		Long: `Shows, for a job that has ranks on this node, what each of its ranks does on all nodes: at which line of
the program, in which collective, and who is missing there. The job goes on undisturbed. With several jobs
here and none named, it lists them. PID is that of a rank, or of the mpirun that started it.

Under Slurm, from anywhere: srun --jobid=ID --overlap -n1 bin/launch status`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return status(cmd.OutOrStdout(), args, asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// job is a job, as seen on this node.
type job struct {
	name  string         // the job's, or the process's number for one rank
	ranks []process.Rank // on this node, ascending
}

func status(out io.Writer, args []string, asJSON bool) error {
	pids, err := process.ListeningRanks()
	if err != nil {
		return err
	}
	jobs, silent := who(pids)
	if len(args) > 0 {
		jobs = slices.DeleteFunc(jobs, func(j job) bool { return !j.named(args[0]) })
		if len(jobs) == 0 {
			return cli.Usage{Err: fmt.Errorf("no job or process %s answers here: launch status without "+
				"it lists what does", args[0])}
		}
	}
	switch {
	case len(jobs) == 0 && len(silent) > 0:
		return fmt.Errorf("no program answers: %s", strings.Join(silent, "; "))
	case len(jobs) == 0:
		return errors.New("no program runs on this node for this user; on a node of the job: srun " +
			"--jobid=ID --overlap -n1 bin/launch status")
	case len(jobs) > 1:
		return list(out, jobs, silent, asJSON)
	}
	request := process.RequestText
	if asJSON {
		request = process.RequestJSON
	}
	var errs []error
	for _, r := range jobs[0].ranks { // the first that can
		report, _, err := process.Ask(r.PID, request, process.AskLimit)
		switch {
		case err != nil:
		case !asJSON:
			_, err = io.WriteString(out, readable.Text(string(report)))
			return err
		case json.Valid(report):
			_, err = out.Write(readable.JSON(report))
			return err
		default:
			err = fmt.Errorf("process %d answers with %d bytes that are not JSON", r.PID, len(report))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// who asks the processes who they are. It returns the jobs, and the words on those that do not
// answer.
func who(pids []int) (jobs []job, silent []string) {
	ranks := make([]process.Rank, len(pids))
	errs := make([]error, len(pids))
	var wg sync.WaitGroup
	for i, pid := range pids {
		wg.Go(func() { ranks[i], errs[i] = process.AskWho(pid, whoLimit) })
	}
	wg.Wait()
	for i, r := range ranks {
		if errs[i] != nil {
			continue
		}
		name := cmp.Or(r.Job, strconv.Itoa(r.PID))
		at := slices.IndexFunc(jobs, func(j job) bool { return j.name == name && j.ranks[0].UID == r.UID })
		if at < 0 {
			at = len(jobs)
			jobs = append(jobs, job{name: name})
		}
		jobs[at].ranks = append(jobs[at].ranks, r)
	}
	for _, j := range jobs {
		slices.SortFunc(j.ranks, func(a, b process.Rank) int { return a.Rank - b.Rank })
	}
	slices.SortFunc(jobs, func(a, b job) int { return a.ranks[0].Started.Compare(b.ranks[0].Started) })
	return jobs, unanswered(pids, errs)
}

// unanswered returns the words on processes that do not answer. Those that have ended meanwhile are
// left out. Those of other users, of whom a node may have many, are counted.
func unanswered(pids []int, errs []error) (silent []string) {
	others := 0
	for i, pid := range pids {
		if errs[i] == nil {
			continue
		}
		if _, err := os.Stat("/proc/" + strconv.Itoa(pid)); err != nil {
			continue
		}
		if errors.Is(errs[i], process.ErrOtherUser) {
			others++
		} else {
			silent = append(silent, errs[i].Error())
		}
	}
	if others > 0 {
		silent = append(silent, fmt.Sprintf("ranks of other users, which do not answer this one: %d", others))
	}
	return silent
}

// named reports whether a person means this job: by its name, or by a process of it, or by one that
// has started these here, such as mpirun.
func (j job) named(by string) bool {
	if j.name == by {
		return true
	}
	pid, err := strconv.Atoi(by)
	return err == nil && pid > 1 &&
		slices.ContainsFunc(j.ranks, func(r process.Rank) bool { return descends(r.PID, pid) })
}

// descends reports whether a process is another one, or was started by that or by one of its
// descendants.
func descends(pid, from int) bool {
	for pid > 1 && pid != from {
		p, _ := process.Of(pid)
		pid = p.Parent
	}
	return pid == from
}

func list(out io.Writer, jobs []job, silent []string, asJSON bool) error {
	if asJSON {
		all := [][]process.Rank{}
		for _, j := range jobs {
			all = append(all, j.ranks)
		}
		return json.NewEncoder(out).Encode(map[string]any{"jobs": all, "silent": silent})
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "JOB\tPROGRAM\tRANKS\tHERE\tPHASE\tRUNS FOR\tPROCESSES")
	for _, j := range jobs {
		first := j.ranks[0]
		pids := []string{}
		for _, r := range j.ranks {
			pids = append(pids, strconv.Itoa(r.PID))
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%v\t%s\n", j.name, first.Program, first.Size, len(j.ranks), first.Phase,
			time.Since(first.Started).Round(time.Second), strings.Join(pids, ","))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, s := range silent {
		fmt.Fprintln(out, s)
	}
	_, err := fmt.Fprintln(out, "what one of them does: launch status JOB")
	return err
}
