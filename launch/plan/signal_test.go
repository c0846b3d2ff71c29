package plan

import (
	"strings"
	"syscall"
	"testing"
)

// What was ignored when launch started stays ignored, as SIGHUP is under nohup; and the last line
// says which signal has ended the job.
func TestNohup(t *testing.T) {
	for _, w := range installed(t) {
		nohup := []string{"sh", "-c", `trap "" HUP; exec "$@"`, "sh"}
		r := startCommand(t, start(t, append(nohup, self(t), "run", "--launcher", w.name, "-np", "2", "--oversubscribe",
			"--", self(t), "program", "signals", "1")...))
		r.await(t, 2, "ready")
		r.signal(t, syscall.SIGHUP)
		r.signal(t, syscall.SIGUSR2)
		for range 2 {
			if r.await(t, 1, "got "); !strings.Contains(r.lines.Text(), "user defined signal 2") {
				t.Errorf("%s: %s", w.name, r.lines.Text())
			}
		}
		r.signal(t, syscall.SIGTERM)
		r.await(t, 2, "got terminated")
		status := r.status(t)
		if status != 0 || !strings.HasSuffix(r.all.String(), "launch: the job was asked to end by SIGTERM\n") {
			t.Errorf("%s: status %d: %s", w.name, status, r.all.String())
		}
	}
}
