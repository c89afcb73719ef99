package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// FieldError is one fault of a configuration.
type FieldError struct {
	Path    string // the YAML path, such as "pulsar.url" or "lanes[2].from"; empty when the fault is not one key's
	Problem string // what is wrong and what would be right, such as `must be > 0, got "x"`
	Origin  string // where the value came from, such as "line 3" or "$NIGHTINGALE_PULSAR_URL"; empty when it is a default
}

// Error returns "path: problem (origin)".
func (e *FieldError) Error() string {
	text := e.Problem
	if e.Path != "" {
		text = e.Path + ": " + text
	}
	if e.Origin != "" {
		text += " (" + e.Origin + ")"
	}
	return redactBare(redact(text))
}

// Fault returns a fault at a path, for use in Validate methods. The path is relative to the value
// that is validated.
func Fault(path, format string, args ...any) error {
	return &FieldError{Path: path, Problem: fmt.Sprintf(format, args...)}
}

// Error holds every fault that a configuration has.
type Error struct {
	Name   string // the binary's
	Source string // what the configuration was made of, such as "file x.yaml, environment"
	Faults []*FieldError
}

// Error returns a header and one line per fault, for people.
func (e *Error) Error() string {
	count := "1 fault"
	if len(e.Faults) != 1 {
		count = fmt.Sprintf("%d faults", len(e.Faults))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s in the configuration (%s)", e.Name, count, e.Source)
	for _, fault := range e.Faults {
		b.WriteString("\n  " + strings.ReplaceAll(fault.Error(), "\n", "\n    "))
	}
	return b.String()
}

// Unwrap gives errors.Is and errors.As the faults.
func (e *Error) Unwrap() []error {
	errs := make([]error, len(e.Faults))
	for i, fault := range e.Faults {
		errs[i] = fault
	}
	return errs
}

// Validate calls the Validate() error method of cfg and of every value in it that has one:
// sections, inlined or not, elements of lists and maps, and values of named types. It returns the
// faults of all of them by their path from cfg, in the order of the struct's fields.
//
// What a method returns may be joined by errors.Join. Each part is a [FieldError] or has the text
// "path: problem", the path relative to the value validated; a text that does not start with a path
// is a fault of the value itself.
func Validate(cfg any) []*FieldError {
	v := reflect.ValueOf(cfg)
	if v.Kind() != reflect.Pointer {
		p := reflect.New(v.Type()) // methods may have pointer receivers: they need a value with an address
		p.Elem().Set(v)
		v = p
	}
	return distinct(validate(v, ""))
}

func validate(v reflect.Value, path string) []*FieldError {
	if v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		if v.IsNil() {
			return nil
		}
		return validate(v.Elem(), path)
	}
	faults := ownFaults(v, path)
	switch v.Kind() {
	case reflect.Struct:
		faults = append(faults, inlinedFaults(v, path)...)
		for _, k := range keysOf(v.Type()) {
			faults = append(faults, validate(v.FieldByIndex(k.index), join(path, k.name))...)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			faults = append(faults, validate(v.Index(i), fmt.Sprintf("%s[%d]", path, i))...)
		}
	case reflect.Map:
		for _, name := range sortedKeys(v) {
			element := reflect.New(v.Type().Elem()).Elem()
			element.Set(v.MapIndex(name))
			faults = append(faults, validate(element, join(path, fmt.Sprint(name)))...)
		}
	}
	return faults
}

// inlinedFaults returns the faults of the structs that are inlined into v: their keys are at v's
// own path.
func inlinedFaults(v reflect.Value, path string) []*FieldError {
	var faults []*FieldError
	for i := range v.NumField() {
		if isInlined(v.Type().Field(i)) {
			faults = append(append(faults, ownFaults(v.Field(i), path)...), inlinedFaults(v.Field(i), path)...)
		}
	}
	return faults
}

func ownFaults(v reflect.Value, path string) []*FieldError {
	if v.CanAddr() {
		v = v.Addr()
	}
	if !v.CanInterface() {
		return nil
	}
	validator, ok := v.Interface().(interface{ Validate() error })
	if !ok {
		return nil
	}
	var faults []*FieldError
	for _, err := range split(validator.Validate()) {
		fault := asFault(err, v.Type())
		faults = append(faults, &FieldError{Path: join(path, fault.Path), Problem: fault.Problem})
	}
	return faults
}

// split returns the errors that errors.Join joined, at any depth. An error of fmt.Errorf with
// several %w has its own text, and is one fault.
func split(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || errors.Join(joined.Unwrap()...).Error() != err.Error() {
		return []error{err}
	}
	var parts []error
	for _, part := range joined.Unwrap() {
		parts = append(parts, split(part)...)
	}
	return parts
}

// asFault finds the path in the text of an error about a value of type t: the text before the first
// ": ", if it begins with a key of t. Any other text is a fault of the value itself.
func asFault(err error, t reflect.Type) *FieldError {
	if fault, ok := err.(*FieldError); ok { //nolint:errorlint // a wrapped one would lose what its wrapper says
		return fault
	}
	path, problem, found := strings.Cut(err.Error(), ": ")
	if t = indirect(t); found && t.Kind() == reflect.Struct {
		first := path
		if end := strings.IndexAny(path, ".["); end >= 0 {
			first = path[:end]
		}
		if slices.ContainsFunc(keysOf(t), func(k key) bool { return k.name == first }) {
			return &FieldError{Path: path, Problem: problem}
		}
	}
	return &FieldError{Problem: err.Error()}
}

// distinct drops repeated faults: a Validate promoted from an inlined struct, or called by its
// parent's, is met twice.
func distinct(faults []*FieldError) []*FieldError {
	var kept []*FieldError
	met := map[FieldError]bool{}
	for _, fault := range faults {
		if !met[*fault] {
			met[*fault] = true
			kept = append(kept, fault)
		}
	}
	return kept
}

func sortedKeys(m reflect.Value) []reflect.Value {
	return slices.SortedFunc(slices.Values(m.MapKeys()), func(a, b reflect.Value) int {
		return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
	})
}
