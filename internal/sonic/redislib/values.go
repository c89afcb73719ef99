package redislib

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// Values reads a reply, which is a list, value by value. It keeps the first error, and then returns
// zero values.
type Values struct {
	left []any
	err  *error
}

// errReply says that this version cannot read the reply of a function.
var errReply = errors.New("a reply of the library cannot be read")

// ValuesOf returns the values of the result of a request.
func ValuesOf(reply any, err error) *Values {
	v := &Values{left: []any{reply}, err: &err}
	return v.List()
}

// Err returns the first error.
func (v *Values) Err() error { return *v.err }

// Fail sets the error if there is none.
func (v *Values) Fail(format string, args ...any) {
	if *v.err == nil {
		*v.err = fmt.Errorf("%w: "+format, append([]any{errReply}, args...)...)
	}
}

// More reports whether there is another value.
func (v *Values) More() bool { return len(v.left) > 0 && *v.err == nil }

func (v *Values) next() any {
	if !v.More() {
		v.Fail("a value is missing")
		return nil
	}
	value := v.left[0]
	v.left = v.left[1:]
	return value
}

// Text reads a text or a number.
func (v *Values) Text() string {
	switch value := v.next().(type) {
	case string:
		return value
	case int64:
		return strconv.FormatInt(value, 10)
	default:
		v.Fail("%T is no text", value)
		return ""
	}
}

// Number reads a number.
func (v *Values) Number() int64 {
	n, err := strconv.ParseInt(v.Text(), 10, 64)
	if err != nil {
		v.Fail("%w", err)
	}
	return n
}

// ID reads the id of an effect.
func (v *Values) ID() wire.ID {
	id, err := wire.ParseID(v.Text())
	if err != nil {
		v.Fail("%w", err)
	}
	return id
}

// List reads a list.
func (v *Values) List() *Values {
	list, ok := v.next().([]any)
	if !ok {
		v.Fail("no list")
	}
	return &Values{left: list, err: v.err}
}
