package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
)

func TestReport(t *testing.T) {
	const size = 12
	j := startJob(t, size)
	for _, from := range []int{0, 1, 7} {
		states := j.nets[from].Report(t.Context())
		if len(states) != size {
			t.Fatalf("%d states", len(states))
		}
		for rank, s := range states {
			want := RankState{Hello: j.config(rank).Me, State: json.RawMessage(fmt.Sprintf(`{"seq":%d}`, rank))}
			if fmt.Sprintf("%+v", s) != fmt.Sprintf("%+v", want) {
				t.Errorf("from rank %d: %+v", from, s)
			}
		}
	}
	var wg sync.WaitGroup // and all at once
	for _, n := range j.nets {
		wg.Go(func() {
			for rank, s := range n.Report(t.Context()) {
				if string(s.State) != fmt.Sprintf(`{"seq":%d}`, rank) {
					t.Errorf("%+v", s)
				}
			}
		})
	}
	wg.Wait()
	j.noEnd()
}

// A fault of State hides only that rank's state.
func TestReportStates(t *testing.T) {
	j := newJob(t, 7)
	hang := make(chan struct{})
	defer close(hang)
	big := `"` + strings.Repeat("<&>", (MaxState-2)/3) + `"`
	states := []func() []byte{
		func() []byte { return []byte("{} ") },
		func() []byte { <-hang; return nil },
		func() []byte { panic("oh") },
		func() []byte { return []byte(big) },
		func() []byte { return []byte(`"` + strings.Repeat("x", MaxState) + `"`) },
		func() []byte { return []byte("{") },
		nil,
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var wg sync.WaitGroup
	for rank := range states {
		c := j.config(rank)
		c.State = states[rank]
		wg.Go(func() {
			n, err := Join(ctx, c)
			if err != nil {
				t.Error(err)
			}
			j.nets[rank] = n
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for range 2 {
		got := j.nets[4].Report(ctx)
		for rank, want := range []struct{ state, note, proc string }{
			{state: "{}"}, {note: "no state within", proc: "("}, {note: "panic: oh"}, {state: big},
			{note: "over the limit"}, {note: "not JSON"}, {},
		} {
			s := got[rank]
			if string(s.State) != want.state || !strings.Contains(s.Note, want.note) ||
				(want.note == "") != (s.Note == "") || !strings.Contains(s.ProcState, want.proc) || s.Silent || s.Died {
				t.Errorf("rank %d: %d bytes, %+v", rank, len(s.State),
					RankState{Note: s.Note, ProcState: s.ProcState, Silent: s.Silent})
			}
		}
	}
	j.noEnd()
}

func TestReportWithoutHub(t *testing.T) {
	j := newJob(t, 4)
	j.join(0, 1, 2)
	if s := j.nets[2].Report(t.Context())[3]; s.Rank != 3 || !strings.Contains(s.Note, "not joined") {
		t.Errorf("%+v", s)
	}
	for rank := range 2 {
		j.nets[rank].Done()
	}
	for rank := range 2 {
		j.nets[rank].Close()
	}
	eventually(t, "rank 2 sees the hubs go", func() bool { return len(j.nets[2].up()) == 0 })
	states := j.nets[2].Report(t.Context())
	if len(states) != 4 || string(states[2].State) != `{"seq":2}` || states[2].PID == 0 || states[1].Rank != 1 ||
		states[1].Note == "" {
		t.Errorf("%+v", states)
	}
	j.nets[2].Fail(Cause{Kind: KindError, Text: "alone"})
	if c := j.end(2); c.Text != "alone" {
		t.Errorf("%+v", c)
	}
}
