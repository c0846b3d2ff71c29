package spmd_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

const (
	dashboardToken = "LOCKSTEP_DASHBOARD_TOKEN"
	dashboardAt    = "SPMD_TEST_DASHBOARD" // where the app "shown" finds its page
)

// freePort is a port that nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer ln.Close()
	return ln.Addr().String()
}

// seenOnPage is a program's view of itself on its page.
type seenOnPage struct {
	Program, Device string
	Ranks           int
	Numbers         []struct {
		Name   string
		Last   float64
		Points [][2]float64
	}
	Phases []string
	Rows   []struct {
		Rank, Process int
		Age           float64
		Shares        []float64
		Pools         []struct{ Used, Peak int }
	}
	Regions []string
}

// fetched is the answer at an address.
func fetched(ctx context.Context, url string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		return "", err
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err == nil && a.StatusCode != http.StatusOK {
		err = errors.New(a.Status)
	}
	return string(text), err
}

// shown goes on until all of its ranks have been on its own page twice: then the shares of their
// time are known. Ranks come to the page once in a while, so it looks no more than that.
func shown(ctx context.Context, w *spmd.World) error {
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	url := "http://" + os.Getenv(dashboardAt) + "/" + os.Getenv(dashboardToken)
	x, err := spmd.Alloc[int32](w, 1024)
	if err != nil {
		return err
	}
	defer x.Free()
	for step := 0; ; step++ {
		part := w.Region("a part")
		if err := w.Emit(map[string]any{"step": step, "app": "shown", "unit": nil}); err != nil {
			return err
		}
		if err := w.Emit(map[string]any{"summary": true, "best": step}); err != nil { // not for the page
			return err
		}
		x.Set(0, 0)
		if w.Rank() == 0 {
			whole, err := wholePage(ctx, w, url)
			if err != nil {
				return err
			}
			if whole {
				x.Set(0, 1)
			}
		}
		if err := spmd.Broadcast(w.Comm(), x, 0); err != nil {
			return err
		}
		part.End()
		if x.At(0) == 1 {
			return nil
		}
		<-again.C
	}
}

// wholePage says whether the page has all that it should have by and by.
func wholePage(ctx context.Context, w *spmd.World, url string) (bool, error) {
	text, err := fetched(ctx, url+"/now.json")
	if err != nil {
		return false, err
	}
	var v seenOnPage
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return false, err
	}
	if v.Ranks != w.Size() || v.Device != w.Device() || len(v.Rows) != w.Size() || len(v.Numbers) != 1 ||
		v.Numbers[0].Name != "step" || len(v.Numbers[0].Points) < 1 {
		return false, fmt.Errorf("the page: %s", text)
	}
	for r, row := range v.Rows {
		if row.Rank != r {
			return false, fmt.Errorf("row %d: %s", r, text)
		}
		spent := 0.
		for _, s := range row.Shares {
			spent += s
		}
		if row.Age < 0 || row.Process == 0 || spent == 0 || len(row.Pools) == 0 ||
			row.Pools[0].Used < 4096 || len(v.Regions) != 1 {
			return false, nil
		}
	}
	metrics, err := fetched(ctx, url+"/metrics")
	if err != nil {
		return false, err
	}
	for r := range w.Size() {
		for _, want := range []string{`lockstep_calls_total{phase="collectives",rank="%d"} `,
			`lockstep_region_seconds_total{rank="%d",region="a part"} `,
			`lockstep_process_resident_bytes{rank="%d"} `} {
			if want = fmt.Sprintf(want, r); !strings.Contains(metrics, "\n"+want) {
				return false, fmt.Errorf("/metrics has no %s:\n%s", want, metrics)
			}
		}
	}
	_, err = fetched(ctx, strings.TrimSuffix(url, "f")+"0/metrics")
	if err == nil || !strings.Contains(err.Error(), "403") {
		return false, fmt.Errorf("with another token: %v", err)
	}
	return true, nil
}

// Every rank comes to the page of rank 0: of processes, of goroutines, and of one rank alone.
func TestDashboard(t *testing.T) {
	spmdtest.HostOnly(t, "the ranks are goroutines, too")
	for _, n := range []int{1, 3} {
		at := freePort(t)
		env := []string{dashboardToken + "=0123456789abcdef", dashboardAt + "=" + at}
		status, out := run(t, n, "shown", env, "--dashboard", at, "--log-format", "json")
		if url := fmt.Sprintf(`"url":"http://%s/0123456789abcdef/"`, at); status != 0 || strings.Count(out, url) != 1 {
			t.Errorf("%d ranks: status %d, %s\n%s", n, status, url, out)
		}
	}
	t.Setenv(dashboardToken, "0123456789abcdef")
	t.Setenv(dashboardAt, freePort(t))
	cfg := spmdtest.Config()
	cfg.Dashboard = os.Getenv(dashboardAt)
	must(t, spmd.Local(t.Context(), cfg, 3, shown))
	if _, err := net.Dial("tcp", cfg.Dashboard); err == nil {
		t.Error("the port is open after the end")
	}
}

// An address that cannot be served is refused before the run, on one line, by all ranks alike.
func TestDashboardRefused(t *testing.T) {
	spmdtest.HostOnly(t, "the ranks are on the host")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer taken.Close()
	for _, tc := range []struct{ address, token, want string }{
		{"8080", "", "app: --dashboard 8080: want [HOST]:PORT, such as :8080, or 0.0.0.0:8080 to be " +
			"reached from other machines\n"},
		{taken.Addr().String(), "", "app: --dashboard " + taken.Addr().String() +
			": cannot listen there: bind: address already in use\n"},
		{":0", "secret", "app: LOCKSTEP_DASHBOARD_TOKEN: want 16 letters, digits, - and _, or more\n"},
	} {
		status, out := run(t, 2, "sum", []string{dashboardToken + "=" + tc.token}, "--dashboard", tc.address)
		if status != 2 || strings.Count(out, tc.want) != 1 || strings.Contains(out, "secret") {
			t.Errorf("%s: status %d\n%s", tc.address, status, out)
		}
	}
}
