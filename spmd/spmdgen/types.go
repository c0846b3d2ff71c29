package main

import (
	"go/types"

	"lockstep/spmd/spmdgen/internal/ir"
)

func isStruct(t types.Type) bool {
	_, ok := t.Underlying().(*types.Struct)
	return ok
}

func names(list []types.Type) (all []string) {
	for _, t := range list {
		all = append(all, ir.GoType(t))
	}
	return all
}

func typeSet(constraint types.Type) (all []types.Type) {
	i, ok := constraint.Underlying().(*types.Interface)
	if !ok {
		return nil
	}
	for e := range i.EmbeddedTypes() {
		switch e := types.Unalias(e).(type) {
		case *types.Union:
			for t := range e.Terms() {
				if _, ok := t.Type().Underlying().(*types.Interface); ok {
					all = append(all, typeSet(t.Type())...)
				} else {
					all = append(all, t.Type())
				}
			}
		default:
			if _, ok := e.Underlying().(*types.Interface); ok {
				all = append(all, typeSet(e)...)
			} else {
				all = append(all, e)
			}
		}
	}
	return all
}
