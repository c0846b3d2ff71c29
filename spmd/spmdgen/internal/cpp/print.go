package cpp

import (
	"fmt"
	"go/token"
	"go/types"
	"path/filepath"
	"strings"

	"lockstep/spmd/spmdgen/internal/ir"
)

// printer prints one function.
type printer struct {
	*Unit
	fn    *ir.Function
	names map[*ir.Var]string
	taken map[string]bool
	count int // of names that Go has not
	text  strings.Builder
	depth int
	twins map[*ir.Var]string // variables that are indices, in the type I
	at    []*target          // the statements around, innermost last
}

// target is a statement that break or continue may mean.
type target struct {
	of                  *ir.Stmt
	onBreak, onContinue string // labels, if they are needed
}

func (p *printer) line(format string, a ...any) {
	p.text.WriteString(strings.Repeat("\t", p.depth))
	fmt.Fprintf(&p.text, format, a...)
	p.text.WriteByte('\n')
}

// fresh returns a name that Go has not.
func (p *printer) fresh(base string) string {
	p.count++
	return fmt.Sprintf("%s_%d", base, p.count)
}

// name returns the name of a variable, which no other in the function has.
func (p *printer) name(v *ir.Var) string {
	if n, ok := p.names[v]; ok {
		return n
	}
	n := Name(v.Name)
	if !v.Go || p.taken[n] {
		n = p.fresh(strings.TrimSuffix(n, "_"))
	}
	p.taken[n], p.names[v] = true, n
	return n
}

func (p *printer) variable(v *ir.Var) string { return declare(p.CType(v.At, v.Type), p.name(v)) }

// print returns a function as a template over the type I of indices.
func (u *Unit) print(f *ir.Function) string {
	p := &printer{Unit: u, fn: f, names: map[*ir.Var]string{}, taken: map[string]bool{}, twins: map[*ir.Var]string{},
		depth: 1}
	template := More + "typename I"
	head := "SPMD_WHERE"
	if len(f.Params) > 0 {
		head = "SPMD_WHERE_AND "
	}
	var params []string
	for i, v := range f.Params {
		ctype := p.CType(v.At, v.Type)
		if f.Own[i] != nil {
			ctype = fmt.Sprintf("S%d", i)
			template += ", typename " + ctype
		}
		params = append(params, declare(ctype, p.name(v)))
	}
	result := "void"
	switch at := f.Of.Pos(); len(f.Results) {
	case 0:
	case 1:
		result = p.CType(at, f.Results[0])
	default:
		var types []string
		for _, t := range f.Results {
			types = append(types, p.CType(at, t))
		}
		result = fmt.Sprintf("spmd::results%d<%s>", len(types), strings.Join(types, ", "))
	}
	in, skips := head+strings.Join(params, ", "), ""
	if f.Guard != nil {
		skips = fmt.Sprintf("template <%s> SPMD_FN bool %sskips(%s) { return %s; }\n", template, self, in,
			p.expr(f.Guard))
	}
	p.stmts(f.Body)
	body := "\n" + p.text.String()
	if len(f.Body) == 1 && strings.Count(body, "\n") == 2 {
		body = " " + strings.TrimSpace(body) + " "
	}
	return fmt.Sprintf("%stemplate <%s> SPMD_FN %s %s(%s) {%s}\n", skips, template, result, self, in, body)
}

// where returns a place in Go, for reports.
func (p *printer) where(at token.Pos) string {
	pos := p.Fset.Position(at)
	return fmt.Sprintf("%q", fmt.Sprintf("%s:%d", filepath.Base(pos.Filename), pos.Line))
}

func (p *printer) block(list []*ir.Stmt) {
	p.depth++
	p.stmts(list)
	p.depth--
}

func (p *printer) stmts(list []*ir.Stmt) {
	for _, s := range list {
		p.stmt(s)
	}
}

func (p *printer) stmt(s *ir.Stmt) {
	switch s.Kind {
	case ir.Declare:
		p.declaration(s)
	case ir.Refer:
		p.line("auto &%s = %s;", p.name(s.V), p.expr(s.To))
	case ir.Assign, ir.Update, ir.Do:
		p.line("%s", p.simple(s))
	case ir.If:
		p.choice(s, "")
	case ir.For:
		p.loop(s)
	case ir.Range:
		p.over(s)
	case ir.Block:
		t := p.enter(s)
		p.line("{")
		p.block(s.Body)
		p.line("}")
		p.leave(t)
	case ir.Break, ir.Continue:
		p.branch(s)
	case ir.Return:
		var values []string
		for _, a := range s.Args {
			values = append(values, p.expr(a))
		}
		switch len(values) {
		case 0:
			p.line("return;")
		case 1:
			p.line("return %s;", values[0])
		default:
			p.line("return {%s};", strings.Join(values, ", "))
		}
	case ir.Meet:
		p.line("spmd::meet<%d>();", p.fn.Row)
	case ir.MeetAny:
		p.line("spmd::meet_any<%d, I>();", p.fn.Row)
	case ir.One:
		p.line("if (spmd::leads<%d>()) {", p.fn.Row)
		p.block(s.Body)
		p.line("}")
	case ir.Elements:
		p.elements(s)
	}
}

func (p *printer) declaration(s *ir.Stmt) {
	v := s.V
	switch {
	case v.Type == nil:
		p.line("auto %s = %s;", p.name(v), p.expr(s.X))
	case v.Place != ir.InThread:
		p.array(v)
	case s.X == nil:
		p.line("%s = {};", p.variable(v))
	default:
		p.line("%s = %s;", p.variable(v), p.expr(s.X))
		p.twin(v)
	}
}

// simple returns an assignment or a call.
func (p *printer) simple(s *ir.Stmt) string {
	switch s.Kind {
	case ir.Assign:
		return fmt.Sprintf("%s = %s;", p.expr(s.To), p.expr(s.X))
	case ir.Do:
		if s.X.Type == nil {
			return p.expr(s.X) + ";"
		}
		return fmt.Sprintf("(void)(%s);", p.expr(s.X))
	}
	t, y := s.To.Type, p.expr(s.X)
	if s.Tok == token.SHL || s.Tok == token.SHR {
		y = p.shiftCount(s.X)
	}
	to := p.expr(s.To)
	switch {
	case p.plain(t, s.Tok):
		return fmt.Sprintf("%s %s= %s;", to, s.Tok, y)
	case p.several(t) && (s.Tok == token.ADD || s.Tok == token.SUB):
		return fmt.Sprintf("spmd::wrapping(%s) %s= %s;", to, s.Tok, y)
	case s.To.Op == ir.Local:
		return fmt.Sprintf("%s = %s;", to, p.binary(t, s.Tok, to, y, s.At))
	}
	place := p.fresh("place")
	return fmt.Sprintf("{ auto &%s = %s; %s = %s; }", place, to, place, p.binary(t, s.Tok, place, y, s.At))
}

// choice prints an if statement, behind "} else " if it continues another.
func (p *printer) choice(s *ir.Stmt, before string) {
	p.line("%sif (%s) {", before, p.expr(s.X))
	p.block(s.Body)
	switch {
	case len(s.Else) == 0:
		p.line("}")
	case len(s.Else) == 1 && s.Else[0].Kind == ir.If:
		p.choice(s.Else[0], "} else ")
	default:
		p.line("} else {")
		p.block(s.Else)
		p.line("}")
	}
}

func (p *printer) enter(s *ir.Stmt) *target {
	t := &target{of: s}
	p.at = append(p.at, t)
	return t
}

// leave ends what enter began, with the label that branches want.
func (p *printer) leave(t *target) {
	p.at = p.at[:len(p.at)-1]
	if t.onBreak != "" {
		p.line("%s:;", t.onBreak)
	}
}

func (p *printer) branch(s *ir.Stmt) {
	inner := true // no loop lies between
	i := len(p.at) - 1
	for ; p.at[i].of != s.Of; i-- {
		inner = inner && p.at[i].of.Kind == ir.Block
	}
	switch t := p.at[i]; {
	case s.Of.Kind == ir.Elements:
		p.line("return;")
	case s.Kind == ir.Continue && t.onContinue != "":
		p.line("goto %s;", t.onContinue)
	case s.Kind == ir.Continue:
		p.line("continue;")
	case inner && s.Of.Kind != ir.Block:
		p.line("break;")
	default:
		if t.onBreak == "" {
			t.onBreak = p.fresh("end")
		}
		p.line("goto %s;", t.onBreak)
	}
}

// body prints the body of a loop, and its end. continue's target lies outside of the block whose
// variables it leaves, if C++'s own continue does not do.
func (p *printer) body(t *target, post []*ir.Stmt) {
	p.depth++
	if len(post) > 0 || continues(t.of, t.of.Body, outermost) {
		t.onContinue = p.fresh("next")
		p.line("{")
		p.block(t.of.Body)
		p.line("}")
		p.line("%s:;", t.onContinue)
		p.stmts(post)
	} else {
		p.stmts(t.of.Body)
	}
	p.depth--
	p.line("}")
}

// The inner of continues.
const outermost = false

// continues reports whether a loop has a continue out of an inner loop.
func continues(of *ir.Stmt, list []*ir.Stmt, inner bool) bool {
	for _, s := range list {
		if s.Kind == ir.Continue && s.Of == of && inner ||
			continues(of, s.Body, inner || s.Kind == ir.For || s.Kind == ir.Range) || continues(of, s.Else, inner) {
			return true
		}
	}
	return false
}

func (p *printer) loop(s *ir.Stmt) {
	t := p.enter(s)
	cond, step, post := "", "", s.Post
	if s.X != nil {
		cond = p.expr(s.X)
	}
	if len(post) == 1 && (post[0].Kind == ir.Assign || post[0].Kind == ir.Update || post[0].Kind == ir.Do) {
		if text := strings.TrimSuffix(p.simple(post[0]), ";"); !strings.Contains(text, ";") {
			step, post = text, nil
		}
	}
	p.line("for (; %s; %s) {", cond, step)
	p.body(t, post)
	p.leave(t)
}

func (p *printer) over(s *ir.Stmt) {
	t := p.enter(s)
	index, ktype, begin, end := p.fresh("i"), "int64_t", "", ""
	x, block := p.expr(s.X), false
	switch u := s.X.Type.Underlying().(type) {
	case *types.Basic:
		ktype, end = p.CType(s.At, s.X.Type), x
		if s.X.Op != ir.Const {
			end = p.fresh("n")
			begin = fmt.Sprintf(", %s = %s", end, x)
		}
	default:
		a, array := u.(*types.Array)
		if block = (!array || s.V != nil) && (s.X.Op != ir.Local || s.X.V.Sets > 0); block { // a copy, as in Go
			p.line("{")
			p.depth++
			copied := p.fresh("x")
			p.line("%s %s = %s;", p.CType(s.At, s.X.Type), copied, x)
			x = copied
		}
		end = x + ".n"
		if x += ".p["; array {
			end, x = fmt.Sprint(a.Len()), strings.TrimSuffix(x, "p[")+"v["
		}
	}
	p.line("for (%s %s = 0%s; %s < %s; %s++) {", ktype, index, begin, index, end, index)
	p.depth++
	if s.Key != nil {
		p.line("%s %s = %s;", ktype, p.name(s.Key), index)
	}
	if s.V != nil {
		p.line("%s = %s%s];", p.variable(s.V), x, index)
	}
	p.depth--
	p.body(t, nil)
	if block {
		p.depth--
		p.line("}")
	}
	p.leave(t)
}

// array declares a local array that the threads of a row share.
func (p *printer) array(v *ir.Var) {
	t := v.Type.Underlying().(*types.Array)
	c := p.CType(v.At, t.Elem())
	name := p.name(v)
	switch {
	case v.Place == ir.Kept:
		p.line("spmd::array<%s, %d> %s = {};", c, p.fn.KeptLen(v), name)
		return
	case p.fn.Row > 32:
		p.line("__shared__ __align__(16) spmd::array<%s, %d> %s;", c, t.Len(), name)
	default:
		all := p.fresh("all")
		p.line("__shared__ __align__(16) spmd::array<%s, %d> %s[spmd::WARPS_OF_ROWS];", c, t.Len(), all)
		p.line("spmd::array<%s, %d> &%s = %s[threadIdx.x / 32];", c, t.Len(), name, all)
	}
	begin := "zero"
	if p.fn.Unset {
		begin = "unset"
	}
	p.line("spmd::%s<%d>(%s);", begin, p.fn.Row, name)
}

// elements prints a loop over the elements of a row.
func (p *printer) elements(s *ir.Stmt) {
	p.line("{")
	p.depth++
	end := p.fresh("n")
	switch u := s.X.Type.Underlying().(type) {
	case *types.Basic:
		p.line("const int64_t %s = %s;", end, p.expr(s.X))
	case *types.Slice:
		p.line("const int64_t %s = (%s).n;", end, p.expr(s.X))
	case *types.Array:
		p.line("const int64_t %s = %d;", end, u.Len())
	}
	for _, v := range s.Row.Kept {
		p.line("SPMD_KEPT(%s, %d, %s);", end, v.Type.Underlying().(*types.Array).Len(), p.where(s.At))
	}
	outer := map[*ir.Var]string{}
	for _, a := range s.Row.Result {
		t := p.CType(a.V.At, a.V.Type)
		outer[a.V] = p.name(a.V)
		p.names[a.V] = p.fresh("part")
		p.line("%s %s = spmd::op_%s<%s>::none();", t, p.names[a.V], a.Op, t)
	}
	key, body := p.name(s.Key), p.fresh("body")
	var params, uses []string
	for _, v := range s.Row.Slices() {
		params = append(params, ", auto "+p.name(v))
		uses = append(uses, fmt.Sprintf(", spmd::use<%v, %v>(%s)", s.Row.Own[v].Read, s.Row.Own[v].Written, p.name(v)))
	}
	p.line("auto %s = [&](int64_t %s, int slot%s) {", body, key, strings.Join(params, ""))
	t := p.enter(s)
	if s.V != nil {
		p.depth++
		p.line("%s = AT(%s, %s, %s);", p.variable(s.V), p.expr(s.X), key, p.where(s.At))
		p.depth--
	}
	p.block(s.Body)
	p.leave(t)
	p.line("};")
	p.line("spmd::elements<%d, %d, %d, I>(%s, %s%s);", p.fn.Row, p.fn.Width, s.Row.Keep, end, body,
		strings.Join(uses, ""))
	for _, a := range s.Row.Result {
		part, op := p.names[a.V], fmt.Sprintf("spmd::op_%s<%s>", a.Op, p.CType(a.V.At, a.V.Type))
		p.names[a.V] = outer[a.V]
		p.line("%s = %s::of(%s, spmd::row_reduce<%s, %s, %d>(%s));", outer[a.V], op, outer[a.V],
			p.CType(a.V.At, a.V.Type), op, p.fn.Row, part)
	}
	p.depth--
	p.line("}")
}
