package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/spmd/spmdtest"
)

// binFile is a token file of llm.c.
func binFile(magic, version, count int32, tokens []uint16) string {
	b := make([]byte, 1024, 1024+2*len(tokens))
	for i, v := range []int32{magic, version, count} {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(v))
	}
	for _, x := range tokens {
		b = binary.LittleEndian.AppendUint16(b, x)
	}
	return string(b)
}

func goodBin(tokens []uint16) string { return binFile(20240520, 1, int32(len(tokens)), tokens) }

func TestBinHeader(t *testing.T) {
	three := []uint16{5, 50256, 0}
	for want, text := range map[string]string{
		"10 bytes are no token file":                      "0123456789",
		"begins with 20240801, want 20240520":             binFile(20240801, 1, 3, three),
		"version 7 of llm.c's token files, want 1":        binFile(20240520, 7, 3, three),
		"says 0 tokens":                                   binFile(20240520, 1, 0, nil),
		"says -1 tokens":                                  binFile(20240520, 1, -1, three),
		"says 4 tokens of 2 bytes, and 6 bytes follow it": binFile(20240520, 1, 4, three),
		"says 2 tokens of 2 bytes, and 6 bytes follow it": binFile(20240520, 1, 2, three),
		"says 3 tokens of 2 bytes, and 7 bytes follow it": binFile(20240520, 1, 3, three) + "x",
		"begins with 1701670771, want":                    strings.Repeat("some text ", 200),
	} {
		path := write(t, t.TempDir(), "x.bin", text)
		if _, err := openBin(path); err == nil || !strings.Contains(err.Error(), want) || !errors.As(err, new(inputError)) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
	f, err := openBin(write(t, t.TempDir(), "x.bin", goodBin(three)))
	if err != nil {
		t.Fatal(err)
	}
	got := make([]int32, 3)
	if f.read(got, 0); f.len() != 3 || !slices.Equal(got, []int32{5, 50256, 0}) {
		t.Errorf("%d tokens %v", f.len(), got)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// Files one after the other read as one, whatever part is asked for.
func TestJoined(t *testing.T) {
	var flat []int32
	j := &joined{}
	for _, n := range []int{3, 1, 7, 2} {
		f := &tokenFile{header: tokenHeader{width: 1, count: uint64(n)}}
		for range n {
			flat = append(flat, int32(len(flat)))
			f.body = append(f.body, byte(len(flat)-1))
		}
		j.add(f)
	}
	v := withVal{j, inMemory(2, flatTokens(5))}
	flat = append(flat, 0, 1, 2, 3, 4)
	for at := range 14 {
		for n := range 14 - at {
			got := make([]int32, n)
			if v.read(got, at); !slices.Equal(got, flat[at:at+n]) {
				t.Errorf("%d tokens from %d are %v, want %v", n, at, got, flat[at:at+n])
			}
		}
	}
	got := make([]int32, 4)
	if v.read(got, 13+1); v.len() != 18 || !slices.Equal(got, []int32{1, 2, 3, 4}) {
		t.Errorf("of %d tokens the last are %v", v.len(), got)
	}
}

// What llm.c's files hold is learned from as the text they were made from: the same
// losses on any number of files and ranks; and refused where it cannot be.
func TestBinData(t *testing.T) {
	besideOthers(t)
	spmdtest.Ranks(t, 3)
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(1, 2))
	words := strings.Fields("func return if else for range int string error nil package import")
	var some strings.Builder
	for range 6000 {
		some.WriteString(words[rng.IntN(len(words))] + " ")
	}
	plain := write(t, dir, "text.txt", some.String())
	ids, err := tokensOf(newGPT2Tokens(), some.String())
	if err != nil {
		t.Fatal(err)
	}
	var tokens []uint16
	for _, id := range append(ids, gpt2End) {
		tokens = append(tokens, uint16(id))
	}
	write(t, dir, "part_000.bin", goodBin(tokens[:1000]))
	write(t, dir, "part_001.bin", goodBin(tokens[1000:1001]))
	write(t, dir, "part_002.bin", goodBin(tokens[1001:]))
	all := write(t, dir, "all.bin", goodBin(tokens))
	args := func(more ...string) []string {
		return append([]string{"--steps", "3", "--layers", "1", "--channels", "8", "--heads", "2", "--seq", "16", "--batch", "2", "--global-batch", "5",
			"--sample", "0", "--json", "-", "--dtype", "float32"}, more...)
	}
	want, _ := finish(t, 1, args("--data", plain, "--tokens", "gpt2")...)
	one, _ := finish(t, 1, args("--data", filepath.Join(dir, "part_*.bin"))...)
	compareRuns(t, one, want, 0, 0)
	three, log := finish(t, 3, args("--data", filepath.Join(dir, "part_*.bin"), "--tokens", "gpt2")...)
	compareRuns(t, three, want, 0, 1e-4)
	if want := fmt.Sprintf("files=3 from=\"%s and 2 more\"", filepath.Join(dir, "part_000.bin")); !strings.Contains(log, want) || !strings.Contains(log, fmt.Sprintf("tokens=%d", len(tokens))) {
		t.Errorf("no line with %s, tokens=%d:\n%s", want, len(tokens), log)
	}

	// Validation data of their own: all of --data is learned from.
	_, log = finish(t, 2, args("--data", all, "--val-data", filepath.Join(dir, "part_000.bin"))...)
	if !strings.Contains(log, fmt.Sprintf("train_tokens=%d", len(tokens))) || !strings.Contains(log, "val_tokens=1000") {
		t.Errorf("the data are divided otherwise:\n%s", log)
	}
	finish(t, 2, args("--data", all, "--val-data", plain)...)

	outside := slices.Clone(tokens)
	outside[1500] = 50257
	bad := write(t, dir, "outside.bin", goodBin(outside))
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--data", bad}, "outside.bin: token 50257 at place 1500 is outside GPT-2's vocabulary of 50257"},
		{[]string{"--data", all, "--data", plain}, "do not go together"},
		{[]string{"--data", all, "--tokens", "bytes"}, "--tokens bytes: token files (.bin) hold GPT-2's"},
		{[]string{"--data", plain, "--val-data", all, "--tokens", "bytes"}, "--tokens bytes"},
		{[]string{"--data", write(t, dir, "text.bin", some.String())}, "text.bin: not a token file of llm.c"},
		{[]string{"--data", all, "--val-data", filepath.Join(dir, "none.bin")}, "--val-data " + filepath.Join(dir, "none.bin") + ": no such file"},
		{[]string{"--data", all, "--val-data", bad}, "--val-data " + bad + ": token 50257"},
		{[]string{"--data", all, "--val-data", filepath.Join(dir, "part_001.bin")}, "one sequence to validate on 17"},
	} {
		p := train(t, 3, args(c.args...)...)
		if lines := ours(p.Stderr); p.Status != 2 || len(lines) != 1 || !strings.Contains(lines[0], c.want) {
			t.Errorf("train %v: status %d, want 2 and one line with %q:\n%s", c.args, p.Status, c.want, p.Stderr)
		}
	}
}
