package registry

import (
	"errors"
	"fmt"
	"strings"

	"github.com/aviaryhq/aviary/internal/door"
)

// The errors of changes, besides [*Invalid] and [*ConflictError].
var (
	// ErrNotFound: there is no bus, or no subscriber, of that name.
	ErrNotFound = errors.New("not found")
	// ErrConflict: the condition of the change does not hold. See [ConflictError].
	ErrConflict = errors.New("the condition of the change does not hold")
	// ErrInUse: the bus has subscribers, or the topic of a former bus of the name is still in use.
	ErrInUse = errors.New("in use")
	// ErrUnavailable: nothing was stored, because Pulsar did not answer in time. The change may be made again.
	ErrUnavailable = errors.New("nothing was changed: the registry cannot be written at present")
	// ErrUnknown: Pulsar did not say in time whether the change was stored. Read the object before making it again.
	ErrUnknown = errors.New("it is not known whether the change was stored")
	// ErrNewer: the registry holds a record of a newer version of Eventbridge, so this one changes nothing.
	ErrNewer = errors.New("the registry was written by a newer version of Eventbridge: update this instance before changing anything by it")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("the registry was closed")
)

// ConflictError says what the object is at present. errors.Is finds [ErrConflict] in it.
type ConflictError struct {
	// Revision is the present one, 0 when there is no such object.
	Revision int64
	problem  string
}

func (e *ConflictError) Error() string { return e.problem }

// Is makes errors.Is(err, ErrConflict) hold.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// Fault is one thing that is wrong with an object.
type Fault struct {
	// Pointer is the JSON Pointer (RFC 6901) of what is wrong, empty for the object as a whole.
	Pointer string `json:"pointer"`
	// Problem says what is wrong and what would be right, without a full stop.
	Problem string `json:"problem"`
}

// Invalid is the error of an object that is not valid. It has all faults, but no more than 100.
type Invalid struct {
	Faults []Fault
	// More is how many faults there are beyond these.
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

// faults gathers what is wrong.
type faults []Fault

func (f *faults) add(pointer, format string, args ...any) {
	*f = append(*f, Fault{Pointer: pointer, Problem: fmt.Sprintf(format, args...)})
}

// below adds faults whose pointers are relative to one.
func (f *faults) below(pointer string, more []Fault) {
	for _, m := range more {
		*f = append(*f, Fault{Pointer: pointer + m.Pointer, Problem: m.Problem})
	}
}

// unlessAt adds the faults that are not about a value, or a part of one, of which known says what is wrong.
func (f *faults) unlessAt(known []Fault, more []Fault) {
	for _, m := range more {
		told := false
		for _, k := range known {
			told = told || within(m.Pointer, k.Pointer) || m.Pointer != "" && within(k.Pointer, m.Pointer)
		}
		if !told {
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

// Short is the fault with a pointer and a problem of at most 1 KiB each.
func (f Fault) Short() Fault {
	return Fault{Pointer: door.Cut(f.Pointer, maxFault), Problem: door.Cut(f.Problem, maxFault)}
}

// err is an *Invalid, or nil without faults.
func (f faults) err() error {
	if len(f) == 0 {
		return nil
	}
	made := &Invalid{More: max(len(f)-maxFaults, 0)}
	for _, one := range f[:min(len(f), maxFaults)] {
		made.Faults = append(made.Faults, one.Short())
	}
	return made
}

// step is a key as a part of a JSON Pointer.
func step(key string) string {
	if !strings.ContainsAny(key, "~/") {
		return "/" + key
	}
	return "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}
