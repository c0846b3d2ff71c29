package main

import (
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"

	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// together runs fn as n ranks of one group, in goroutines, and returns each one's
// error.
func together(n int, fn func(g group) error) []error {
	var mu sync.Mutex
	cond := sync.NewCond(&mu)
	slots, taken, round := make([][]byte, n), 0, 0
	var result [][]byte
	exchange := func(rank int) func([]byte) ([][]byte, error) {
		return func(mine []byte) ([][]byte, error) {
			mu.Lock()
			defer mu.Unlock()
			slots[rank] = bytes.Clone(mine)
			now := round
			if taken++; taken == n {
				result = slots
				slots, taken, round = make([][]byte, n), 0, round+1
				cond.Broadcast()
			}
			for round == now {
				cond.Wait()
			}
			return slices.Clone(result), nil
		}
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() { errs[r] = fn(group{r, n, exchange(r)}) })
	}
	wg.Wait()
	return errs
}

// write makes a file below dir and returns its path.
func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// load opens the data of patterns with n ranks, checks that all see the same, and
// returns the tokens and the path of the token file.
func load(t *testing.T, n int, tok tokenizer, cache string, patterns ...string) ([]int32, string) {
	t.Helper()
	inputs, err := resolveData(patterns)
	if err != nil {
		t.Fatal(err)
	}
	tokens, paths := make([][]int32, n), make([]string, n)
	for r, err := range together(n, func(g group) error {
		f, err := openData(g, dataOptions{inputs: inputs, tokens: tok, cache: cache, threads: 2, log: zerolog.Nop()})
		if err != nil {
			return err
		}
		defer f.Close()
		tokens[g.rank], paths[g.rank] = make([]int32, f.len()), f.path
		f.read(tokens[g.rank], 0)
		return nil
	}) {
		if err != nil {
			t.Fatalf("rank %d: %v", r, err)
		}
		if !slices.Equal(tokens[r], tokens[0]) || paths[r] != paths[0] {
			t.Fatalf("rank %d has other tokens than rank 0", r)
		}
	}
	return tokens[0], paths[0]
}

// texts splits tokens at the separators and returns the documents, sorted.
func texts(tok tokenizer, tokens []int32) []string {
	var docs []string
	for len(tokens) > 0 {
		i := slices.Index(tokens, tok.separator())
		docs = append(docs, string(tok.decode(tokens[:i])))
		tokens = tokens[i+1:]
	}
	slices.Sort(docs)
	return docs
}

func TestFolderIsReadAsText(t *testing.T) {
	dir, cache := t.TempDir(), t.TempDir()
	write(t, dir, "b.txt", "beta\n")
	write(t, dir, "sub/a.txt", "alpha ünï\n")
	write(t, dir, "sub/copy.txt", "beta\n")           // the same contents twice
	write(t, dir, "sub/image.bin", "PNG\x00\x01\x02") // binary
	write(t, dir, "empty.txt", "")
	write(t, dir, ".git/config", "hidden\n")
	write(t, dir, ".hidden", "hidden\n")
	if err := os.Symlink(dir, filepath.Join(dir, "circle")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bytes", "gpt2"} {
		tok, _ := newTokenizer(name)
		tokens, _ := load(t, 1, tok, cache, dir)
		if got, want := texts(tok, tokens), []string{"alpha ünï\n", "beta\n"}; !slices.Equal(got, want) {
			t.Errorf("%s: documents %q, want %q", name, got, want)
		}
	}
}

// A link to a file that the kernel makes as it is read does not end the job: its size
// says nothing.
func TestKernelFiles(t *testing.T) {
	const made = "/sys/kernel/mm/transparent_hugepage/enabled" // of 4096 bytes, it says
	if st, err := os.Stat(made); err != nil || st.Size() == 0 {
		t.Skip("no such file in /sys")
	}
	dir := t.TempDir()
	write(t, dir, "a", "some text\n")
	for name, to := range map[string]string{"b": made, "c": "/proc/self/status"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	tokens, _ := load(t, 2, byteTokens{}, t.TempDir(), dir)
	if got := texts(byteTokens{}, tokens); !slices.Equal(got, []string{"some text\n"}) {
		t.Errorf("documents %q", got)
	}
	_, skipped, err := listFiles([]input{{dir, true, inFolder}})
	if err != nil || skipped.String() != "2 of the kernel" {
		t.Errorf("skipped: %v, %v", skipped, err)
	}
	for _, path := range []string{made, "/proc/self/status", filepath.Join(dir, "b")} {
		if _, err := resolveData([]string{path}); !errors.As(err, new(inputError)) || !strings.Contains(err.Error(), "copy it first") {
			t.Errorf("%s by name: %v", path, err)
		}
	}
}

func TestNamedFilesAreTakenAsTheyAre(t *testing.T) {
	dir, cache := t.TempDir(), t.TempDir()
	bin := write(t, dir, "x.bin", "\x01\xff\x00\x02")
	odd := write(t, dir, "a[1].txt", "odd") // a name, not a pattern
	one := write(t, dir, "g1.txt", "one")
	write(t, dir, "g2.txt", "two")
	tokens, _ := load(t, 1, byteTokens{}, cache, bin)
	if want := []int32{1, 255, 0, 2, 0}; !slices.Equal(tokens, want) {
		t.Errorf("tokens %v, want %v", tokens, want)
	}
	tokens, _ = load(t, 1, byteTokens{}, cache, odd, filepath.Join(dir, "g*.txt"), one)
	if got, want := texts(byteTokens{}, tokens), []string{"odd", "one", "two"}; !slices.Equal(got, want) {
		t.Errorf("documents %q, want %q", got, want)
	}
}

func TestGoTree(t *testing.T) {
	root, cache := t.TempDir(), t.TempDir()
	write(t, root, "src/fmt/print.go", "package fmt\n")
	write(t, root, "src/fmt/doc.txt", "not Go\n")
	write(t, root, "src/fmt/testdata/x.go", "package testdata\n")
	write(t, root, "src/unicode/tables.go", "// Code generated by maketables; DO NOT EDIT.\n\npackage unicode\n")
	t.Setenv("GOROOT", root)
	tokens, _ := load(t, 1, byteTokens{}, cache)
	if got, want := texts(byteTokens{}, tokens), []string{"package fmt\n"}; !slices.Equal(got, want) {
		t.Errorf("documents %q, want %q", got, want)
	}
}

// On a machine without Go's source the error says what to give instead.
func TestNoGoTree(t *testing.T) {
	places := goPlaces
	defer func() { goPlaces = places }()
	goPlaces = []string{filepath.Join(t.TempDir(), "go*")}
	t.Setenv("GOROOT", "")
	t.Setenv("PATH", "")
	_, err := resolveData(nil)
	if !errors.As(err, new(inputError)) || !strings.Contains(err.Error(), "give --data") {
		t.Errorf("error %v, want bad input that asks for --data", err)
	}
}

func TestBadData(t *testing.T) {
	dir := t.TempDir()
	empty := write(t, dir, "empty.txt", "")
	hollow := filepath.Join(dir, "hollow")
	write(t, hollow, "empty.txt", "")
	for _, c := range []struct{ pattern, want string }{
		{filepath.Join(dir, "none.txt"), "no such file"},
		{filepath.Join(dir, "*.none"), "no file matches"},
		{filepath.Join(dir, "[a"), "syntax error"},
		{empty, "is empty"},
		{hollow, "holds no files"},
		{"/dev/null", "neither a regular file nor a folder"},
	} {
		_, err := resolveData([]string{c.pattern})
		if !errors.As(err, new(inputError)) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.pattern) {
			t.Errorf("%s: error %v, want one with %q", c.pattern, err, c.want)
		}
	}
	// Only binaries: found when they are read, by all ranks alike.
	write(t, dir, "bin/x", "\x00\x01")
	inputs, err := resolveData([]string{filepath.Join(dir, "bin")})
	if err != nil {
		t.Fatal(err)
	}
	for r, err := range together(3, func(g group) error {
		_, err := openData(g, dataOptions{inputs: inputs, tokens: byteTokens{}, cache: t.TempDir(), threads: 1, log: zerolog.Nop()})
		return err
	}) {
		if !errors.As(err, new(inputError)) || !strings.Contains(err.Error(), "1 binary") {
			t.Errorf("rank %d: error %v, want bad input that counts 1 binary", r, err)
		}
	}
}

// corpus writes files of many sizes, some longer than a piece.
func corpus(t *testing.T, dir string) {
	line := "func f%d(x int) int { return x*%d } // größe\n"
	for i := range 6 {
		var b strings.Builder
		for j := 0; b.Len() < []int{1, 3000, pieceBytes / 3, pieceBytes + 100, 2*pieceBytes + 5}[i%5]; j++ {
			fmt.Fprintf(&b, line, i*1000+j, j)
		}
		write(t, dir, fmt.Sprintf("f%d.go", i), b.String())
	}
}

// One rank, three ranks and one call on the whole text must agree.
func TestTokensDoNotDependOnRanks(t *testing.T) {
	dir := t.TempDir()
	corpus(t, dir)
	for _, name := range []string{"bytes", "gpt2"} {
		tok, _ := newTokenizer(name)
		one, path1 := load(t, 1, tok, t.TempDir(), dir)
		three, path3 := load(t, 3, tok, t.TempDir(), dir)
		if !slices.Equal(one, three) {
			t.Errorf("%s: 1 and 3 ranks give different tokens", name)
		}
		if filepath.Base(path1) != filepath.Base(path3) {
			t.Errorf("%s: 1 rank made %s, 3 ranks %s", name, path1, path3)
		}
		big, err := os.ReadFile(filepath.Join(dir, "f4.go")) // three pieces
		if err != nil {
			t.Fatal(err)
		}
		want, err := tok.encode(nil, big)
		if err != nil {
			t.Fatal(err)
		}
		file, err := os.ReadFile(path1)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(file, want) {
			t.Errorf("%s: a file of several pieces does not have the tokens of its whole text", name)
		}
	}
}

// The key is of contents: names and places do not matter, any byte does.
func TestKeyIsOfContents(t *testing.T) {
	a, b, c, cache := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	write(t, a, "1", "first")
	write(t, a, "2", "second")
	write(t, b, "x/z", "first")
	write(t, b, "y", "second")
	write(t, c, "1", "first")
	write(t, c, "2", "secone")
	_, pa := load(t, 1, byteTokens{}, cache, a)
	_, pb := load(t, 2, byteTokens{}, cache, b)
	_, pc := load(t, 1, byteTokens{}, cache, c)
	if pa != pb {
		t.Errorf("the same contents in %s and %s", pa, pb)
	}
	if pa == pc {
		t.Errorf("other contents in the same %s", pa)
	}
}

// A good file is used as it is; a damaged one is made again.
func TestDamagedTokenFileIsMadeAgain(t *testing.T) {
	dir, cache := t.TempDir(), t.TempDir()
	write(t, dir, "a", strings.Repeat("some text\n", 50))
	want, path := load(t, 1, byteTokens{}, cache, dir)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	load(t, 2, byteTokens{}, cache, dir)
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Fatalf("a good token file was made again (%v)", err)
	}
	flip := func(at int) []byte {
		b := bytes.Clone(good)
		b[at] ^= 0x40
		return b
	}
	for name, bad := range map[string][]byte{
		"empty":           {},
		"header cut":      good[:40],
		"tokens cut":      good[:len(good)-1],
		"bytes too many":  append(bytes.Clone(good), 0),
		"magic":           flip(0),
		"version":         flip(8),
		"width":           flip(12),
		"count":           flip(31),
		"key":             flip(32),
		"header checksum": flip(70),
		"a token":         flip(len(good) - 3),
	} {
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, _ := load(t, 2, byteTokens{}, cache, dir); !slices.Equal(got, want) {
			t.Errorf("%s damaged: other tokens", name)
		}
		if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, good) {
			t.Errorf("%s damaged: the file was not made again (%v)", name, err)
		}
	}
}

// A header with a valid checksum may still hold absurd numbers.
func TestAbsurdHeaders(t *testing.T) {
	for _, h := range []tokenHeader{
		{width: 0, count: 0},
		{width: 3, count: 10},
		{width: 1, count: 1 << 62},
		{width: 2, count: 1 << 63},
		{width: 1, count: 11},
	} {
		if _, err := decodeTokenHeader(h.encode(), tokenHeaderBytes+10); err == nil {
			t.Errorf("width %d, count %d in 10 bytes: no error", h.width, h.count)
		}
	}
	ok := tokenHeader{width: 2, count: 5, ids: 7, files: 3, crc: 9}
	if got, err := decodeTokenHeader(ok.encode(), tokenHeaderBytes+10); err != nil || got != ok {
		t.Errorf("header %+v came back as %+v, %v", ok, got, err)
	}
}

func TestJobsBuildTheSameFileAtOnce(t *testing.T) {
	dir, cache := t.TempDir(), t.TempDir()
	corpus(t, dir)
	inputs, err := resolveData([]string{dir})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	sums := make([]uint32, 4)
	for job := range sums {
		wg.Go(func() {
			for _, err := range together(2, func(g group) error {
				f, err := openData(g, dataOptions{inputs: inputs, tokens: byteTokens{}, cache: cache, threads: 2, log: zerolog.Nop()})
				if err != nil {
					return err
				}
				if g.rank == 0 {
					sums[job] = f.header.crc
				}
				return f.Close()
			}) {
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if slices.Min(sums) != slices.Max(sums) {
		t.Errorf("checksums differ: %x", sums)
	}
	files, err := os.ReadDir(cache)
	if err != nil || len(files) != 1 {
		t.Errorf("%d files in the cache, want 1: %v (%v)", len(files), files, err)
	}
}

func TestStaleTemporaryFilesGo(t *testing.T) {
	dir, cache := t.TempDir(), t.TempDir()
	write(t, dir, "a", "text")
	old := write(t, cache, "bytes-1-00.tok.tmp-1", "x")
	young := write(t, cache, "bytes-1-00.tok.tmp-2", "x")
	long := time.Now().Add(-48 * time.Hour)
	if err := os.Chtimes(old, long, long); err != nil {
		t.Fatal(err)
	}
	load(t, 1, byteTokens{}, cache, dir)
	if _, err := os.Stat(old); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file of a run that died long ago is still there (%v)", err)
	}
	if _, err := os.Stat(young); err != nil {
		t.Errorf("the file of another run is gone: %v", err)
	}
}

// Without a home, or one that cannot be written, the tokens go to a temporary
// folder; the folder that --cache names is not replaced by another.
func TestCacheFolders(t *testing.T) {
	dir, tmp := t.TempDir(), t.TempDir()
	write(t, dir, "a", "text")
	blocked := write(t, dir, "file", "in the way") // nobody can make a folder below a file
	t.Setenv("TMPDIR", tmp)
	t.Setenv("HOME", "")
	for _, home := range []string{"", filepath.Join(blocked, "cache")} {
		t.Setenv("XDG_CACHE_HOME", home)
		var log bytes.Buffer
		f, err := newTemp("", "x.tok", zerolog.New(&log))
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		if !strings.Contains(log.String(), "warn") || !strings.Contains(log.String(), tmp) {
			t.Errorf("cache %q: log %q, want a warning that names %s", home, log.String(), tmp)
		}
		_, path := load(t, 2, byteTokens{}, "", filepath.Join(dir, "a"))
		if !strings.HasPrefix(path, tmp) {
			t.Errorf("cache %q: token file %s, want it below %s", home, path, tmp)
		}
	}
	inputs, err := resolveData([]string{filepath.Join(dir, "a")})
	if err != nil {
		t.Fatal(err)
	}
	for r, err := range together(2, func(g group) error {
		_, err := openData(g, dataOptions{inputs: inputs, tokens: byteTokens{}, cache: filepath.Join(blocked, "cache"), threads: 1, log: zerolog.Nop()})
		return err
	}) {
		if !errors.As(err, new(inputError)) || !strings.Contains(err.Error(), "--cache") {
			t.Errorf("rank %d: error %v, want bad input that names --cache", r, err)
		}
	}
	// A temporary folder that others can write is not trusted.
	own := filepath.Join(tmp, fmt.Sprintf("lockstep-%d", os.Getuid()))
	if err := os.Chmod(own, 0o777); err != nil {
		t.Fatal(err)
	}
	f, err := newTemp("", "x.tok", zerolog.Nop())
	if err == nil {
		f.Close()
		t.Errorf("%s, which anybody can write, was used", f.Name())
	}
}

func TestFileThatChangesIsRefused(t *testing.T) {
	dir := t.TempDir()
	path := write(t, dir, "a", "before")
	in := input{path, false, named}
	files, _, err := listFiles([]input{in})
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "a", "after it was listed")
	if _, err := hashPiece(files[0], 0); !errors.Is(err, errChanged) {
		t.Errorf("error %v, want %v", err, errChanged)
	}
	if _, err := encodePiece(byteTokens{}, files[0], 0); !errors.Is(err, errChanged) {
		t.Errorf("error %v, want %v", err, errChanged)
	}
}

// An error of one rank ends all ranks, with its text.
func TestGatherSpreadsErrors(t *testing.T) {
	disk := errors.New("disk full")
	for r, err := range together(3, func(g group) error {
		var mine error
		if g.rank == 1 {
			mine = disk
		}
		_, err := g.gather(nil, mine)
		return err
	}) {
		if r == 1 && !errors.Is(err, disk) || err == nil || !strings.Contains(err.Error(), "disk full") {
			t.Errorf("rank %d: error %v", r, err)
		}
	}
}

func TestShareCoversAll(t *testing.T) {
	for _, before := range [][]int64{{0}, {0, 5}, {0, 1, 2, 3}, {7, 7 + 1<<40, 8 + 1<<40}, {0, 3, 3, 9, 10}} {
		for _, size := range []int{1, 2, 3, 8} {
			at := 0
			for r := range size {
				lo, hi := share(before, r, size)
				if lo != at || hi < lo {
					t.Fatalf("%v: rank %d of %d has [%d, %d), want it to begin at %d", before, r, size, lo, hi, at)
				}
				at = hi
			}
			if at != len(before)-1 {
				t.Fatalf("%v: %d ranks take %d pieces of %d", before, size, at, len(before)-1)
			}
		}
	}
}

func TestPermute(t *testing.T) {
	for _, n := range []uint64{1, 2, 3, 7, 64, 1000, 4097} {
		seen := make([]bool, n)
		for i := range n {
			p := permute(splitmix(n), i, n)
			if p >= n || seen[p] {
				t.Fatalf("n %d: %d goes to %d, out of range or a second time", n, i, p)
			}
			seen[p] = true
		}
	}
	same := 0
	for i := range uint64(1000) {
		if permute(1, i, 1000) == permute(2, i, 1000) {
			same++
		}
	}
	if same > 20 { // 1 is expected
		t.Errorf("two keys agree on %d of 1000", same)
	}
}

// flatFile is a token file in memory whose token i is i.
func flatFile(n int) *tokenFile { return inMemory(2, flatTokens(n)) }

// flatTokens is tokens of two bytes, of which token i is i.
func flatTokens(n int) (body []byte) {
	for i := range n {
		body = append(body, byte(i), byte(i>>8))
	}
	return body
}

func TestSampleOrder(t *testing.T) {
	const seq, global, n = 8, 6, 2000
	d, err := newDataset(flatFile(n), seq, global, 7)
	if err != nil {
		t.Fatal(err)
	}
	if want := n / 20; d.val.len != want || d.train.len != n-want {
		t.Errorf("parts of %d and %d tokens, want %d and %d", d.train.len, d.val.len, n-want, want)
	}
	// Each epoch sees each window once, at one offset below seq.
	windows := d.windows()
	offsets := map[int]bool{}
	for epoch := range 5 {
		seen := map[int]bool{}
		for i := range windows {
			number := epoch*windows + i
			at := d.start(number/global, number%global)
			if at < 0 || at+seq+1 > d.train.len {
				t.Fatalf("sequence at %d of %d tokens", at, d.train.len)
			}
			if len(seen) == 0 {
				offsets[at%seq] = true
			}
			if seen[at] || !offsets[at%seq] {
				t.Fatalf("epoch %d: position %d again, or at another offset", epoch, at)
			}
			seen[at] = true
		}
	}
	if len(offsets) < 2 {
		t.Errorf("all epochs have the same offset")
	}
	in, target := make([]int32, seq), make([]int32, seq)
	d.fill(in, target, d.start(3, 2))
	for i := range seq {
		if target[i] != in[i]+1 {
			t.Fatalf("in %v, target %v: not the next token each", in, target)
		}
	}
	other, err := newDataset(flatFile(n), seq, global, 8)
	if err != nil {
		t.Fatal(err)
	}
	same := 0
	for j := range global * 10 {
		if d.start(j/global, j%global) == other.start(j/global, j%global) {
			same++
		}
	}
	if same > 6 {
		t.Errorf("seeds 7 and 8 agree on %d of %d sequences", same, global*10)
	}
	for i := range 5 {
		if at := d.valStart(i, 5); at < d.val.at || at+seq+1 > d.val.at+d.val.len {
			t.Errorf("validation sequence %d at %d, outside of [%d, %d)", i, at, d.val.at, d.val.at+d.val.len)
		}
	}
}

// The least data that is enough, and one token less.
func TestDataTooSmall(t *testing.T) {
	const seq, global = 8, 3
	need := 2 * (seq*global + 1)
	d, err := newDataset(flatFile(need), seq, global, 1)
	if err != nil {
		t.Fatal(err)
	}
	for j := range global {
		if at := d.start(0, j); at < 0 || at+seq+1 > d.train.len {
			t.Errorf("sequence %d at %d of %d tokens", j, at, d.train.len)
		}
	}
	if n := d.windows(); n != global {
		t.Errorf("%d sequences to learn from, want %d", n, global)
	}
	if n := d.valWindows(); n != global {
		t.Errorf("%d validation sequences, want %d", n, global)
	}
	_, err = newDataset(flatFile(need-1), seq, global, 1)
	if !errors.As(err, new(inputError)) || !strings.Contains(err.Error(), fmt.Sprint(need-1)) || !strings.Contains(err.Error(), fmt.Sprint(need)) {
		t.Errorf("error %v, want bad input that names %d and %d", err, need-1, need)
	}
}

// A token outside the vocabulary does not leave the loader.
func TestLoaderRefusesTokens(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s, err := w.NewStream("test")
		if err != nil {
			t.Fatal(err)
		}
		data := &dataset{file: flatFile(1000), train: span{0, 1000}, seq: 4}
		l, err := newLoader(w, data, 1, 500)
		if err != nil {
			t.Fatal(err)
		}
		for at, bad := range map[int]bool{495: false, 496: true, 600: true} { // the last target is at+4
			f := l.feed(slices.Values([][]int{{at}}))
			_, err := f.next(s)
			if bad != (err != nil) || bad && !strings.Contains(err.Error(), "outside the vocabulary of 500") {
				t.Errorf("tokens from %d on, of 500: error %v", at, err)
			}
			f.stop()
		}
		if err := errors.Join(s.Synchronize(), l.Close()); err != nil {
			t.Fatal(err)
		}
	})
}
