package adminapi

import (
	"errors"
	"net/http"
	"slices"
)

var (
	// ErrNoAdminURL says that the call needs the admin API and no [Config].AdminURL is set.
	ErrNoAdminURL = errors.New("messaging: no admin_url is set, the address of the brokers' admin API")
	// ErrNotFound is in the error of a call of the admin API about a topic, a subscription
	// or a namespace that does not exist. Publishers have [ErrTopicNotFound].
	ErrNotFound = errors.New("messaging: not found")
	// ErrExists is in the error of a call that creates what exists already, otherwise than
	// it was asked for.
	ErrExists = errors.New("messaging: exists already")
	// ErrBusy is in the error of a call of the admin API that has to wait for others:
	// clients use the topic or the subscription, or the same operation runs.
	ErrBusy = errors.New("messaging: in use")
)

// notSubscribed is an [ErrNotFound]. Brokers also answer so when they serve none of the topic's
// partitions.
func notSubscribed() error {
	return &kindError{kind: ErrNotFound, err: errors.New("the subscription does not exist now")}
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
	return errors.As(err, &status) && slices.Contains(codes, status.code)
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
