package lane

import "sync"

// failures are the lanes of a route to which one sink gives errors. The route is healthy again when
// no lane is left.
type failures struct {
	report func(error) // see Route.Report; nil: no reports

	mu    sync.Mutex // held while reporting: the last report is the current state
	lanes map[*Lane]struct{}
}

// add reports an error of lane l, unless l is closed.
func (f *failures) add(l *Lane, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.report == nil || l.ctx.Err() != nil { // remove is called after the end of l.ctx
		return
	}
	f.lanes[l] = struct{}{}
	f.report(err)
}

// remove ends the failure of lane l, if it has one: result is nil when l has recovered, and
// ErrClosed when it was closed. The last lane's result is reported.
func (f *failures) remove(l *Lane, result error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, failing := f.lanes[l]; !failing {
		return
	}
	if delete(f.lanes, l); len(f.lanes) == 0 {
		f.report(result)
	}
}
