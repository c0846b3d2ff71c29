package checkpoint

import (
	"errors"
	"io/fs"
	"path/filepath"
)

// candidates are the checkpoints of a folder that Load may take, on rank 0, the newest first.
// Another program may save there meanwhile: then some go, and newer ones come.
type candidates struct {
	m     *Manager
	left  []savedFolder
	tried map[string]int   // the serials of those that next has returned
	bad   map[string]error // why a folder cannot be used
	order []string         // of bad
}

// next returns the name of the newest that was not tried; "" if there is none, also after a further
// look.
func (c *candidates) next() (name string, err error) {
	for {
		for len(c.left) > 0 {
			k := c.left[0]
			c.left = c.left[1:]
			if serial, ok := c.tried[k.name]; !ok || serial != k.serial() {
				c.tried[k.name] = k.serial()
				return k.name, nil
			}
		}
		if again, err := c.look(); err != nil || !again {
			return "", err
		}
	}
}

// look looks through the folder, and says whether there is something new in it.
func (c *candidates) look() (again bool, err error) {
	all, err := c.m.disk.scan(c.m.dir)
	if err != nil {
		return false, err
	}
	for _, k := range all {
		serial, tried := c.tried[k.name]
		switch {
		case k.index != nil:
			if !tried || serial != k.serial() {
				c.left = append(c.left, k)
				again = true
			}
		case !k.temp && !k.aside && errors.Is(k.err, fs.ErrNotExist) &&
			!c.m.disk.isThere(filepath.Join(c.m.dir, k.name)):
			again = true // it was there a moment ago
		case c.bad[k.name] == nil:
			c.m.w.Log().Warn().Err(k.err).Str("checkpoint", k.name).Msg("checkpoint passed over")
			c.pass(k.name, k.err)
		}
	}
	return again, nil
}

// damaged notes that a checkpoint from next cannot be used.
func (c *candidates) damaged(name string, err error) {
	if !c.m.disk.isThere(filepath.Join(c.m.dir, name, markerName)) {
		c.m.w.Log().Debug().Str("checkpoint", name).Msg("the checkpoint is gone; a newer one is looked for")
		return
	}
	c.m.damaged[name] = true
	c.m.w.Log().Warn().Err(err).Str("checkpoint", name).Msg("damaged checkpoint passed over")
	c.pass(name, err)
}

func (c *candidates) pass(name string, err error) {
	c.bad[name] = err
	c.order = append(c.order, name)
}

// why returns the first reason for which nothing can be used. It returns nil if there are only
// rests of a save that was cut off, or checkpoints that have gone since.
func (c *candidates) why() error {
	for _, name := range c.order {
		if err := c.bad[name]; !errors.Is(err, errUnfinished) &&
			(c.m.disk.isThere(filepath.Join(c.m.dir, name)) || isLink(filepath.Join(c.m.dir, name))) {
			return err
		}
	}
	return nil
}
