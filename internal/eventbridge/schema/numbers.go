package schema

import (
	"encoding/json"
	"math/big"
	"strconv"
	"strings"
)

// The library converts a number to a fraction for each part that looks at it. The time grows with
// the number's digits and exponent. A number of usual size costs one step.

// sizePerStep is how many digits, or how much of an exponent, cost one more step.
const sizePerStep = 40

// long returns how many more steps it costs to convert a number to a fraction.
func long(n json.Number) int {
	text := string(n)
	size := len(text)
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		exponent, _ := strconv.Atoi(text[i+1:])
		size += max(exponent, -exponent)
	}
	return size / sizePerStep
}

// longOf is long for fractions of a schema.
func longOf(rats ...*big.Rat) (n int) {
	for _, r := range rats {
		if r != nil {
			n += (r.Num().BitLen() + r.Denom().BitLen()) * 3 / 10 / sizePerStep
		}
	}
	return n
}

// longest returns long of the longest number in a value.
func longest(v any) (n int) {
	switch v := v.(type) {
	case json.Number:
		return long(v)
	case map[string]any:
		for _, one := range v {
			n = max(n, longest(one))
		}
	case []any:
		for _, one := range v {
			n = max(n, longest(one))
		}
	}
	return n
}

// longBelow returns the additional cost of the long numbers in a value. cost is what the parts cost
// that apply to the value, composed the share of it for comparisons with lists and objects.
func (m *meter) longBelow(v any, cost, composed int) int {
	if n, ok := v.(json.Number); ok {
		return long(n) * cost
	}
	if composed == 0 {
		return 0
	}
	// A comparison looks at no more values than the value has that it compares with. This look is
	// charged, too: without a bound it would go through all values below each value, again and
	// again.
	w := walk{left: comparisons * (composed + 1), most: m.longest}
	w.through(v)
	return min(w.long, w.most)*composed + comparisons*(composed+1)/8 - w.left/8
}

// walk adds up long of the numbers in a value, until it has seen too many values, or the sum is
// large enough.
type walk struct{ left, long, most int }

func (w *walk) through(v any) {
	if w.left--; w.left <= 0 {
		w.left, w.long = 0, w.most
	}
	if w.long >= w.most {
		return
	}
	switch v := v.(type) {
	case json.Number:
		w.long += long(v)
	case map[string]any:
		for _, one := range v {
			if w.through(one); w.long >= w.most {
				return
			}
		}
	case []any:
		for _, one := range v {
			if w.through(one); w.long >= w.most {
				return
			}
		}
	}
}
