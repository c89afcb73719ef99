// Package trial tries, before a service starts, the servers, credentials, topics and permissions that
// its configuration names. The package imports internal/config and pkg/messaging, no service.
package trial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/internal/config"
)

const (
	// Timeout bounds one trial.
	Timeout = 5 * time.Second
	// whole bounds all of them.
	whole = 13 * time.Second
)

// Trial is one thing that a service would use, and how to find out whether it can. Trials run side
// by side and change nothing: they create nothing, take nothing from others, and leave nothing
// behind.
type Trial struct {
	// Name is the YAML path and its value: "pulsar.url pulsar://127.0.0.1:6650".
	Name string
	// Try returns nil if the thing can be used, a [Note], or an error that says why it cannot be
	// used. It returns when ctx ends, which lasts for Timeout. Errors hold no secrets.
	Try func(ctx context.Context) error
	// Then holds the trials that run only after this one has succeeded, such as topics after their
	// server.
	Then []Trial
}

// Note is a remark in place of an error. It does not make the trial fail: the thing can be used, or
// it is not known whether it can.
type Note string

// Error returns the text.
func (n Note) Error() string { return string(n) }

// Notef makes a Note.
func Notef(format string, args ...any) error { return Note(fmt.Sprintf(format, args...)) }

// outcome is the result of a trial.
type outcome struct {
	trial Trial
	done  chan struct{}
	err   error // valid once done is closed
	then  []*outcome
}

// Run runs the trials until ctx ends and writes a line for each, in their order. It returns how
// many there were, and how many have failed or were not made because what they need has failed.
func Run(ctx context.Context, trials []Trial, out io.Writer) (tried, failed int) {
	ctx, cancel := context.WithTimeout(ctx, whole)
	defer cancel()
	for _, o := range begin(ctx, trials) {
		tried, failed = o.write(out, tried, failed)
	}
	return tried, failed
}

func begin(ctx context.Context, trials []Trial) []*outcome {
	all := make([]*outcome, len(trials))
	for i, t := range trials {
		all[i] = &outcome{trial: t, done: make(chan struct{})}
		go all[i].run(ctx)
	}
	return all
}

func (o *outcome) run(ctx context.Context) {
	defer close(o.done)
	if o.err = bounded(ctx, o.trial.Try); !IsFailure(o.err) {
		o.then = begin(ctx, o.trial.Then)
	}
}

// bounded gives up a trial that does not end with its context.
func bounded(ctx context.Context, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- try(ctx) }()
	const grace = 200 * time.Millisecond // for an error that says more than that there was no answer
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		select {
		case err = <-ended:
		case <-time.After(grace):
			err = ctx.Err()
		}
	}
	if IsFailure(err) && ctx.Err() != nil && errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %s (%w)", Timeout, err)
	}
	return err
}

// IsFailure reports whether the result of a trial is an error, and not a [Note].
func IsFailure(err error) bool {
	var note Note
	return err != nil && !errors.As(err, &note)
}

// write writes the lines of the trial and of those behind it, once they have ended.
func (o *outcome) write(out io.Writer, tried, failed int) (int, int) {
	<-o.done
	tried++
	text := "ok"
	switch {
	case IsFailure(o.err):
		failed++
		text = "failed: " + Plain(o.err)
	case o.err != nil:
		text = "note: " + o.err.Error()
	}
	line(out, o.trial.Name, text)
	for _, next := range o.then {
		tried, failed = next.write(out, tried, failed)
	}
	if o.then == nil {
		for _, t := range o.trial.Then {
			tried, failed = skip(out, t, tried, failed)
		}
	}
	return tried, failed
}

func skip(out io.Writer, t Trial, tried, failed int) (int, int) {
	line(out, t.Name, "not tried: the check above failed")
	tried, failed = tried+1, failed+1
	for _, next := range t.Then {
		tried, failed = skip(out, next, tried, failed)
	}
	return tried, failed
}

// line writes one line, without what may be a secret. That it cannot be written is found by whoever
// wrote the others.
func line(out io.Writer, name, text string) {
	fault := config.FieldError{Path: name, Problem: strings.ReplaceAll(text, "\n", "; ")}
	_, _ = fmt.Fprintf(out, "  %s\n", fault.Error())
}

// Plain is the text of an error for people.
func Plain(err error) string { return strings.ReplaceAll(err.Error(), "messaging: ", "") }

// Of is a trial whose outcome is known: a note, or what is in the way.
func Of(name string, outcome error) Trial {
	return Trial{Name: name, Try: func(context.Context) error { return outcome }}
}

// Place is a topic or queue that messages go to, and the path of the key that names it.
type Place struct{ Path, Name string }

// List is trials with what ends them. The zero List is ready to use; it is not safe for concurrent
// use.
type List struct {
	Trials []Trial
	ends   []func()
}

// Add adds a trial with its end.
func (l *List) Add(t Trial, end func()) { l.AddAll([]Trial{t}, end) }

// AddAll adds trials with the end of all of them.
func (l *List) AddAll(trials []Trial, end func()) {
	l.Trials, l.ends = append(l.Trials, trials...), append(l.ends, end)
}

// End calls all ends, side by side: a server that hangs holds up the end of its own trial only.
func (l *List) End() {
	var all sync.WaitGroup
	for _, end := range l.ends {
		all.Go(end)
	}
	all.Wait()
}
