package text

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"lockstep/apps/train/traintest"
	"lockstep/internal/testkit"
)

func TestBinHeader(t *testing.T) {
	three := []uint16{5, 50256, 0}
	for want, text := range map[string]string{
		"10 bytes are no token file":                      "0123456789",
		"begins with 20240801, want 20240520":             traintest.BinFile(20240801, 1, 3, three),
		"version 7 of llm.c's token files, want 1":        traintest.BinFile(20240520, 7, 3, three),
		"says 0 tokens":                                   traintest.BinFile(20240520, 1, 0, nil),
		"says -1 tokens":                                  traintest.BinFile(20240520, 1, -1, three),
		"says 4 tokens of 2 bytes, and 6 bytes follow it": traintest.BinFile(20240520, 1, 4, three),
		"says 2 tokens of 2 bytes, and 6 bytes follow it": traintest.BinFile(20240520, 1, 2, three),
		"says 3 tokens of 2 bytes, and 7 bytes follow it": traintest.BinFile(20240520, 1, 3, three) + "x",
		"begins with 1701670771, want":                    strings.Repeat("some text ", 200),
	} {
		path := traintest.Write(t, t.TempDir(), "x.bin", text)
		if _, err := openBin(path); err == nil || !strings.Contains(err.Error(), want) ||
			!errors.As(err, new(InputError)) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
	f, err := openBin(traintest.Write(t, t.TempDir(), "x.bin", traintest.GoodBin(three)))
	testkit.Must(t, err)
	got := make([]int32, 3)
	if f.Read(got, 0); f.Len() != 3 || !slices.Equal(got, []int32{5, 50256, 0}) {
		t.Errorf("%d tokens %v", f.Len(), got)
	}
	testkit.Must(t, f.Close())
}

// Files one after the other read as one, at any place.
func TestJoined(t *testing.T) {
	var flat []int32
	j := &joined{}
	for _, n := range []int{3, 1, 7, 2} {
		f := &File{header: tokenHeader{width: 1, count: uint64(n)}}
		for range n {
			flat = append(flat, int32(len(flat)))
			f.body = append(f.body, byte(len(flat)-1))
		}
		j.add(f)
	}
	v := WithVal{j, InMemory(2, traintest.FlatTokens(5))}
	flat = append(flat, 0, 1, 2, 3, 4)
	for at := range 14 {
		for n := range 14 - at {
			got := make([]int32, n)
			if v.Read(got, at); !slices.Equal(got, flat[at:at+n]) {
				t.Errorf("%d tokens from %d are %v, want %v", n, at, got, flat[at:at+n])
			}
		}
	}
	got := make([]int32, 4)
	if v.Read(got, 13+1); v.Len() != 18 || !slices.Equal(got, []int32{1, 2, 3, 4}) {
		t.Errorf("of %d tokens the last are %v", v.Len(), got)
	}
}
