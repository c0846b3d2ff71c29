package checkpoint_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/checkpoint"
	"lockstep/spmd/spmdtest"
)

// Every number of ranks loads what every number of ranks saved.
func TestCheckpointRanks(t *testing.T) {
	dir := sharedDir(t)
	ranks := testkit.Some(t, "numbers of ranks that save a checkpoint, and that load it",
		[]int{1, 2, 3, 4}, func(n int) bool { return n == 2 || n == 3 })
	meta := someMeta{math.Nextafter(0.1, 1), math.MaxUint64, []int{3, 1, 2}}
	t.Run("save", func(t *testing.T) {
		spmdtest.Run(t, ranks, func(t *testing.T, w *spmd.World) {
			c := open(t, w, filepath.Join(dir, strconv.Itoa(w.Size())), 0)
			all := everyType(t, w, 1)
			setAll(t, all, w.Size())
			spmdtest.Must(t, c.Save(100, meta, items(all)...))
			setAll(t, all, 0) // the values at the call are saved
			spmdtest.Must(t, c.Wait())
			spmdtest.Must(t, c.Close())
		})
	})
	t.Run("load", func(t *testing.T) {
		spmdtest.Run(t, ranks, func(t *testing.T, w *spmd.World) {
			all := everyType(t, w, 2)
			loaded := 0
			for _, n := range []int{1, 2, 3, 4} {
				from := filepath.Join(dir, strconv.Itoa(n))
				if _, err := os.Stat(from); err != nil {
					continue // SPMDTEST_RANKS
				}
				loaded++
				c := open(t, w, from, 0)
				var got someMeta
				step, err := c.Load(&got, items(all)...)
				spmdtest.Must(t, err)
				if step != 100 || fmt.Sprint(got) != fmt.Sprint(meta) {
					t.Fatalf("from %d ranks: step %d, %v", n, step, got)
				}
				checkAll(t, all, n)
				setAll(t, all, 0)
				some := all[len(all)-3:]
				_, err = c.Load(nil, items(some)...)
				spmdtest.Must(t, err)
				checkAll(t, some, n)
				checkAll(t, all[:len(all)-3], 0)
				spmdtest.Must(t, c.Close())
			}
			if loaded == 0 {
				t.Fatal("nothing was saved")
			}
		})
	})
}

// A file is read as any other reader of the format would.
func TestCheckpointFormat(t *testing.T) {
	dir := sharedDir(t)
	spmdtest.Run(t, []int{2}, func(t *testing.T, w *spmd.World) {
		c := open(t, w, dir, 0)
		x := spmdtest.Alloc[float32](t, w, 3)
		y := spmdtest.Alloc[float64](t, w, 2)
		spmdtest.Must(t, x.CopyFrom([]float32{1, 2, 3}))
		spmdtest.Must(t, y.SetAll(float64(w.Rank())))
		spmdtest.Must(t, c.Save(1, nil, checkpoint.Replicated("x", x), checkpoint.Sharded("y", y, 2*w.Rank(), 4)))
		spmdtest.Must(t, c.Wait())
		b, err := os.ReadFile(filepath.Join(dir, "step-00000001", "shard-00001-of-00002.safetensors"))
		spmdtest.Must(t, err)
		header := `{"y":{"dtype":"F64","shape":[2],"data_offsets":[0,16]},` +
			`"x":{"dtype":"F32","shape":[1],"data_offsets":[16,20]}}`
		n := (len(header) + 7) / 8 * 8
		want := append([]byte{byte(n), 0, 0, 0, 0, 0, 0, 0}, fmt.Sprintf("%-*s", n, header)...)
		want = append(want, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0, 0, 0x40, 0x40)
		if !bytes.Equal(b, want) {
			t.Fatalf("got  %q\nwant %q", b, want)
		}
	})
}

// Bad arguments of saves and loads are errors on all ranks, which go on.
func TestCheckpointRefuses(t *testing.T) {
	dir := sharedDir(t)
	spmdtest.Run(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		last := w.Rank() == w.Size()-1
		dir := filepath.Join(dir, strconv.Itoa(w.Size()))
		c := open(t, w, dir, 0)
		x, y := spmdtest.Alloc[float32](t, w, 10), spmdtest.Alloc[float64](t, w, 10)
		spmdtest.Must(t, x.SetAll(1))
		spmdtest.Must(t, y.SetAll(1))
		gone := spmdtest.Alloc[float32](t, w, 10)
		spmdtest.Must(t, gone.Free())
		expect := func(what string, err error) {
			t.Helper()
			if err == nil || !strings.Contains(err.Error(), what) {
				t.Fatalf("rank %d: got %v, want %s", w.Rank(), err, what)
			}
		}
		name, step, meta := "x", 1, 1
		if last {
			name, step, meta = "other", 2, 2
		}
		all := []checkpoint.Item{checkpoint.Replicated("x", x), checkpoint.Sharded("y", y, 10*w.Rank(), 10*w.Size())}
		_, err := c.Load(nil, all...)
		if !errors.Is(err, checkpoint.ErrNotFound) || !strings.Contains(err.Error(), "checkpoint_test.go") {
			t.Fatalf("an empty folder: %v", err)
		}
		if w.Size() > 1 {
			expect("the ranks do not say the same", c.Save(step, nil, all...))
			expect("meta", c.Save(1, meta, all...))
			expect(`array "`+name, c.Save(1, nil, checkpoint.Replicated(name, x)))
			expect(fmt.Sprintf("%d arrays", step), c.Save(1, nil, all[:step]...))
			expect(`"y": element 0 is in the parts of two`, c.Save(1, nil, checkpoint.Sharded("y", y, 0, 10*w.Size())))
		}
		expect("is in no rank's part", c.Save(1, nil, checkpoint.Sharded("y", y, 10*w.Rank(), 10*w.Size()+1)))
		expect("negative step", c.Save(-1, nil, all...))
		expect("unsupported value", c.Save(1, math.NaN(), all...))
		expect("two arrays", c.Save(1, nil, all[0], all[0]))
		expect("without a name", c.Save(1, nil, checkpoint.Replicated("", x)))
		expect("of 5", c.Save(1, nil, checkpoint.Sharded("x", x, 0, 5)))
		expect("of 10", c.Save(1, nil, checkpoint.Sharded("x", x, -1, 10)))
		expect("was freed at", c.Save(1, nil, checkpoint.Replicated("gone", gone)))
		if last {
			all = append(all, checkpoint.Replicated("gone", gone))
		} else {
			all = append(all, checkpoint.Replicated("gone", x))
		}
		expect("was freed at", c.Save(1, nil, all...))
		all = all[:2]
		if _, err := checkpoint.Open(w, "", checkpoint.Config{}); err == nil {
			t.Fatal("a folder without a name")
		}
		file := filepath.Join(dir, "file")
		spmdtest.Must(t, os.WriteFile(file, nil, 0o666))
		_, err = checkpoint.Open(w, file, checkpoint.Config{})
		expect("not a directory", err)

		spmdtest.Must(t, c.Save(1, "text", all...))
		spmdtest.Must(t, c.Wait())
		spmdtest.Must(t, x.SetAll(2))
		load := func(meta any, items ...checkpoint.Item) error { _, err := c.Load(meta, items...); return err }
		expect(`no array "z"`, load(nil, checkpoint.Replicated("z", x)))
		expect(`"x" as 10 F32, the program as 10 F64`, load(nil, checkpoint.Replicated("x", y)))
		expect(`"x" as 10 F32, the program as 9 F32`, load(nil, checkpoint.Replicated("x", x.Slice(0, 9))))
		if w.Size() > 1 {
			expect("the ranks do not say the same", load(nil, checkpoint.Replicated(name, x)))
		}
		var number int
		expect("meta", load(&number, checkpoint.Replicated("x", spmdtest.Alloc[float32](t, w, 10))))
		if x.At(0) != 2 {
			t.Fatal("an array was changed by a Load that failed")
		}
		spmdtest.Must(t, c.Close())
		spmdtest.Must(t, c.Close())
		expect("closed", c.Save(2, nil, all...))
		expect("closed", load(nil, all...))
	})
}

// names lists a folder, without the lock of a program that saves into it, and without rank 0's
// files while it gives the lock back.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	spmdtest.Must(t, err)
	var list []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".lock") {
			list = append(list, e.Name())
		}
	}
	return list
}

// The last saves are the newest, whatever their step. Leftovers go, and other files stay.
func TestCheckpointKeep(t *testing.T) {
	dir := sharedDir(t)
	spmdtest.Run(t, []int{2}, func(t *testing.T, w *spmd.World) {
		all := bothKinds[float32](t, w, 10, 0)
		foreign := []string{"notes.txt", "step-1", "step-00000003.tmp-zz", "step-000000004",
			"step-00000900.tmp-0000000000000000"}
		if w.Rank() == 0 {
			for _, name := range foreign {
				spmdtest.Must(t, os.Mkdir(filepath.Join(dir, name), 0o777))
				spmdtest.Must(t, os.WriteFile(filepath.Join(dir, name, "mine"), nil, 0o666))
			}
			for _, name := range []string{"step-00000800", "step-00000801.tmp-0123456789abcdef", "step-00000802.old"} {
				spmdtest.Must(t, os.Mkdir(filepath.Join(dir, name), 0o777))
				spmdtest.Must(t, os.WriteFile(filepath.Join(dir, name,
					"shard-00000-of-00002.safetensors.part"), nil, 0o666))
			}
			spmdtest.Must(t, os.WriteFile(filepath.Join(dir, ".probe-0123"), nil, 0o666))
		}
		spmdtest.Must(t, spmd.Barrier(w.Comm()))
		c := open(t, w, dir, 2)
		*w.Log() = zerolog.Nop()
		if _, err := c.Load(nil, items(all)...); !errors.Is(err, checkpoint.ErrNotFound) {
			t.Fatalf("only leftovers: %v", err)
		}
		var kept []string
		for i, step := range []int{10, 20, 30, 5, 30, 7} {
			setAll(t, all, i)
			spmdtest.Must(t, c.Save(step, nil, items(all)...))
			spmdtest.Must(t, c.Wait())
			name := fmt.Sprintf("step-%08d", step)
			kept = append(slices.DeleteFunc(kept, func(k string) bool { return k == name }), name)
			kept = kept[max(0, len(kept)-2):]
			want := slices.Sorted(slices.Values(append(slices.Clone(foreign), kept...)))
			if got := names(t, dir); !slices.Equal(got, want) {
				t.Fatalf("after step %d: %v, want %v", step, got, want)
			}
			spmdtest.Must(t, spmd.Barrier(w.Comm()))
			if i == 3 { // a program that starts again knows the newest
				spmdtest.Must(t, c.Close())
				c = open(t, w, dir, 2)
			}
		}
		setAll(t, all, 100)
		step, err := c.Load(nil, items(all)...)
		spmdtest.Must(t, err)
		if step != 7 {
			t.Fatalf("loaded step %d", step)
		}
		checkAll(t, all, 5)
	})
}

// The test flips a bit or truncates at 200 random places, removes files, and breaks their contents.
func TestCheckpointDamage(t *testing.T) {
	dir := sharedDir(t)
	rounds := testkit.Few(t, "damaged files", 40, 200)
	spmdtest.Run(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		dir := filepath.Join(dir, strconv.Itoa(w.Size()))
		c := open(t, w, dir, 0)
		all := append(bothKinds[float32](t, w, 101, 0), bothKinds[uint8](t, w, 30, 0)...)
		for step := 1; step <= 2; step++ {
			setAll(t, all, step)
			spmdtest.Must(t, c.Save(step, nil, items(all)...))
			spmdtest.Must(t, c.Wait())
		}
		var log bytes.Buffer
		*w.Log() = zerolog.New(&log)
		rng := rand.New(rand.NewPCG(1, uint64(w.Size())))
		files := names(t, filepath.Join(dir, "step-00000002"))
		if len(files) != w.Size()+2 {
			t.Fatal(files)
		}
		for round := range rounds + 2*len(files) {
			path := filepath.Join(dir, "step-00000002", files[round%len(files)])
			good, err := os.ReadFile(path)
			spmdtest.Must(t, err)
			bad := bytes.Clone(good)
			what := ""
			switch at := rng.IntN(len(good)); {
			case round >= rounds+len(files):
				bad = append(bad, 0)
				what = "one more byte"
			case round >= rounds:
				what = "removed"
			case round/len(files)%4 == 3:
				bad = bad[:at]
				what = fmt.Sprintf("cut at %d", at)
			default:
				bit := rng.IntN(8)
				bad[at] ^= 1 << bit
				what = fmt.Sprintf("bit %d of byte %d", bit, at)
			}
			spmdtest.Must(t, spmd.Barrier(w.Comm()))
			if w.Rank() == 0 {
				spmdtest.Must(t, os.WriteFile(path, bad, 0o666))
				if what == "removed" {
					spmdtest.Must(t, os.Remove(path))
				}
			}
			spmdtest.Must(t, spmd.Barrier(w.Comm()))
			setAll(t, all, 0)
			log.Reset()
			step, err := c.Load(nil, items(all)...)
			if err != nil || step != 1 {
				t.Fatalf("%s, %s: step %d, %v", path, what, step, err)
			}
			checkAll(t, all, 1)
			if w.Rank() == 0 && !strings.Contains(log.String(), path) {
				// Nobody can tell whether the marker or the index is wrong.
				if other := filepath.Join(filepath.Dir(path), "COMPLETE"); filepath.Base(path) != "index.json" ||
					!strings.Contains(log.String(), other) {
					t.Fatalf("%s, %s: the warning does not name it: %s", path, what, &log)
				}
			}
			spmdtest.Must(t, spmd.Barrier(w.Comm()))
			if w.Rank() == 0 {
				spmdtest.Must(t, os.WriteFile(path, good, 0o666))
			}
		}
		spmdtest.Must(t, spmd.Barrier(w.Comm()))
		step, err := c.Load(nil, items(all)...)
		spmdtest.Must(t, err)
		if step != 2 {
			t.Fatalf("undamaged again, and step %d is loaded", step)
		}
		checkAll(t, all, 2)

		// All damaged is not the same as none: no program may start anew over them.
		setAll(t, all, 9)
		spmdtest.Must(t, spmd.Barrier(w.Comm()))
		if w.Rank() == 0 {
			for _, step := range []string{"step-00000001", "step-00000002"} {
				spmdtest.Must(t, os.Truncate(filepath.Join(dir, step, files[2]), 5))
			}
		}
		spmdtest.Must(t, spmd.Barrier(w.Comm()))
		if _, err := c.Load(nil, items(all)...); err == nil || errors.Is(err, checkpoint.ErrNotFound) ||
			!strings.Contains(err.Error(), files[2]) {
			t.Fatalf("all are damaged: %v", err)
		}
		checkAll(t, all, 9)
		// Damaged checkpoints do not count to Keep.
		for step := 3; step <= 5; step++ {
			spmdtest.Must(t, c.Save(step, nil, items(all)...))
			spmdtest.Must(t, c.Wait())
			if got := names(t, dir); slices.Contains(got, "step-00000001") != (step < 5) {
				t.Fatalf("after step %d: %v", step, got)
			}
			spmdtest.Must(t, spmd.Barrier(w.Comm()))
		}
	})
}

// The folder is this program's until the last Close. A program that only loads needs no lock and
// cannot save. After another program has taken the folder over, no save gets complete.
func TestCheckpointLock(t *testing.T) {
	dir := sharedDir(t)
	spmdtest.Run(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		dir := filepath.Join(dir, strconv.Itoa(w.Size()))
		lock := filepath.Join(dir, ".lock")
		all := bothKinds[float32](t, w, 11, 0)
		read := func(dir string) (*checkpoint.Manager, error) {
			return checkpoint.Open(w, dir, checkpoint.Config{ReadOnly: true})
		}
		if _, err := read(dir); !errors.Is(err, os.ErrNotExist) && !strings.Contains(err.Error(), "no such file") {
			t.Fatalf("a folder that is not there, to load only: %v", err)
		}
		there := func(want bool) {
			t.Helper()
			spmdtest.Must(t, spmd.Barrier(w.Comm()))
			if _, err := os.Stat(lock); (err == nil) != want {
				t.Fatalf("the lock is there: %v, want %v", err == nil, want)
			}
			spmdtest.Must(t, spmd.Barrier(w.Comm()))
		}
		one := open(t, w, dir, 0)
		there(true)
		two := open(t, w, dir, 0) // this program once more
		spmdtest.Must(t, one.Close())
		there(true)
		setAll(t, all, 1)
		spmdtest.Must(t, two.Save(1, nil, items(all)...))
		spmdtest.Must(t, two.Wait())
		r, err := read(dir)
		spmdtest.Must(t, err)
		setAll(t, all, 0)
		_, err = r.Load(nil, items(all)...)
		spmdtest.Must(t, err)
		checkAll(t, all, 1)
		testkit.Refused(t, r.Save(2, nil, items(all)...), "to load only")
		spmdtest.Must(t, r.Close())
		there(true)
		spmdtest.Must(t, two.Close())
		there(false)

		c := open(t, w, dir, 0)
		if w.Rank() == 0 {
			spmdtest.Must(t, os.WriteFile(lock+"new",
				[]byte(`{"session":"0123456789abcdef","host":"h9","pid":4711}`), 0o666))
			spmdtest.Must(t, os.Rename(lock+"new", lock))
		}
		spmdtest.Must(t, spmd.Barrier(w.Comm()))
		spmdtest.Must(t, c.Save(3, nil, items(all)...))
		testkit.Refused(t, c.Wait(), "taken over by", "host h9, process 4711")
		if got := names(t, dir); !slices.Equal(got, []string{"step-00000001"}) {
			t.Fatalf("%v is there", got)
		}
		spmdtest.Must(t, c.Close())
		there(true) // that of the other
	})
}

func reduce(t *testing.T, w *spmd.World, v int64) int64 {
	t.Helper()
	x := spmdtest.Alloc[int64](t, w, 1)
	spmdtest.Must(t, x.SetAll(v))
	spmdtest.Must(t, spmd.AllReduce(w.Comm(), x, x, spmd.Sum))
	return x.At(0)
}

// When the marker gets its name, all that it stands for is on disk.
func TestCheckpointOrder(t *testing.T) {
	dir := sharedDir(t)
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		c := open(t, w, dir, 0)
		var mu sync.Mutex
		var dirty []string // files and folders that were changed after their last sync
		markers := 0
		fault(t, func(op, path string) error {
			mu.Lock()
			defer mu.Unlock()
			switch op {
			case "write":
				dirty = append(dirty, path)
				return nil
			case "sync":
				dirty = slices.DeleteFunc(dirty, func(d string) bool { return d == path })
				return nil
			case "rename":
				for _, d := range dirty {
					if d == path+".part" || filepath.Base(path) == "COMPLETE" && d != filepath.Dir(path) ||
						filepath.Dir(path) == dir && strings.Contains(d, ".tmp-") {
						t.Errorf("%s gets its name before %s is synced", path, d)
					}
				}
				markers += b2i(filepath.Base(path) == "COMPLETE")
			}
			dirty = append(dirty, filepath.Dir(path))
			return nil
		})
		all := bothKinds[float32](t, w, 11, 0)
		setAll(t, all, 1)
		spmdtest.Must(t, c.Save(10, nil, items(all)...))
		spmdtest.Must(t, c.Wait())
		spmdtest.Must(t, c.Save(10, nil, items(all)...))
		spmdtest.Must(t, c.Close())
		if markers != 2 {
			t.Errorf("%d markers", markers)
		}
	})
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Save returns while the files cannot be written yet, and the next one waits.
func TestCheckpointBackground(t *testing.T) {
	dir := sharedDir(t)
	spmdtest.Run(t, []int{2}, func(t *testing.T, w *spmd.World) {
		c := open(t, w, dir, 0)
		all := bothKinds[float32](t, w, 11, 0)
		setAll(t, all, 1)
		release := make(chan struct{})
		fault(t, func(op, path string) error { <-release; return nil })
		spmdtest.Must(t, c.Save(1, nil, items(all)...))
		setAll(t, all, 2)
		spmdtest.Must(t, spmd.Barrier(w.Comm()))
		if got := names(t, dir); len(got) != 0 {
			t.Fatalf("%v is there", got)
		}
		spmdtest.Must(t, spmd.Barrier(w.Comm()))
		close(release)
		spmdtest.Must(t, c.Save(2, nil, items(all)...))
		if !slices.Contains(names(t, dir), "step-00000001") {
			t.Fatal("the second Save does not wait for the first")
		}
		setAll(t, all, 0)
		step, err := c.Load(nil, items(all)...) // waits for the second
		spmdtest.Must(t, err)
		if step != 2 {
			t.Fatalf("loaded step %d", step)
		}
		checkAll(t, all, 2)
	})
}
