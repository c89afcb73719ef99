package schema

import (
	"encoding/json"
	"math/big"
	"strconv"
	"strings"
)

// A number is made a fraction for each part that looks at it, in a time that grows with its digits and its exponent. Those of usual size are a step.

// sizePerStep is how many digits, or how much of an exponent, are a step more.
const sizePerStep = 40

// long is how many more steps it is to make a fraction of a number.
func long(n json.Number) int {
	text := string(n)
	size := len(text)
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		exponent, _ := strconv.Atoi(text[i+1:])
		size += max(exponent, -exponent)
	}
	return size / sizePerStep
}

// longOf is the same for a fraction of a schema.
func longOf(rats ...*big.Rat) (n int) {
	for _, r := range rats {
		if r != nil {
			n += (r.Num().BitLen() + r.Denom().BitLen()) * 3 / 10 / sizePerStep
		}
	}
	return n
}

// longest is that of the longest number in a value.
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

// longBelow is what it costs besides that a value has long numbers, if a part is held against it that costs so much in all, of which composed is for
// comparisons with lists and objects.
func (m *meter) longBelow(v any, cost, composed int) int {
	if n, ok := v.(json.Number); ok {
		return long(n) * cost
	}
	if composed == 0 {
		return 0
	}
	// No comparison looks at more values than what it compares with has. The look at them is charged, too: without a bound it would go through all that is
	// below each value, again and again.
	w := walk{left: comparisons * (composed + 1), most: m.longest}
	w.through(v)
	return min(w.long, w.most)*composed + comparisons*(composed+1)/8 - w.left/8
}

// walk adds up how long the numbers in a value are, until there are too many values, or enough.
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
