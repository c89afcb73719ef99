package pipeline

import "sync"

// failures are the pipelines of a route to which one sink gives errors. The route is healthy again when
// no pipeline is left.
type failures struct {
	report func(error) // see Route.Report; nil: no reports

	mu        sync.Mutex // held while reporting: the last report is the current state
	pipelines map[*Pipeline]struct{}
}

// add reports an error of pipeline l, unless l is closed.
func (f *failures) add(l *Pipeline, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.report == nil || l.ctx.Err() != nil { // remove is called after the end of l.ctx
		return
	}
	f.pipelines[l] = struct{}{}
	f.report(err)
}

// remove ends the failure of pipeline l, if it has one: result is nil when l has recovered, and
// ErrClosed when it was closed. The last pipeline's result is reported.
func (f *failures) remove(l *Pipeline, result error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, failing := f.pipelines[l]; !failing {
		return
	}
	if delete(f.pipelines, l); len(f.pipelines) == 0 {
		f.report(result)
	}
}
