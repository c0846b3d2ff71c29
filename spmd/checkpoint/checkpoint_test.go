package checkpoint_test

import (
	"bytes"
	"context"
	"encoding/json"
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
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"lockstep/internal/mpirun"
	"lockstep/spmd"
	"lockstep/spmd/checkpoint"
	"lockstep/spmd/internal/files"
	"lockstep/spmd/spmdtest"
)

// checkpointDir is a folder that all processes of a test share. The ranks are told with the test.
const checkpointDir = "SPMDTEST_CHECKPOINTS"

func sharedDir(t *testing.T) string {
	if os.Getenv(checkpointDir) == "" {
		t.Setenv(checkpointDir, t.TempDir())
	}
	return os.Getenv(checkpointDir)
}

func open(t *testing.T, w *spmd.World, dir string, keep int) *checkpoint.Manager {
	t.Helper()
	c, err := checkpoint.Open(w, dir, checkpoint.Config{Keep: keep})
	spmdtest.Must(t, err)
	return c
}

// array is an item and what it should hold.
type array struct {
	item  checkpoint.Item
	set   func(salt int) error
	check func(salt int) error
}

func element[T spmd.Elem](i, salt int) T { return T((i*7 + salt*31) % 113) }

func arrayOf[T spmd.Elem](t *testing.T, w *spmd.World, name string, n, off, total int, replicated bool) array {
	t.Helper()
	b := spmdtest.Alloc[T](t, w, n)
	h := make([]T, n)
	a := array{
		item: checkpoint.Sharded(name, b, off, total),
		set: func(salt int) error {
			for i := range h {
				h[i] = element[T](off+i, salt)
			}
			return b.CopyFrom(h)
		},
		check: func(salt int) error {
			if err := b.CopyTo(h); err != nil {
				return err
			}
			for i, v := range h {
				if want := element[T](off+i, salt); v != want {
					return fmt.Errorf("%s[%d] = %v, want %v", name, off+i, v, want)
				}
			}
			return nil
		},
	}
	if replicated {
		a.item = checkpoint.Replicated(name, b)
	}
	return a
}

// bothKinds has total elements of T as a replicated array and as a sharded one; the
// rank's part of that depends on turn.
func bothKinds[T spmd.Elem](t *testing.T, w *spmd.World, total, turn int) []array {
	t.Helper()
	var z T
	s := spmd.ShardOf(total, (w.Rank()+turn)%w.Size(), w.Size())
	name := fmt.Sprintf("%T of %d/", z, total)
	return []array{
		arrayOf[T](t, w, name+"sharded", s.Len, s.Off, total, false),
		arrayOf[T](t, w, name+"replicated", total, 0, total, true),
	}
}

func items(all []array) []checkpoint.Item {
	var list []checkpoint.Item
	for _, a := range all {
		list = append(list, a.item)
	}
	return list
}

func setAll(t *testing.T, all []array, salt int) {
	t.Helper()
	for _, a := range all {
		spmdtest.Must(t, a.set(salt))
	}
}

func checkAll(t *testing.T, all []array, salt int) {
	t.Helper()
	for _, a := range all {
		spmdtest.Must(t, a.check(salt))
	}
}

// everyType has arrays of all element types: none, one, fewer than ranks, odd, and one
// that is longer than a chunk of a file and than what is copied at once.
func everyType(t *testing.T, w *spmd.World, turn int) []array {
	var all []array
	for _, n := range []int{0, 1, 3, 1001} {
		all = append(all, bothKinds[int8](t, w, n, turn)...)
		all = append(all, bothKinds[uint8](t, w, n, turn)...)
		all = append(all, bothKinds[int32](t, w, n, turn)...)
		all = append(all, bothKinds[uint32](t, w, n, turn)...)
		all = append(all, bothKinds[int64](t, w, n, turn)...)
		all = append(all, bothKinds[uint64](t, w, n, turn)...)
		all = append(all, bothKinds[spmd.F16](t, w, n, turn)...)
		all = append(all, bothKinds[spmd.BF16](t, w, n, turn)...)
		all = append(all, bothKinds[float32](t, w, n, turn)...)
		all = append(all, bothKinds[float64](t, w, n, turn)...)
	}
	return append(all, bothKinds[float32](t, w, 2_500_003, turn)...)
}

type someMeta struct {
	LR    float64
	Seed  uint64
	Order []int
}

// TestCheckpointRanks loads on every number of ranks what was saved on every number.
func TestCheckpointRanks(t *testing.T) {
	dir := sharedDir(t)
	meta := someMeta{math.Nextafter(0.1, 1), math.MaxUint64, []int{3, 1, 2}}
	t.Run("save", func(t *testing.T) {
		spmdtest.Run(t, []int{1, 2, 3, 4}, func(t *testing.T, w *spmd.World) {
			c := open(t, w, filepath.Join(dir, strconv.Itoa(w.Size())), 0)
			all := everyType(t, w, 1)
			setAll(t, all, w.Size())
			spmdtest.Must(t, c.Save(100, meta, items(all)...))
			setAll(t, all, 0) // what is saved are the values at the call
			spmdtest.Must(t, c.Wait())
			spmdtest.Must(t, c.Close())
		})
	})
	t.Run("load", func(t *testing.T) {
		spmdtest.Run(t, []int{1, 2, 3, 4}, func(t *testing.T, w *spmd.World) {
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

// TestCheckpointFormat reads a file as any other reader of the format would.
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
		header := `{"y":{"dtype":"F64","shape":[2],"data_offsets":[0,16]},"x":{"dtype":"F32","shape":[1],"data_offsets":[16,20]}}`
		n := (len(header) + 7) / 8 * 8
		want := append([]byte{byte(n), 0, 0, 0, 0, 0, 0, 0}, fmt.Sprintf("%-*s", n, header)...)
		want = append(want, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0, 0, 0x40, 0x40)
		if !bytes.Equal(b, want) {
			t.Fatalf("got  %q\nwant %q", b, want)
		}
	})
}

// TestCheckpointRefuses gives what no checkpoint can be made of or loaded into; all
// ranks get the error, and go on.
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

// names lists a folder, but for the lock of who saves into it, and what rank 0 makes
// while it gives that back.
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

// TestCheckpointKeep: the newest are those saved last, whatever their step; leftovers
// go, and what is somebody else's stays.
func TestCheckpointKeep(t *testing.T) {
	dir := sharedDir(t)
	spmdtest.Run(t, []int{2}, func(t *testing.T, w *spmd.World) {
		all := bothKinds[float32](t, w, 10, 0)
		foreign := []string{"notes.txt", "step-1", "step-00000003.tmp-zz", "step-000000004", "step-00000900.tmp-0000000000000000"}
		if w.Rank() == 0 {
			for _, name := range foreign {
				spmdtest.Must(t, os.Mkdir(filepath.Join(dir, name), 0o777))
				spmdtest.Must(t, os.WriteFile(filepath.Join(dir, name, "mine"), nil, 0o666))
			}
			for _, name := range []string{"step-00000800", "step-00000801.tmp-0123456789abcdef", "step-00000802.old"} {
				spmdtest.Must(t, os.Mkdir(filepath.Join(dir, name), 0o777))
				spmdtest.Must(t, os.WriteFile(filepath.Join(dir, name, "shard-00000-of-00002.safetensors.part"), nil, 0o666))
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
			if i == 3 { // a program that starts again knows what is newest
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

// TestCheckpointDamage flips a bit or truncates at 200 random places, takes away files,
// and breaks what they say.
func TestCheckpointDamage(t *testing.T) {
	dir := sharedDir(t)
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
		for round := range 200 + 2*len(files) {
			path := filepath.Join(dir, "step-00000002", files[round%len(files)])
			good, err := os.ReadFile(path)
			spmdtest.Must(t, err)
			bad := bytes.Clone(good)
			what := ""
			switch at := rng.IntN(len(good)); {
			case round >= 200+len(files):
				bad = append(bad, 0)
				what = "one more byte"
			case round >= 200:
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
				// Of marker and index nobody can tell which is wrong.
				if other := filepath.Join(filepath.Dir(path), "COMPLETE"); filepath.Base(path) != "index.json" || !strings.Contains(log.String(), other) {
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

		// Where all are damaged that is not the same as none: nobody may start anew over it.
		setAll(t, all, 9)
		spmdtest.Must(t, spmd.Barrier(w.Comm()))
		if w.Rank() == 0 {
			for _, step := range []string{"step-00000001", "step-00000002"} {
				spmdtest.Must(t, os.Truncate(filepath.Join(dir, step, files[2]), 5))
			}
		}
		spmdtest.Must(t, spmd.Barrier(w.Comm()))
		if _, err := c.Load(nil, items(all)...); err == nil || errors.Is(err, checkpoint.ErrNotFound) || !strings.Contains(err.Error(), files[2]) {
			t.Fatalf("all are damaged: %v", err)
		}
		checkAll(t, all, 9)
		// Damaged ones do not count among those that are kept.
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

// TestCheckpointLock: the folder is this program's until the last Close; a program that
// only loads needs no lock and cannot save; and where another program has taken the
// folder over, no save gets complete.
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
		if err := r.Save(2, nil, items(all)...); err == nil || !strings.Contains(err.Error(), "to load only") {
			t.Fatalf("saved by who only loads: %v", err)
		}
		spmdtest.Must(t, r.Close())
		there(true)
		spmdtest.Must(t, two.Close())
		there(false)

		c := open(t, w, dir, 0)
		if w.Rank() == 0 {
			spmdtest.Must(t, os.WriteFile(lock+"new", []byte(`{"session":"0123456789abcdef","host":"h9","pid":4711}`), 0o666))
			spmdtest.Must(t, os.Rename(lock+"new", lock))
		}
		spmdtest.Must(t, spmd.Barrier(w.Comm()))
		spmdtest.Must(t, c.Save(3, nil, items(all)...))
		if err := c.Wait(); err == nil || !strings.Contains(err.Error(), "taken over by") || !strings.Contains(err.Error(), "host h9, process 4711") {
			t.Fatalf("saved into another program's folder: %v", err)
		}
		if got := names(t, dir); !slices.Equal(got, []string{"step-00000001"}) {
			t.Fatalf("%v is there", got)
		}
		spmdtest.Must(t, c.Close())
		there(true) // that of the other
	})
}

// fault has fn called before every change of checkpoints on disk.
func fault(t *testing.T, fn func(op, path string) error) {
	files.Fault = fn
	t.Cleanup(func() { files.Fault = nil })
}

var errFault = errors.New("injected")

// TestCheckpointFaults fails every change on disk in turn, alone, as a full disk would,
// and together with all that follow, which leaves what a crash would leave there.
func TestCheckpointFaults(t *testing.T) {
	dir := sharedDir(t)
	spmdtest.Run(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		all := bothKinds[float32](t, w, 11, 0)
		*w.Log() = zerolog.Nop()
		for _, crash := range []bool{false, true} {
			for _, again := range []bool{false, true} { // the step that is there already
				for victim := 0; victim < w.Size(); victim += max(1, w.Size()-1) {
					stride := int64(1)
					if victim == 0 && w.Size() > 1 {
						stride = 3 // rank 0 alone goes through all
					}
					for k := stride; ; k += stride {
						dir := filepath.Join(dir, fmt.Sprint(w.Size(), crash, again, victim, k))
						c := open(t, w, dir, 1)
						setAll(t, all, 1)
						spmdtest.Must(t, c.Save(10, "first", items(all)...))
						spmdtest.Must(t, c.Wait())
						second := 20
						if again {
							second = 10
						}
						var n atomic.Int64
						fault(t, func(op, path string) error {
							if i := n.Add(1); i == k || crash && i > k {
								return fmt.Errorf("%w: %w", errFault, syscall.ENOSPC)
							}
							return nil
						})
						if w.Rank() != victim {
							files.Fault = nil
						}
						setAll(t, all, 2)
						spmdtest.Must(t, c.Save(second, "second", items(all)...))
						err := c.Wait()
						files.Fault = nil
						hit := int64(0)
						if w.Rank() == victim && n.Load() >= k {
							hit = 1
						}
						if err != nil && (!strings.Contains(err.Error(), "no space left") || !strings.Contains(err.Error(), dir)) {
							t.Fatalf("change %d: %v", k, err)
						}
						if crash { // a new program
							c = open(t, w, dir, 1)
						} else if err != nil && w.Rank() == 0 {
							for _, name := range names(t, dir) {
								if strings.Contains(name, "tmp") || strings.Contains(name, "old") {
									t.Fatalf("change %d: %s is left", k, name)
								}
							}
						}
						setAll(t, all, 0)
						var meta string
						step, loadErr := c.Load(&meta, items(all)...)
						spmdtest.Must(t, loadErr)
						switch {
						case meta == "second" && step == second:
							checkAll(t, all, 2)
						case meta == "first" && step == 10 && err != nil:
							checkAll(t, all, 1)
						default:
							t.Fatalf("change %d: after %v step %d is loaded, %s", k, err, step, meta)
						}
						// The next save goes through, and cleans up.
						setAll(t, all, 3)
						spmdtest.Must(t, c.Save(30, "third", items(all)...))
						spmdtest.Must(t, c.Wait())
						if got := names(t, dir); !slices.Equal(got, []string{"step-00000030"}) {
							t.Fatalf("change %d: %v is left", k, got)
						}
						spmdtest.Must(t, c.Close())
						if total := reduce(t, w, hit); total == 0 {
							if k < 8 {
								t.Fatalf("only %d changes on disk", k-1)
							}
							break
						}
					}
				}
			}
		}
	})
}

func reduce(t *testing.T, w *spmd.World, v int64) int64 {
	t.Helper()
	x := spmdtest.Alloc[int64](t, w, 1)
	spmdtest.Must(t, x.SetAll(v))
	spmdtest.Must(t, spmd.AllReduce(w.Comm(), x, x, spmd.Sum))
	return x.At(0)
}

// TestCheckpointOrder: when the marker gets its name, all that it stands for is on disk.
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
					if d == path+".part" || filepath.Base(path) == "COMPLETE" && d != filepath.Dir(path) || filepath.Dir(path) == dir && strings.Contains(d, ".tmp-") {
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

// TestCheckpointBackground: Save returns while the files cannot be written yet, and the
// next one waits.
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

// TestCheckpointFolderGone takes the folder away, and brings it back.
func TestCheckpointFolderGone(t *testing.T) {
	dir := sharedDir(t)
	spmdtest.Run(t, []int{1, 2}, func(t *testing.T, w *spmd.World) {
		dir := filepath.Join(dir, strconv.Itoa(w.Size()))
		c := open(t, w, dir, 0)
		all := bothKinds[float32](t, w, 11, 0)
		setAll(t, all, 1)
		spmdtest.Must(t, c.Save(1, nil, items(all)...))
		spmdtest.Must(t, c.Wait())
		move := func(from, to string) {
			spmdtest.Must(t, spmd.Barrier(w.Comm()))
			if w.Rank() == 0 {
				spmdtest.Must(t, os.Rename(from, to))
			}
			spmdtest.Must(t, spmd.Barrier(w.Comm()))
		}
		move(dir, dir+".away")
		spmdtest.Must(t, c.Save(2, nil, items(all)...))
		if err := c.Save(3, nil, items(all)...); err == nil || !strings.Contains(err.Error(), "step 2 is not saved") ||
			!strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "no such file") {
			t.Fatalf("without the folder: %v", err)
		}
		move(dir+".away", dir)
		step, err := c.Load(nil, items(all)...)
		spmdtest.Must(t, err)
		if step != 1 {
			t.Fatalf("loaded step %d", step)
		}
		spmdtest.Must(t, c.Save(3, nil, items(all)...))
		spmdtest.Must(t, c.Wait())
	})
}

// TestCheckpointDiskFull fills a real file system, or where that may not be mounted
// reaches the limit of a file's size.
func TestCheckpointDiskFull(t *testing.T) {
	dir := sharedDir(t)
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		cause := "no space left on device"
		if err := syscall.Mount("checkpoints", dir, "tmpfs", 0, "size=256k"); err == nil {
			defer func() { spmdtest.Must(t, syscall.Unmount(dir, 0)) }()
		} else {
			cause = "file too large"
			var old syscall.Rlimit
			spmdtest.Must(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old))
			spmdtest.Must(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 150 << 10, Max: old.Max}))
			defer func() { spmdtest.Must(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old)) }()
		}
		c := open(t, w, dir, 0)
		small, large := arrayOf[uint8](t, w, "x", 10<<10, 0, 10<<10, true), arrayOf[uint8](t, w, "x", 300<<10, 0, 300<<10, true)
		spmdtest.Must(t, small.set(1))
		spmdtest.Must(t, c.Save(1, nil, small.item))
		spmdtest.Must(t, c.Wait())
		for range 3 {
			spmdtest.Must(t, c.Save(2, nil, large.item))
			if err := c.Wait(); err == nil || !strings.Contains(err.Error(), cause) || !strings.Contains(err.Error(), "shard-00000-of-00001") {
				t.Fatalf("on a full disk: %v", err)
			}
			if got := names(t, dir); !slices.Equal(got, []string{"step-00000001"}) {
				t.Fatalf("%v is left", got)
			}
			spmdtest.Must(t, small.set(0))
			_, err := c.Load(nil, small.item)
			spmdtest.Must(t, err)
			spmdtest.Must(t, small.check(1))
		}
		spmdtest.Must(t, small.set(2))
		spmdtest.Must(t, c.Save(2, nil, small.item))
		spmdtest.Must(t, c.Wait())
		spmdtest.Must(t, c.Close())
	})
}

// crashEnv makes TestCheckpointCrash the program that crashes: rank:number of changes
// on disk after which it does.
const crashEnv = "SPMD_TEST_CRASH"

// TestCheckpointCrash ends a program at random moments of saving and starts it again,
// LOCKSTEP_FAULTS times over: no step that Wait saw complete is lost.
func TestCheckpointCrash(t *testing.T) {
	if plan := os.Getenv(crashEnv); plan != "" {
		crashing(t, plan)
		return
	}
	spmdtest.HostOnly(t, "what is on disk does not depend on the device")
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(7, 7))
	crashes := 0
	runs := 6
	if n, err := strconv.Atoi(os.Getenv("LOCKSTEP_FAULTS")); err == nil {
		runs = n
	}
	for range runs {
		ranks := 1 + rng.IntN(3)
		if most, err := strconv.Atoi(os.Getenv("SPMDTEST_RANKS")); err == nil {
			ranks = min(ranks, most)
		}
		plan := fmt.Sprintf("%d:%d", rng.IntN(ranks), 1+rng.IntN(60))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		cmd := mpirun.Command(ctx, ranks, os.Args[0], "-test.run=^TestCheckpointCrash$", "-test.count=1")
		cmd.Env = append(cmd.Env, checkpointDir+"="+dir, crashEnv+"="+plan)
		out, err := cmd.CombinedOutput()
		cancel()
		if err != nil {
			crashes++
		}
		if status := cmd.ProcessState.ExitCode(); err != nil && status != crashStatus {
			t.Fatalf("%d ranks, %s: %v\n%s", ranks, plan, err, out)
		}
	}
	if crashes < runs/2 {
		t.Errorf("only %d crashes in %d runs", crashes, runs)
	}
}

const crashStatus = 87

func crashing(t *testing.T, plan string) {
	dir := os.Getenv(checkpointDir)
	var victim int
	var left atomic.Int64
	_, at, _ := strings.Cut(plan, ":")
	if _, err := fmt.Sscanf(plan, "%d", &victim); err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(at)
	spmdtest.Must(t, err)
	left.Store(int64(n))
	w, err := spmd.Open(spmdtest.Config())
	spmdtest.Must(t, err)
	defer func() { // whatever ends the test ends the job
		if t.Failed() {
			w.Abort(1)
		}
	}()
	*w.Log() = zerolog.Nop()
	c := open(t, w, filepath.Join(dir, "checkpoints"), 2)
	all := bothKinds[float32](t, w, 1000, 0)
	var known int // complete, as Wait said
	file := filepath.Join(dir, "known")
	if b, err := os.ReadFile(file); err == nil {
		spmdtest.Must(t, json.Unmarshal(b, &known))
	}
	step, err := c.Load(nil, items(all)...)
	if err == nil {
		checkAll(t, all, step)
	} else if !errors.Is(err, checkpoint.ErrNotFound) {
		t.Fatal(err)
	}
	if step < known {
		t.Fatalf("step %d was complete, and step %d is loaded", known, step)
	}
	spmdtest.Must(t, spmd.Barrier(w.Comm()))
	if w.Rank() == victim {
		fault(t, func(op, path string) error {
			if left.Add(-1) == 0 {
				os.Exit(crashStatus)
			}
			return nil
		})
	}
	for i := range 4 {
		step++
		setAll(t, all, step)
		spmdtest.Must(t, c.Save(step, nil, items(all)...))
		spmdtest.Must(t, c.Wait())
		if w.Rank() == 0 {
			b, err := json.Marshal(step)
			spmdtest.Must(t, err)
			spmdtest.Must(t, os.WriteFile(file+".new", b, 0o666))
			spmdtest.Must(t, os.Rename(file+".new", file))
		}
		if i == 2 {
			spmdtest.Must(t, c.Save(step, nil, items(all)...)) // the same once more
		}
	}
	spmdtest.Must(t, c.Close())
	spmdtest.Must(t, w.Close())
}
