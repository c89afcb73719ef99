package model

import (
	"errors"
	"fmt"
	"strings"

	"github.com/aviaryhq/aviary/internal/truncate"
)

// These are the errors of changes, besides [*Invalid] and [*ConflictError].
var (
	// ErrNotFound: there is no bus, or no subscriber, of that name.
	ErrNotFound = errors.New("not found")
	// ErrConflict: the condition of the change does not hold. See [ConflictError].
	ErrConflict = errors.New("the condition of the change does not hold")
	// ErrInUse: the bus has subscribers, or the topic of a former bus of the name is still in use.
	ErrInUse = errors.New("in use")
	// ErrUnavailable: nothing was stored, because Pulsar did not answer in time. The change may be
	// made again.
	ErrUnavailable = errors.New("nothing was changed: the registry cannot be written at present")
	// ErrUnknown: Pulsar did not say in time whether the change was stored. Read the object before
	// making it again.
	ErrUnknown = errors.New("it is not known whether the change was stored")
	// ErrNewer: the registry holds a record of a newer version of Eventbridge, so this one changes
	// nothing.
	ErrNewer = errors.New("the registry was written by a newer version of Eventbridge: update this instance before you change anything with it")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("the registry was closed")
)

// ConflictError says what the object is at present. errors.Is finds [ErrConflict] in it.
type ConflictError struct {
	// Revision is the present revision, 0 if the object does not exist.
	Revision int64
	Problem  string
}

func (e *ConflictError) Error() string { return e.Problem }

// Is makes errors.Is(err, ErrConflict) hold.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// Fault is one thing that is wrong with an object.
type Fault struct {
	// Pointer is the JSON Pointer (RFC 6901) of what is wrong, empty for the object as a whole.
	Pointer string `json:"pointer"`
	// Problem says what is wrong and what would be right, without a full stop.
	Problem string `json:"problem"`
	// Item is the bus or the subscriber of an imported file that the fault is about, such as
	// "subscriber orders/mail". Below is the pointer within it.
	Item  string `json:"-"`
	Below string `json:"-"`
}

// String returns the fault for people, with the name of what it is about.
func (f Fault) String() string {
	var parts []string
	for _, part := range []string{f.Item, f.Below, f.Problem} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	if f.Item == "" && f.Pointer != "" {
		parts = append([]string{f.Pointer}, parts...)
	}
	return strings.Join(parts, ": ")
}

// Invalid is the error of an object that is not valid. It has all faults, but no more than 100.
type Invalid struct {
	Faults []Fault
	// More is how many further faults there are.
	More int
}

const maxFaults = 100

// Error returns all faults in one line.
func (e *Invalid) Error() string {
	parts := make([]string, 0, len(e.Faults)+1)
	for _, f := range e.Faults {
		if f.Pointer == "" {
			parts = append(parts, f.Problem)
		} else {
			parts = append(parts, f.Pointer+": "+f.Problem)
		}
	}
	if e.More > 0 {
		parts = append(parts, fmt.Sprintf("and %d more faults", e.More))
	}
	return strings.Join(parts, "; ")
}

// FaultList collects what is wrong.
type FaultList []Fault

// Add adds what is wrong with the value at a JSON pointer.
func (f *FaultList) Add(pointer, format string, args ...any) {
	*f = append(*f, Fault{Pointer: pointer, Problem: fmt.Sprintf(format, args...)})
}

// below adds faults whose pointers are relative to pointer.
func (f *FaultList) below(pointer string, more []Fault) {
	for _, m := range more {
		*f = append(*f, Fault{Pointer: pointer + m.Pointer, Problem: m.Problem})
	}
}

// UnlessAt adds those faults of more that are not about a value, or a part of one, that known
// already has a fault of.
func (f *FaultList) UnlessAt(known []Fault, more []Fault) {
	for _, m := range more {
		covered := false
		for _, k := range known {
			covered = covered || within(m.Pointer, k.Pointer) || m.Pointer != "" && within(k.Pointer, m.Pointer)
		}
		if !covered {
			*f = append(*f, m)
		}
	}
}

// within reports whether the value at pointer is the one at whole or a part of it.
func within(pointer, whole string) bool {
	return pointer == whole || strings.HasPrefix(pointer, whole+"/")
}

// maxFault bounds a fault's pointer and its problem, in bytes: both may repeat what was given.
const maxFault = 1 << 10

// Short returns the fault with a pointer and a problem of at most 1 KiB each.
func (f Fault) Short() Fault {
	f.Pointer, f.Problem, f.Below = truncate.Text(f.Pointer, maxFault), truncate.Text(f.Problem, maxFault), truncate.Text(f.Below, maxFault)
	return f
}

// Err returns an *Invalid, or nil if there are no faults.
func (f FaultList) Err() error {
	if len(f) == 0 {
		return nil
	}
	made := &Invalid{More: max(len(f)-maxFaults, 0)}
	for _, one := range f[:min(len(f), maxFaults)] {
		made.Faults = append(made.Faults, one.Short())
	}
	return made
}

// Step returns a key as a part of a JSON Pointer.
func Step(key string) string {
	if !strings.ContainsAny(key, "~/") {
		return "/" + key
	}
	return "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}
