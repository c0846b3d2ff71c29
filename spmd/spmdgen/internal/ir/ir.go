// Package ir is the normal form of kernels in Go. Every call that has an effect is a statement of
// its own, in Go's order. What is left of expressions are trees without effects.
//
// Analyses are made on this form: where slices and pointers may lie, what a function reads and
// writes, which loops are parallel, and where threads meet. A back end prints it.
package ir

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strings"

	"lockstep/internal/source"
)

// Unit is what the kernels of a package are made of.
type Unit struct {
	*source.Checked
	funcs   map[instance]*Function
	Order   []*Function     // callees first
	used    map[string]bool // names of declarations that the source is made of
	consts  map[*types.Const]bool
	working []*types.Func // functions that are being lowered
	has     func(o *types.Func) bool
}

type instance struct {
	of   *types.Func
	args string
}

// New begins a unit for a back end that has some functions of other packages.
func New(c *source.Checked, has func(o *types.Func) bool) *Unit {
	return &Unit{Checked: c, has: has, funcs: map[instance]*Function{}, used: map[string]bool{},
		consts: map[*types.Const]bool{}}
}

// Names returns the declarations that the source is made of.
func (u *Unit) Names() []string { return slices.Sorted(maps.Keys(u.used)) }

// Constants returns those of other packages but math, in the order of their names.
func (u *Unit) Constants() []*types.Const {
	return slices.SortedFunc(maps.Keys(u.consts), func(a, b *types.Const) int {
		return strings.Compare(a.Pkg().Path()+"."+a.Name(), b.Pkg().Path()+"."+b.Name())
	})
}

// Refuse ends the translation.
func (u *Unit) Refuse(at token.Pos, format string, a ...any) {
	panic(&source.Refusal{At: u.Fset.Position(at), What: fmt.Sprintf(format, a...)})
}

// use notes the declarations that a part of the source is made of.
func (u *Unit) use(n ast.Node) {
	ast.Inspect(n, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		if !ok {
			return true
		}
		obj := u.Info.Uses[id]
		if c, ok := obj.(*types.Const); ok && c.Pkg() != nil && c.Pkg() != u.Pkg && c.Pkg().Path() != "math" {
			u.consts[c] = true
		}
		if obj == nil || obj.Pkg() != u.Pkg {
			return true
		}
		name := obj.Name()
		if f, ok := obj.(*types.Func); ok && f.Signature().Recv() != nil {
			name = TypeName(f.Signature().Recv().Type()) + "." + name
		} else if obj.Parent() != u.Pkg.Scope() {
			return true
		}
		if d, ok := u.Decls[name]; ok && !u.used[name] {
			u.used[name] = true
			u.use(d.Node)
		}
		return true
	})
}

// TypeName returns the name of a named type, or of the type behind a pointer.
func TypeName(t types.Type) string {
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	if n, ok := types.Unalias(t).(*types.Named); ok {
		return n.Obj().Name()
	}
	return ""
}

// Qualifier names packages as generated code does: spmd's inside is spmd's.
func Qualifier(p *types.Package) string {
	if p.Path() == "lockstep/internal/elem" {
		return "spmd"
	}
	return p.Name()
}

// GoType returns a type as Go writes it.
func GoType(t types.Type) string { return types.TypeString(t, Qualifier) }

// SmallFloat reports whether a type is a float for storage, such as spmd.BF16.
func SmallFloat(t types.Type) bool {
	n, ok := types.Unalias(t).(*types.Named)
	return ok && n.Obj().Pkg() != nil && n.Obj().Pkg().Path() == "lockstep/internal/elem" &&
		slices.Contains([]string{"BF16", "F16", "F8E4M3", "F8E5M2"}, n.Obj().Name())
}

// Function is one instance of a Go function.
type Function struct {
	Of      *types.Func
	Args    []types.Type // of its type parameters
	Params  []*Var       // a receiver comes first
	Results []types.Type
	Body    []*Stmt
	Loops   bool // it, or what it calls, has a loop
	Size    int  // nodes of its syntax, with those of what it calls
	Row     int  // threads of a row, of a kernel of rows
	Unset   bool // the arrays that they share begin with anything
	Width   int  // elements of a thread that follow each other
	Own     map[int]*OwnedUse
	Guard   *Expr // it does nothing if this is true, for any index
	// Reads and Writes say for each parameter whether the memory behind it is read and written.
	Reads, Writes []bool
	returns       []Roots // of each result: the parameters behind which it may lie
}

// Var is a variable, of Go or of the lowering.
type Var struct {
	Name   string
	Type   types.Type // of the instance; nil for results of a call
	At     token.Pos
	Go     bool // it is in the source
	Param  int  // its place among the parameters, or -1
	Others bool // its declaration declares others, too
	Sets   int  // assignments, but for its declaration; an address counts
	Init   *Expr
	Ref    *Expr // the place that it stands for
	Place  Place // of an array in a kernel of rows
	scope  *scope
	turn   bool    // each turn of a loop has another
	to     Roots   // where a slice, a pointer, or an array of them, may lie
	parts  []Roots // the same for results of a call
	loop   *Stmt   // the loop over elements in which it is declared
}

// Place says where a local array of a kernel of rows lies.
type Place int

const (
	InThread Place = iota // each thread has all of it
	Kept                  // each has the elements of its own, in registers
	Shared
)

// scope is a block. A variable lives as long as its block.
type scope struct{ outer *scope }

func (s *scope) within(o *scope) bool {
	for ; s != nil; s = s.outer {
		if s == o {
			return true
		}
	}
	return false
}

// Root is memory: a variable itself, or what lies behind a parameter.
type Root struct {
	V    *Var
	Self bool
}

type Roots map[Root]bool

// add reports whether something is new.
func (r *Roots) add(o Roots) (grown bool) {
	for k := range o {
		if !(*r)[k] {
			if *r == nil {
				*r = Roots{}
			}
			(*r)[k] = true
			grown = true
		}
	}
	return grown
}

// Op is what an expression is.
type Op int

const (
	Const Op = iota
	Nil
	Local   // V
	Part    // the result Index of V, the results of a call
	Unary   // Tok X
	Binary  // X Tok Y, also of comparisons and shifts
	Deref   // *X
	Address // &X
	Index   // X[Y] of a slice or an array
	Slice   // X[Y:Z]
	Field   // X.Name
	Len     // of a slice
	Literal // of a struct or an array: Args, nil for zero
	Convert // to Type
	Builtin // Name: min, max, real, imag, complex
	Library // Obj, of another package
	Call    // Fn
)

// Expr is a tree without effects, but for a call that is a statement's X.
type Expr struct {
	Op    Op
	Type  types.Type
	At    token.Pos
	Args  []*Expr
	V     *Var
	Index int
	Value constant.Value
	Name  string
	Tok   token.Token
	Obj   *types.Func
	Fn    *Function
}

// Walk calls f for a tree and its parts, until f returns false for one.
func (e *Expr) Walk(f func(*Expr) bool) {
	if e == nil || !f(e) {
		return
	}
	for _, a := range e.Args {
		a.Walk(f)
	}
}

// has reports whether f is true for a tree or a part of it.
func (e *Expr) has(f func(*Expr) bool) (found bool) {
	e.Walk(func(e *Expr) bool {
		found = found || f(e)
		return !found
	})
	return found
}

// Is reports whether a tree is a variable.
func (e *Expr) Is(v *Var) bool { return e != nil && e.Op == Local && e.V == v && v != nil }

// same reports whether two trees are the same.
func (e *Expr) same(o *Expr) bool {
	if e == nil || o == nil {
		return e == o
	}
	return e.Op == o.Op && e.V == o.V && e.Index == o.Index && e.Name == o.Name && e.Tok == o.Tok && e.Obj == o.Obj &&
		e.Fn == o.Fn && (e.Value == nil) == (o.Value == nil) &&
		(e.Value == nil || constant.Compare(e.Value, token.EQL, o.Value)) &&
		slices.EqualFunc(e.Args, o.Args, (*Expr).same)
}

// Kind is what a statement is.
type Kind int

const (
	Declare  Kind = iota // V = X, or zero
	Refer                // V stands for the place To
	Assign               // To = X
	Update               // To Tok= X
	Do                   // X, whose result is not used
	If                   // X, Body, Else
	For                  // X, Post, Body
	Range                // Key, V over X: Body
	Block                // Body
	Break                // out of Of
	Continue             // the next turn of Of
	Return               // Args
	Meet                 // of the threads of a row
	MeetAny              // the same where arguments may overlap
	One                  // Body, by one thread of a row
	Elements             // Range whose turns run all at once; Row
)

// Stmt is a statement.
type Stmt struct {
	Kind       Kind
	At         token.Pos
	V, Key     *Var
	To, X      *Expr
	Tok        token.Token
	Args       []*Expr
	Body, Else []*Stmt
	Post       []*Stmt
	Of         *Stmt // of a branch: the statement that it leaves or goes on with
	Row        *RowLoop
}

// RowLoop is what a loop over the elements of a row is more than another.
type RowLoop struct {
	Own    map[*Var]*OwnedUse // slices whose elements it uses only at its own index
	Result []Accumulator
	Keep   int // packs of a thread that stay in registers
	Kept   []*Var
}

// Accumulator is a variable that a loop over elements reduces to.
type Accumulator struct {
	V  *Var
	Op string
}

// Walk calls f for statements and those in them. f says whether to go into one.
func Walk(list []*Stmt, f func(*Stmt) bool) {
	for _, s := range list {
		if f(s) {
			Walk(s.Body, f)
			Walk(s.Else, f)
			Walk(s.Post, f)
		}
	}
}

// exprs returns the trees of a statement itself, places included.
func (s *Stmt) exprs() []*Expr { return append([]*Expr{s.To, s.X}, s.Args...) }

// each calls f for all trees of statements, and their parts.
func each(list []*Stmt, f func(*Expr)) {
	Walk(list, func(s *Stmt) bool {
		for _, e := range s.exprs() {
			e.Walk(func(e *Expr) bool {
				f(e)
				return true
			})
		}
		return true
	})
}

// Slices returns the keys of own, in the order of their declarations.
func (p *RowLoop) Slices() []*Var {
	return slices.SortedFunc(maps.Keys(p.Own), func(a, b *Var) int { return int(a.At - b.At) })
}

// RowThreads are the threads that a row may have.
var RowThreads = []int{32, 64, 128, 256, 512, 1024}

// UnsetWord is in the comment of a kernel of rows whose shared arrays need not begin with 0.
const UnsetWord = "unset"

// RowsOf returns how many threads a row of a kernel has, or 0 if it is no kernel of rows.
func RowsOf(d *ast.FuncDecl) int {
	words, _ := source.Directive(d)
	for _, word := range words {
		if word == "rows" {
			return 256
		}
		var n int
		if k, err := fmt.Sscanf(word, "rows=%d", &n); k == 1 && err == nil {
			return n
		}
	}
	return 0
}
