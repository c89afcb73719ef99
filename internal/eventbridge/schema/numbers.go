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

// longIn is that of all numbers in a value.
func longIn(v any) (n int) {
	switch v := v.(type) {
	case json.Number:
		return long(v)
	case map[string]any:
		for _, one := range v {
			n += longIn(one)
		}
	case []any:
		for _, one := range v {
			n += longIn(one)
		}
	}
	return n
}

// longBelow is what it costs besides that a value has long numbers, if a part is held against it that costs so much in all, of which heavy is for comparisons.
func longBelow(v any, cost, heavy int) int {
	if n, ok := v.(json.Number); ok {
		return long(n) * cost
	}
	if heavy == 0 {
		return 0
	}
	return longIn(v) * heavy
}
