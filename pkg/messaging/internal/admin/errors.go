package admin

import (
	"errors"
	"net/http"
)

// The kinds of refusal. Package messaging gives them to its callers.
var (
	ErrNotFound = errors.New("messaging: not found")
	ErrExists   = errors.New("messaging: exists already")
	ErrBusy     = errors.New("messaging: in use")
)

// notSubscribed is an [ErrNotFound]: there is no figure, as opposed to none waiting. It also is
// what is heard of a topic none of whose partitions is served.
func notSubscribed() error {
	return &kindError{kind: ErrNotFound, err: errors.New("no such subscription at present")}
}

// statusError is an answer other than 2xx.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return e.text }

// Is makes a 404 an ErrNotFound.
func (e *statusError) Is(target error) bool {
	return target == ErrNotFound && e.code == http.StatusNotFound
}

// refusedWith reports whether the API answered with one of the codes.
func refusedWith(err error, codes ...int) bool {
	var status *statusError
	if !errors.As(err, &status) {
		return false
	}
	for _, code := range codes {
		if status.code == code {
			return true
		}
	}
	return false
}

// as makes err one of a kind when the API answered with one of the codes.
func as(kind, err error, codes ...int) error {
	if refusedWith(err, codes...) {
		return &kindError{kind: kind, err: err}
	}
	return err
}

// kindError is an error of a kind whose text says enough.
type kindError struct{ kind, err error }

func (e *kindError) Error() string   { return e.err.Error() }
func (e *kindError) Unwrap() []error { return []error{e.kind, e.err} }
