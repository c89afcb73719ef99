package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// uniqueKeyword replaces uniqueItems in the schemas that the library gets. Its own check takes
// quadratic time for a list whose elements have the same hash, which a sender can construct.
const uniqueKeyword = "aviary-uniqueItems"

// unique checks that no two elements of a list are equal.
type unique struct{}

func compileUnique(_ *jsonschema.CompilerContext, schema map[string]any) (jsonschema.SchemaExt, error) {
	if schema[uniqueKeyword] != true {
		return nil, nil //nolint:nilnil // the interface of the library: the keyword is not there
	}
	return unique{}, nil
}

// Validate implements [jsonschema.SchemaExt].
func (unique) Validate(ctx *jsonschema.ValidatorContext, v any) {
	list, _ := v.([]any)
	if len(list) < 2 {
		return
	}
	seen := make(map[string]int, len(list))
	for i, element := range list {
		text := string(appendCanonical(nil, element))
		if first, twice := seen[text]; twice {
			ctx.AddError(&kind.UniqueItems{Duplicates: [2]int{first, i}})
			return
		}
		seen[text] = i
	}
}

// appendCanonical appends a text that equal values, and only these, have in common.
func appendCanonical(b []byte, v any) []byte {
	switch v := v.(type) {
	case map[string]any:
		b = append(b, '{')
		for _, name := range slices.Sorted(maps.Keys(v)) {
			b = append(appendCanonical(append(strconv.AppendQuote(b, name), ':'), v[name]), ',')
		}
		return append(b, '}')
	case []any:
		b = append(b, '[')
		for _, element := range v {
			b = append(appendCanonical(b, element), ',')
		}
		return append(b, ']')
	case string:
		return strconv.AppendQuote(b, v)
	case json.Number:
		return appendNumber(b, string(v))
	default: // a bool or nil
		return fmt.Append(b, v)
	}
}

// appendNumber appends a number as digits and an exponent. The text is about as short as the number
// is written: as a fraction, 1e-400 has 400 digits.
func appendNumber(b []byte, text string) []byte {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(text), "e")
	mantissa, negative := strings.CutPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	short := strings.TrimRight(digits, "0")
	if short == "" {
		return append(b, '0')
	}
	if negative {
		b = append(b, '-')
	}
	n, _ := strconv.Atoi(exponent) // decode has checked it; without an exponent it is 0
	return strconv.AppendInt(append(append(b, short...), 'e'), int64(n+len(digits)-len(short)-len(fraction)), 10)
}
