package message

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// The kinds of typed values are the letters that AMQP 0-9-1 gives to the types of a
// table's fields, as RabbitMQ uses them: see kindOf.
const (
	kindString = 'S'
	kindBytes  = 'x'
	kindNull   = 'V'
	kindArray  = 'A'
	kindTable  = 'F'
	// kindBinary is not AMQP's: a string that is not valid UTF-8.
	kindBinary = 'y'
)

// maxDepth bounds how deep arrays and tables are nested that are read from text. A
// frame of RabbitMQ, 128 KiB, cannot nest them deeper than a half of it.
const maxDepth = 1 << 16

func kindOf(v any) byte {
	switch v.(type) {
	case bool:
		return 't'
	case int8:
		return 'b'
	case uint8:
		return 'B'
	case int16:
		return 's'
	case uint16:
		return 'u'
	case int32:
		return 'I'
	case uint32:
		return 'i'
	case int64:
		return 'l'
	case float32:
		return 'f'
	case float64:
		return 'd'
	case Decimal:
		return 'D'
	case time.Time:
		return 'T'
	case []byte:
		return kindBytes
	case []any:
		return kindArray
	case Table:
		return kindTable
	case Null, nil:
		return kindNull
	}
	return kindString
}

// scalar reports whether the text of a value of this kind is enough to restore it.
func scalar(kind byte) bool { return kind != kindArray && kind != kindTable && kind != kindNull }

// canonical replaces nil by Null and times by those in UTC. It changes arrays and tables in place.
func canonical(v any) any {
	switch v := v.(type) {
	case nil:
		return Null{}
	case time.Time:
		return time.Unix(v.Unix(), 0).UTC()
	case []any:
		for i := range v {
			v[i] = canonical(v[i])
		}
	case Table:
		for name := range v {
			v[name] = canonical(v[name])
		}
	}
	return v
}

// textOf is the Header.Value of a header with Typed: a scalar as people write it, an array or table
// as JSON. The JSON is only for readers: nothing parses it.
func textOf(v any) []byte {
	switch v := v.(type) {
	case []byte:
		return v
	case []any, Table:
		text, _ := json.Marshal(jsonValue(v)) // JSON has all values of jsonValue
		return text
	}
	return appendScalar(nil, v)
}

// appendScalar appends the text that parseScalar reads.
func appendScalar(b []byte, v any) []byte {
	switch v := v.(type) {
	case float32:
		if math.IsNaN(float64(v)) { // there are many NaNs, which differ in their bits
			return fmt.Appendf(b, "NaN%08x", math.Float32bits(v))
		}
	case float64:
		if math.IsNaN(v) {
			return fmt.Appendf(b, "NaN%016x", math.Float64bits(v))
		}
	case Decimal:
		return appendDecimal(b, v)
	case time.Time:
		if y := v.Year(); y < 0 || y > 9999 {
			return strconv.AppendInt(append(b, '@'), v.Unix(), 10)
		}
		return v.UTC().AppendFormat(b, time.RFC3339)
	case []byte:
		return base64.RawURLEncoding.AppendEncode(b, v)
	case Null, nil:
		return b
	}
	return fmt.Append(b, v)
}

func appendDecimal(b []byte, d Decimal) []byte {
	n := int64(d.Value)
	if n < 0 {
		b, n = append(b, '-'), -n
	}
	digits := strconv.FormatInt(n, 10)
	if missing := int(d.Scale) + 1 - len(digits); missing > 0 {
		digits = strings.Repeat("0", missing) + digits
	}
	point := len(digits) - int(d.Scale)
	b = append(b, digits[:point]...)
	if d.Scale > 0 {
		b = append(append(b, '.'), digits[point:]...)
	}
	return b
}

// parseScalar reads what appendScalar has written.
func parseScalar(kind byte, s string) (any, bool) {
	switch kind {
	case 't':
		return s == "true", s == "true" || s == "false"
	case 'b':
		return parseInt[int8](s)
	case 'B':
		return parseInt[uint8](s)
	case 's':
		return parseInt[int16](s)
	case 'u':
		return parseInt[uint16](s)
	case 'I':
		return parseInt[int32](s)
	case 'i':
		return parseInt[uint32](s)
	case 'l':
		return parseInt[int64](s)
	case 'f':
		if bits, ok := strings.CutPrefix(s, "NaN"); ok {
			n, err := strconv.ParseUint(bits, 16, 32)
			return math.Float32frombits(uint32(n)), err == nil
		}
		n, err := strconv.ParseFloat(s, 32)
		return float32(n), err == nil
	case 'd':
		if bits, ok := strings.CutPrefix(s, "NaN"); ok {
			n, err := strconv.ParseUint(bits, 16, 64)
			return math.Float64frombits(n), err == nil
		}
		n, err := strconv.ParseFloat(s, 64)
		return n, err == nil
	case 'D':
		return parseDecimal(s)
	case 'T':
		if seconds, ok := strings.CutPrefix(s, "@"); ok {
			n, err := strconv.ParseInt(seconds, 10, 64)
			return time.Unix(n, 0).UTC(), err == nil
		}
		t, err := time.Parse(time.RFC3339, s)
		return time.Unix(t.Unix(), 0).UTC(), err == nil
	case kindBytes:
		v, err := base64.RawURLEncoding.DecodeString(s)
		return v, err == nil
	case kindBinary:
		v, err := base64.RawURLEncoding.DecodeString(s)
		return string(v), err == nil
	}
	return nil, false
}

func parseInt[T int8 | uint8 | int16 | uint16 | int32 | uint32 | int64](s string) (any, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	return T(n), err == nil && int64(T(n)) == n
}

// parseText reads the typed value of a header that is stored as text.
func parseText(kind byte, text []byte) (any, bool) {
	if kind == kindBytes {
		return text, true
	}
	return parseScalar(kind, string(text))
}

func parseDecimal(s string) (any, bool) {
	whole, fraction, point := strings.Cut(s, ".")
	if len(fraction) > math.MaxUint8 || point && fraction == "" || strings.Trim(fraction, "0123456789") != "" {
		return nil, false
	}
	n, err := strconv.ParseInt(whole+fraction, 10, 32)
	return Decimal{Scale: uint8(len(fraction)), Value: int32(n)}, err == nil
}

// special are the bytes with a meaning in the text of typed values and of EntryHeaders.
const special = ",=(){}"

// appendTyped appends a value with its kind: a letter and the text, an array as
// A(value,value), a table as F{name=value,name=value} by the order of the names.
func appendTyped(b []byte, v any) []byte {
	kind := kindOf(v)
	switch v := v.(type) {
	case string:
		if !utf8.ValidString(v) {
			return base64.RawURLEncoding.AppendEncode(append(b, kindBinary), []byte(v))
		}
		return appendEscaped(append(b, kindString), v, special)
	case []any:
		b = append(b, kind, '(')
		for i := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendTyped(b, v[i])
		}
		return append(b, ')')
	case Table:
		b = append(b, kind, '{')
		for i, name := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendEscaped(b, name, special), '=')
			b = appendTyped(b, v[name])
		}
		return append(b, '}')
	}
	return appendScalar(append(b, kind), v)
}

// parseTyped reads a value at the beginning of s and returns what follows it.
func parseTyped(s string, depth int) (v any, rest string, ok bool) {
	if s == "" || depth > maxDepth {
		return nil, "", false
	}
	kind := s[0]
	end := strings.IndexAny(s, special)
	if end < 0 {
		end = len(s)
	}
	text, rest := s[1:max(end, 1)], s[max(end, 1):]
	switch kind {
	case kindArray:
		array := []any{}
		rest, ok = parseElements(s[1:], "()", depth, func(_ string, v any) { array = append(array, v) })
		return array, rest, ok
	case kindTable:
		table := Table{}
		rest, ok = parseElements(s[1:], "{}", depth, func(name string, v any) { table[name] = v })
		return table, rest, ok
	case kindNull:
		return Null{}, rest, text == ""
	case kindString:
		v, ok := unescape(text)
		return v, rest, ok
	}
	v, ok = parseScalar(kind, text)
	return v, rest, ok
}

// parseElements reads the elements of an array, or of a table, whose elements have names. brackets are
// those around them.
func parseElements(s, brackets string, depth int, add func(name string, v any)) (rest string, ok bool) {
	if rest, empty := strings.CutPrefix(s, brackets); empty {
		return rest, true
	}
	if s == "" || s[0] != brackets[0] {
		return "", false
	}
	for s[0] != brackets[1] {
		s = s[1:]
		name := ""
		if brackets == "{}" {
			end := strings.IndexAny(s, special)
			if end < 0 || s[end] != '=' {
				return "", false
			}
			if name, ok = unescape(s[:end]); !ok {
				return "", false
			}
			s = s[end+1:]
		}
		v, rest, ok := parseTyped(s, depth+1)
		if !ok || rest == "" || rest[0] != ',' && rest[0] != brackets[1] {
			return "", false
		}
		add(name, v)
		s = rest
	}
	return s[1:], true
}

// jsonValue replaces what JSON does not have in a typed value: special numbers, times and decimals
// become strings, bytes base64.
func jsonValue(v any) any {
	switch v := v.(type) {
	case Null, nil:
		return nil
	case bool, int8, uint8, int16, uint16, int32, uint32, int64:
		return v
	case float32:
		return jsonValue(float64(v))
	case float64:
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			return v
		}
		return strconv.FormatFloat(v, 'g', -1, 64)
	case []any:
		array := make([]any, len(v))
		for i := range v {
			array[i] = jsonValue(v[i])
		}
		return array
	case Table:
		table := make(map[string]any, len(v))
		for name := range v {
			table[name] = jsonValue(v[name])
		}
		return table
	}
	return string(appendScalar(nil, v))
}
