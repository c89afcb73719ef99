package clientquirks

import "context"

// Most calls of the client have no context, and some hang for good (consumer_impl.go,
// internalTopicSubscribeToPartitions; producer and reader wait for the operation timeout at
// least). The functions here bound them. A call that was given up continues in its goroutine.

// Within runs f in a goroutine and reports whether f returned before ctx ended. The result of f
// must need no undoing: see CallUntil.
func Within(ctx context.Context, f func()) bool {
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

// CallUntil calls f. When ctx ends first, it returns ctx's cause, and passes a later result to
// undo.
func CallUntil[T any](ctx context.Context, f func() (T, error), undo func(T)) (T, error) {
	type result struct {
		v   T
		err error
	}
	made := make(chan result) // unbuffered: the caller receives the result, or undo does
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

// EitherEnds returns a context that ends with ctx or, with its cause, with other.
func EitherEnds(ctx, other context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	forget := context.AfterFunc(other, func() { end(context.Cause(other)) })
	return ctx, func() {
		forget()
		end(nil)
	}
}

// Canceled returns a context that has ended.
func Canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
