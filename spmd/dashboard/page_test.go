package dashboard

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/internal/testkit"
	"lockstep/spmd/internal/dashboard"
)

// busyBoard is a board of four ranks on two nodes with GPUs, after two minutes of training.
func busyBoard() *dashboard.Board {
	at := time.Now().Add(-2 * time.Minute)
	b := dashboard.NewBoard(4, at, func() time.Time { return at })
	b.Describe(dashboard.Facts{Program: "train", Nodes: 2, Device: "NVIDIA H200", Collectives: "nccl"})
	for step := range 600 {
		at = at.Add(200 * time.Millisecond)
		x := float64(step)
		b.Set("loss", 2.1+3.4*math.Exp(-x/80)+0.05*math.Sin(x*1.7))
		b.Set("tokens a second", 1.2e6+2e4*math.Sin(x/9))
		b.Set("learning rate", 6e-4*math.Min(1, x/60)*(1-x/900))
		b.Set("gradient norm", 1+0.3*math.Abs(math.Sin(x/3)))
		b.Set("step", x+1)
		if step%5 != 0 {
			continue
		}
		for r := range 4 {
			late := 0.
			if r == 2 {
				late = 0.22
			}
			ns := func(part float64) int64 { return int64(part * x / 5 * 1e9) }
			s := &dashboard.Sample{Rank: r, Node: r / 2, At: ns(1) + 1}
			s.Phases = []dashboard.Phase{{Name: "compute", Count: 1, Nanos: ns(0.55 + late)},
				{Name: "collectives", Count: 3, Nanos: ns(0.31 - late), Meets: true},
				{Name: "streams wait", Count: 1, Nanos: ns(0.4)}, {Name: "program waits", Count: 1, Nanos: ns(0.95)}}
			s.Regions = []dashboard.Phase{{Name: "forward", Count: 1, Nanos: ns((0.55 + late) / 4)},
				{Name: "backward", Count: 1, Nanos: ns((0.55 + late) / 2)}}
			s.Host = fmt.Sprint("gpu-node-", r/2)
			s.Process, s.Free, s.Total = 3<<30+r<<20, (40-36*(r/2))<<30, 512<<30
			s.Pools = []dashboard.Pool{{Kind: "device memory", Used: 61 << 30, Peak: 70 << 30},
				{Kind: "pinned memory", Used: 12 << 20, Peak: 12 << 20}}
			s.GPU = &dashboard.Reading{Name: "NVIDIA H200", MemoryUsed: 75 << 30, MemoryTotal: 139 << 30,
				Clock: 1830 - 300*(r%2), MostClock: 1980, MemoryClock: 3201, Power: 655 + float64(r),
				PowerLimit: 700, Temperature: 61 + 5*r, Busy: 98}
			if r%2 == 1 {
				s.GPU.Slowed = []string{"power limit"}
			}
			b.Hear(s)
		}
	}
	return b
}

// screen is a size of the window, and the colours of the system.
type screen struct {
	name          string
	width, height int
	mobile        bool
	scheme        string
}

var screens = []screen{
	{"phone-light", 360, 740, true, "light"},
	{"phone-dark", 360, 740, true, "dark"},
	{"desktop-light", 1280, 900, false, "light"},
	{"desktop-dark", 1280, 900, false, "dark"},
}

// The page shows the board's contents, on a phone and on a desktop, light and dark, with no error,
// and asks no other server. With LOCKSTEP_AXE, the file axe.js of axe-core, it is also checked for
// contrast, labels and the like. LOCKSTEP_SCREENSHOTS is a folder for pictures of it.
func TestPage(t *testing.T) {
	browser := browse(t)
	b := busyBoard()
	s := served(t, b)
	axe := ""
	if name := os.Getenv("LOCKSTEP_AXE"); name != "" {
		text, err := os.ReadFile(name)
		testkit.Must(t, err)
		axe = string(text)
	} else {
		t.Log("axe-core is not asked: make test-page does")
	}
	for _, screen := range screens {
		browser.call("Emulation.setDeviceMetricsOverride",
			map[string]any{"width": screen.width, "height": screen.height, "deviceScaleFactor": 1,
				"mobile": screen.mobile}, nil)
		browser.call("Emulation.setEmulatedMedia",
			map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": screen.scheme}}},
			nil)
		browser.call("Page.navigate", map[string]any{"url": s.url}, nil)
		browser.until(`document.getElementById("state")?.textContent === "live" && ` +
			`document.querySelectorAll("polyline").length === 5`)
		checkPage(t, browser, screen)
		if axe != "" {
			checkAxe(t, browser, screen, axe)
		}
		picture(t, browser, screen)
	}
	checkKeys(t, browser)
	b.End()
	browser.until(`document.getElementById("state").textContent === "the job has ended"`)

	for _, e := range browser.told("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled") {
		t.Errorf("%s: %s", e.Method, e.Params)
	}
	asked := 0
	for _, e := range browser.told("Network.requestWillBeSent") {
		var r struct{ Request struct{ URL string } }
		testkit.Must(t, json.Unmarshal(e.Params, &r))
		asked++
		if !strings.HasPrefix(r.Request.URL, s.url) && !strings.HasPrefix(r.Request.URL, "data:,") {
			t.Errorf("the page asks %s", r.Request.URL)
		}
	}
	if asked < 4*len(screens) {
		t.Errorf("%d requests were seen", asked)
	}
}

// checkPage looks for the board's contents.
func checkPage(t *testing.T, b *browser, screen screen) {
	t.Helper()
	var got struct {
		Text, Back, Slowest string
		Wide, Rows          int
		Bars                []float64
	}
	b.eval(`({
		text: document.body.innerText, back: getComputedStyle(document.body).backgroundColor,
		slowest: document.querySelector("#phases tr.slowest th").innerText,
		wide: document.documentElement.scrollWidth, rows: document.querySelectorAll("#phases tbody tr").length,
		bars: [...document.querySelectorAll("#phases .bar")].map((bar) => bar.getBoundingClientRect().width),
	})`, &got)
	for _, want := range []string{"train", "4 ranks on 2 nodes, NVIDIA H200, nccl, for 2 min",
		"The others wait for rank 2: it spends 9 % of its time", "another rank 31 %",
		"backward", "loss", "tokens a second", "power limit", "1830 of 1980 MHz", "75.0 GiB of 139 GiB",
		"node 1, gpu-node-1: 4.0 GiB of 512 GiB free, which is little"} {
		if !strings.Contains(got.Text, want) {
			t.Errorf("%s: the page lacks %q:\n%s", screen.name, want, got.Text)
		}
	}
	if got.Rows != 4 || !strings.Contains(got.Slowest, "2") || !strings.Contains(got.Slowest, "slowest") {
		t.Errorf("%s: %d rows, the slowest %q", screen.name, got.Rows, got.Slowest)
	}
	if got.Wide > screen.width {
		t.Errorf("%s: the page is %d wide", screen.name, got.Wide)
	}
	// a wider one looks like a larger share
	if !screen.mobile && (len(got.Bars) < 8 || slices.Max(got.Bars)-slices.Min(got.Bars) > 1) {
		t.Errorf("%s: bars of widths %v", screen.name, got.Bars)
	}
	if want := map[string]string{"light": "rgb(246, 247, 248)",
		"dark": "rgb(20, 23, 27)"}[screen.scheme]; got.Back != want {
		t.Errorf("%s: the background is %s, want %s", screen.name, got.Back, want)
	}
}

// checkAxe has axe-core look at the page.
func checkAxe(t *testing.T, b *browser, screen screen, axe string) {
	t.Helper()
	b.eval(axe+"\n;true", nil)
	var found []struct {
		ID, Help string
		Nodes    []struct{ HTML, FailureSummary string }
	}
	b.eval(`axe.run().then((r) => r.violations)`, &found)
	for _, v := range found {
		t.Errorf("%s: %s: %s: %+v", screen.name, v.ID, v.Help, v.Nodes)
	}
	var passed int
	b.eval(`axe.run().then((r) => r.passes.length)`, &passed)
	if passed < 20 {
		t.Errorf("%s: axe-core has looked at %d rules", screen.name, passed)
	}
}

// picture keeps a picture of the page.
func picture(t *testing.T, b *browser, screen screen) {
	t.Helper()
	dir := os.Getenv("LOCKSTEP_SCREENSHOTS")
	if dir == "" {
		return
	}
	var shot struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true}, &shot)
	png, err := base64.StdEncoding.DecodeString(shot.Data)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, screen.name+".png"), png, 0o666)
	}
	if err != nil {
		t.Error(err)
	}
}

// checkKeys uses the page without a pointer.
func checkKeys(t *testing.T, b *browser) {
	t.Helper()
	key := func(name string, code int) {
		text := ""
		if name == " " {
			text = " "
		}
		b.call("Input.dispatchKeyEvent", map[string]any{"type": "keyDown", "key": name, "code": name,
			"windowsVirtualKeyCode": code, "text": text}, nil)
		b.call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": name, "code": name,
			"windowsVirtualKeyCode": code}, nil)
	}
	b.eval(`document.activeElement.blur(), true`, nil)
	var stops []string
	for range 12 {
		key("Tab", 9)
		var at string
		b.eval(`(document.activeElement.id || document.activeElement.tagName + " " + `+
			`(document.activeElement.getAttribute("aria-label") || document.activeElement.textContent)).split(":")[0]`,
			&at)
		stops = append(stops, at)
	}
	want := []string{"A To the numbers", "range", "theme", "log", "pause", "DIV loss",
		"DIV tokens a second", "DIV learning rate", "DIV gradient norm", "DIV step", "phases", "regions"}
	if strings.Join(stops, ", ") != strings.Join(want, ", ") {
		t.Errorf("Tab goes to %q, want %q", stops, want)
	}
	b.eval(`document.querySelector(".card").focus(), true`, nil)
	key("Home", 36)
	b.until(`document.querySelector(".card .value").textContent.endsWith(" at 0 s")`)
	key("ArrowRight", 39)
	key("Escape", 27)
	b.until(`!document.querySelector(".card .value").textContent.includes(" at ")`)
	b.eval(`document.getElementById("pause").focus(), true`, nil)
	key(" ", 32)
	b.until(`document.getElementById("pause").getAttribute("aria-pressed") === "true" && ` +
		`document.getElementById("state").textContent === "paused"`)
	key(" ", 32)
	b.until(`document.getElementById("state").textContent === "live"`)
	b.eval(`document.getElementById("theme").value = "light", `+
		`document.getElementById("theme").dispatchEvent(new Event("change")), true`, nil)
	b.until(`getComputedStyle(document.body).backgroundColor === "rgb(246, 247, 248)"`)
}
