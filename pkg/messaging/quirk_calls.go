package messaging

import "context"

// within runs f in a goroutine and reports whether it returned before ctx ended. What f brings
// must need no undoing: callUntil is for that.
func within(ctx context.Context, f func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// callUntil calls f and gives it up when ctx ends: the error is ctx's cause then. What f brings
// later goes to undo.
func callUntil[T any](ctx context.Context, f func() (T, error), undo func(T)) (T, error) {
	type result struct {
		v   T
		err error
	}
	made := make(chan result) // unbuffered: a result is handed over or undone
	go func() {
		v, err := f()
		select {
		case made <- result{v, err}:
		case <-ctx.Done():
			if err == nil && undo != nil {
				undo(v)
			}
		}
	}()
	select {
	case r := <-made:
		return r.v, r.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

// eitherEnds is ctx that ends also when other does, with other's cause then.
func eitherEnds(ctx, other context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	forget := context.AfterFunc(other, func() { end(context.Cause(other)) })
	return ctx, func() {
		forget()
		end(nil)
	}
}

// canceled is a context that has ended.
func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
