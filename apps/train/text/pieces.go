package text

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"slices"

	"lockstep/internal/runfiles"
)

// pieceBytes is how much of a file one reading takes. Several goroutines and ranks hash and
// tokenise large files in pieces.
const pieceBytes = 1 << 20

// piece is one part of a file: bytes [Index*pieceBytes, (Index+1)*pieceBytes), with ends moved to
// where the tokenizer may cut.
type piece struct {
	file, index int
}

// pieces cuts files, in the given order. before is how many bytes come before each piece; its last
// entry is the total.
func pieces(files []Source, order []int) (all []piece, before []int64) {
	var sum int64
	for _, f := range order {
		for i := 0; int64(i)*pieceBytes < files[f].Size; i++ {
			all = append(all, piece{f, i})
			before = append(before, sum)
			sum += min(pieceBytes, files[f].Size-int64(i)*pieceBytes)
		}
	}
	return all, append(before, sum)
}

// share returns the pieces of rank r: contiguous, with about the same bytes for each rank. A piece
// belongs to the rank in whose part of the bytes it begins.
func share(before []int64, r, size int) (lo, hi int) {
	n := len(before) - 1
	start, total := before[0], before[n]-before[0]
	first := func(r int) int {
		bound := start + total/int64(size)*int64(r) + total%int64(size)*int64(r)/int64(size)
		i, _ := slices.BinarySearch(before[:n], bound)
		return i
	}
	lo, hi = first(r), n
	if r+1 < size {
		hi = first(r + 1)
	}
	return lo, hi
}

// errChanged says that a file has changed since it was listed.
var errChanged = errors.New("the file changed while it was read")

// readPiece returns bytes [from, to) of a file, after a check that the file is the one
// that was listed.
func readPiece(s Source, from, to int64) ([]byte, error) {
	f, st, err := runfiles.OpenRegular(s.Path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st.Size() != s.Size || st.ModTime().UnixNano() != s.Mtime {
		return nil, fmt.Errorf("%s: %w", s.Path, errChanged)
	}
	b := make([]byte, to-from)
	if _, err := f.ReadAt(b, from); err != nil {
		if err == io.EOF {
			err = errChanged
		}
		return nil, fmt.Errorf("%s: %w", s.Path, err)
	}
	return b, nil
}

// These are the results of a look at the first piece of a file.
const (
	textFile byte = iota
	binaryFile
	generatedFile
	unreadableFile
)

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// classify looks at the beginning of a file: a NUL byte in the first 8 KiB makes it binary, the Go
// tools' mark makes it generated.
func classify(b []byte, from Origin) byte {
	head := b[:min(len(b), 8<<10)]
	switch {
	case from == Named:
		return textFile
	case bytes.IndexByte(head, 0) >= 0:
		return binaryFile
	case from == GoTree && generated.Match(head):
		return generatedFile
	}
	return textFile
}

// pieceSum is the SHA-256 of a piece and, for the first of a file, its class.
type pieceSum [sha256.Size + 1]byte

// hashPiece reads and sums one piece. It skips a file of a folder that cannot be read: somebody
// else's file must not stop the run.
func hashPiece(s Source, index int) (sum pieceSum, err error) {
	from := int64(index) * pieceBytes
	b, err := readPiece(s, from, min(from+pieceBytes, s.Size))
	if err != nil {
		if s.From != Named && (errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist)) {
			sum[sha256.Size] = unreadableFile
			return sum, nil
		}
		return sum, err
	}
	h := sha256.Sum256(b)
	copy(sum[:], h[:])
	if index == 0 {
		sum[sha256.Size] = classify(b, s.From)
	}
	return sum, nil
}

// document is a file that is part of the data, known by its contents.
type document struct {
	file int
	hash [sha256.Size]byte // SHA-256 of the sums of its pieces
}

// documents returns the files that are text, each contents once, in the order of their hashes. That
// order depends only on contents, not on names and places. It mixes the files, so that the end of
// the data, which is for validation, is a fair sample.
func documents(files []Source, all []piece, sums []pieceSum, skipped *Skips) []document {
	var docs []document
	for lo := 0; lo < len(all); {
		hi := lo + 1
		for hi < len(all) && all[hi].file == all[lo].file {
			hi++
		}
		switch sums[lo][sha256.Size] {
		case binaryFile:
			skipped.Binary++
		case generatedFile:
			skipped.Generated++
		case unreadableFile:
			skipped.Unreadable++
		default:
			h := sha256.New()
			for _, s := range sums[lo:hi] {
				h.Write(s[:sha256.Size])
			}
			docs = append(docs, document{all[lo].file, [sha256.Size]byte(h.Sum(nil))})
		}
		lo = hi
	}
	slices.SortFunc(docs, func(a, b document) int {
		return cmp.Or(bytes.Compare(a.hash[:], b.hash[:]), cmp.Compare(a.file, b.file))
	})
	n := len(docs)
	docs = slices.CompactFunc(docs, func(a, b document) bool { return a.hash == b.hash })
	skipped.Duplicate += n - len(docs)
	return docs
}

// contentKey names the token file of documents under a tokenizer.
func contentKey(t Tokenizer, docs []document) (key [sha256.Size]byte) {
	h := sha256.New()
	fmt.Fprintf(h, "lockstep tokens %d\n%s\n%d\n", tokenFileVersion, t.Name(), len(docs))
	for _, d := range docs {
		h.Write(d.hash[:])
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// encodePiece returns the tokens of one piece, with the separator after the last piece of a file.
func encodePiece(t Tokenizer, s Source, index int) ([]byte, error) {
	nominal := func(i int) int64 { return min(int64(i)*pieceBytes, s.Size) }
	look := func(i int) int64 { return min(nominal(i)+int64(t.lookahead()), s.Size) }
	start := max(0, nominal(index)-2) // where b begins in the file
	b, err := readPiece(s, start, look(index+1))
	if err != nil {
		return nil, err
	}
	// Both neighbours of a cut see the same bytes around it, so they agree on it.
	at := func(i int) int64 {
		n := nominal(i)
		if i == 0 || n == s.Size {
			return n
		}
		return n - 2 + int64(t.cut(b[n-2-start:look(i)-start]))
	}
	from, to := at(index), at(index+1)
	out, err := t.encode(make([]byte, 0, len(b)), b[from-start:to-start])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path, err)
	}
	if to == s.Size {
		sep := t.Separator()
		out = append(out, byte(sep))
		if t.Width() == 2 {
			out = append(out, byte(sep>>8))
		}
	}
	return out, nil
}
