package lane

import "sync"

// illness is one kind of trouble that lanes of a route have, each by itself: it is over when none of them has it.
type illness struct {
	report func(error) // see Route.Report; nil: nobody is told

	mu    sync.Mutex // held while reporting: what is said last is what is so
	lanes map[*Lane]struct{}
}

// note says that l has it, unless l ends.
func (i *illness) note(l *Lane, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.report == nil || l.ctx.Err() != nil { // over comes after the end of ctx
		return
	}
	i.lanes[l] = struct{}{}
	i.report(err)
}

// over says that l has it no more: why is nil when l got through, and ErrClosed when it has ended.
func (i *illness) over(l *Lane, why error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, ill := i.lanes[l]; !ill {
		return
	}
	if delete(i.lanes, l); len(i.lanes) == 0 {
		i.report(why)
	}
}
