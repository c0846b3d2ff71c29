package cudaexec

import (
	"errors"
	"hash/fnv"
	"sync"
	"unsafe"

	"lockstep/cuda/nvrtc"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/kernels"
)

// LoadDeclared compiles the kernels that the program has declared and loads them, so that no
// launch waits for a compiler. The first rank of a node compiles, or finds the
// binary on disk; the others receive it.
//
// Collective over the ranks of the node.
func (g *GPU) LoadDeclared(node control.Exchange, threads int) error {
	sources := kernels.All()
	same, err := g.sameSources(node, sources)
	if err != nil {
		return err
	}
	images := make([][]byte, len(sources))
	if node.Rank() == 0 || !same {
		images, err = g.compileAll(sources, threads)
	}
	if same {
		err = shareImages(node, images, err)
	}
	if err != nil {
		return err
	}
	return g.loadAll(sources, images)
}

// sameSources reports whether all ranks of the node have the same sources and the same
// architecture.
func (g *GPU) sameSources(node control.Exchange, sources []kernels.Source) (bool, error) {
	h := fnv.New64a()
	for _, s := range sources {
		for _, text := range append([]string{s.Key()}, s.Names...) {
			h.Write([]byte(text)) // never fails
			h.Write([]byte{0})
		}
	}
	v, err := control.Range(node, int64(h.Sum64())+int64(g.Capability()))
	return v.One(), err
}

// shareImages copies rank 0's images to the other ranks of the node; failure is rank 0's.
func shareImages(node control.Exchange, images [][]byte, failure error) error {
	sizes := make([]int64, len(images)+1)
	for i, b := range images {
		sizes[i+1] = int64(len(b))
	}
	if failure != nil {
		sizes[0] = 1
	}
	if err := node.Broadcast(unsafe.Pointer(&sizes[0]), len(sizes), elem.Int64, 0); err != nil {
		return err
	}
	if sizes[0] != 0 {
		if failure == nil {
			failure = errors.New("the first rank of the node could not compile the kernels")
		}
		return failure
	}
	for i := range images {
		if n := sizes[i+1]; node.Rank() != 0 {
			images[i] = make([]byte, n)
		}
		if err := node.Broadcast(unsafe.Pointer(&images[i][0]), len(images[i]), elem.Uint8, 0); err != nil {
			return err
		}
	}
	return nil
}

// compileAll compiles sources, with so many threads.
func (g *GPU) compileAll(sources []kernels.Source, threads int) ([][]byte, error) {
	images := make([][]byte, len(sources))
	cache := nvrtc.DefaultCache()
	errs := make([]error, len(sources))
	var wg sync.WaitGroup
	slots := make(chan struct{}, threads)
	for i, s := range sources {
		wg.Add(1)
		go func() {
			defer wg.Done()
			slots <- struct{}{}
			defer func() { <-slots }()
			images[i], errs[i] = g.compile(cache, &s)
		}()
	}
	wg.Wait()
	return images, errors.Join(errs...)
}

// loadAll brings compiled sources to the GPU.
func (g *GPU) loadAll(sources []kernels.Source, images [][]byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, s := range sources {
		if g.modules[s.Key()] != nil {
			continue // by an earlier world of this process
		}
		m, err := g.load(s.Key(), s.Names[0], images[i])
		if err != nil {
			return err
		}
		for _, name := range s.Names {
			if _, err := m.function(name); err != nil {
				return err
			}
		}
	}
	return nil
}
