package kernels

import (
	"regexp"
	"strings"
	"sync"
)

// declarations are those of kernels, by the texts of their sources.
var declarations sync.Map

// declaration is a kernel's name, which in a macro has a part behind "##", and its parameters.
type declaration struct{ name, params string }

var (
	comments = regexp.MustCompile(`//[^\n]*|(?s:/\*.*?\*/)|\\\n`)
	pointer  = regexp.MustCompile(`\*|\bspmd::ptr<`) // ptr of kernels in Go
	reads    = regexp.MustCompile(`\bconst\b[^*]*\*|\bspmd::ptr<I, const `)
)

// Written returns which parameters of a kernel its declaration lets it write, as bits: pointers,
// but not those to what is const. It is false if the text has no such kernel.
func (s *Source) Written(name string) (params uint64, known bool) {
	all, ok := declarations.Load(s.Text)
	if !ok {
		all, _ = declarations.LoadOrStore(s.Text, declarationsOf(s.Text))
	}
	name, _, _ = strings.Cut(name, "<")
	for _, d := range all.([]declaration) {
		begin, _, cut := strings.Cut(d.name, "##")
		if d.name != name && !(cut && strings.HasPrefix(name, begin)) {
			continue
		}
		known = true
		depth, from, param := 0, 0, 0
		for i, c := range d.params + "," {
			switch {
			case strings.ContainsRune("<([", c):
				depth++
			case strings.ContainsRune(">)]", c):
				depth--
			case c == ',' && depth == 0:
				if p := d.params[from:i]; pointer.MatchString(p) && !reads.MatchString(p) {
					params |= 1 << param
				}
				from, param = i+1, param+1
			}
		}
	}
	return params, known
}

// declarationsOf finds the kernels in a text: what stands between __global__ and a body.
func declarationsOf(text string) (list []declaration) {
	for _, part := range strings.Split(comments.ReplaceAllString(text, " "), "__global__")[1:] {
		head := part[:max(0, strings.IndexAny(part, "{;"))]
		end := strings.LastIndexByte(head, ')')
		begin := end
		for depth := 0; begin >= 0; begin-- {
			if head[begin] == ')' {
				depth++
			} else if head[begin] == '(' {
				if depth--; depth == 0 {
					break
				}
			}
		}
		if begin > 0 {
			words := strings.Fields(head[:begin])
			list = append(list, declaration{words[len(words)-1], head[begin+1 : end]})
		}
	}
	return list
}
