package translate

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"os"
	"path/filepath"
	"strings"
)

// The file that Generate writes says which declarations it was made of, and a sum of them.
const (
	ofLine  = "// Of: "
	sumLine = "// Sum: "
)

// version changes with what Generate writes for the same kernels.
const version = 3

// sum is over declarations with their lines, which reports name.
func (s *source) sum(names []string) string {
	h := sha256.New()
	fmt.Fprintln(h, version)
	for _, name := range names {
		d, ok := s.decls[name]
		if !ok {
			continue
		}
		node := d.node
		if f, ok := node.(*ast.FuncDecl); ok { // with its directive, but without what a comment says else
			words, _ := directive(f)
			there, _ := marked(f, hostMark)
			fmt.Fprintln(h, words, there)
			plain := *f
			plain.Doc = nil
			node = &plain
		}
		var b bytes.Buffer
		if err := format.Node(&b, s.fset, node); err != nil {
			fmt.Fprintln(h, err)
		}
		p := s.fset.Position(node.Pos())
		fmt.Fprintln(h, name, filepath.Base(p.Filename), p.Line, b.String())
	}
	return hex.EncodeToString(h.Sum(nil))[:32]
}

// Fresh says why what Generate wrote in a folder does not belong to the kernels there now; nil where it does. It runs no
// other program.
func Fresh(dir string) error {
	s, err := parse(dir)
	if err != nil {
		return err
	}
	const renew = ": type go generate there"
	marked := s.kernels()
	text, err := os.ReadFile(filepath.Join(dir, Output))
	switch {
	case errors.Is(err, os.ErrNotExist) && len(marked) == 0:
		return nil
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%s is missing, for %s%s", Output, s.place(marked[0]), renew)
	case err != nil:
		return err
	case len(marked) == 0:
		return fmt.Errorf("%s is left over: the package has no kernels%s", Output, renew)
	}
	var names []string
	sum := ""
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, ofLine); ok {
			names = strings.Fields(rest)
		} else if rest, ok := strings.CutPrefix(line, sumLine); ok {
			sum = strings.TrimSpace(rest)
			break
		}
	}
	known := map[string]bool{}
	for _, n := range names {
		known[n] = true
	}
	for _, k := range marked {
		if !known[k.Name.Name] {
			return fmt.Errorf("%s is old: it has no kernel %s%s", Output, s.place(k), renew)
		}
	}
	if s.sum(names) != sum {
		return fmt.Errorf("%s is old: one of %s has changed or moved since%s", Output, strings.Join(names, ", "), renew)
	}
	return nil
}

func (s *source) place(f *ast.FuncDecl) string {
	p := s.fset.Position(f.Pos())
	return fmt.Sprintf("%s (%s:%d)", f.Name.Name, filepath.Base(p.Filename), p.Line)
}
