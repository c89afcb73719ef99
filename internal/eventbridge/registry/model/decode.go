package model

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/aviaryhq/aviary/pkg/secret"
)

// MaxObjectBytes bounds a bus or a subscriber as JSON, its secrets included.
const MaxObjectBytes = 512 << 10

// DecodeBus decodes a bus from JSON. A field that is not given has its default. The error is an
// [*Invalid] with all faults: unknown and repeated keys, wrong types, and what a change would
// refuse whatever is stored. The name may be omitted.
func DecodeBus(text []byte, name string, checks Checks) (Bus, error) {
	b := NewBus(name)
	found := decodeObject(text, &b)
	if b.Name != name {
		found.Add("/name", "must be %q as in the address, or omitted, got %q", name, b.Name)
		b.Name = name
	}
	found.UnlessAt(found, ValidateBus(&b, checks))
	return b, found.Err()
}

// DecodeSubscriber is [DecodeBus] for a subscriber.
func DecodeSubscriber(text []byte, bus, name string, checks Checks) (Subscriber, error) {
	s := NewSubscriber(bus, name)
	found := decodeObject(text, &s)
	if s.Bus != bus {
		found.Add("/bus", "must be %q as in the address, or omitted, got %q", bus, s.Bus)
		s.Bus = bus
	}
	if s.Name != name {
		found.Add("/name", "must be %q as in the address, or omitted, got %q", name, s.Name)
		s.Name = name
	}
	filled := s
	filled.Fill()
	found.UnlessAt(found, ValidateSubscriber(&filled, checks))
	return s, found.Err()
}

func decodeObject(text []byte, v any) (f FaultList) {
	if len(text) > MaxObjectBytes {
		f.Add("", "must have at most %d bytes, got %d", MaxObjectBytes, len(text))
		return f
	}
	return Decode(text, v)
}

// Decode decodes text into v, a pointer to a struct, and finds all faults. Fields with a fault keep
// their values in v.
func Decode(text []byte, v any) FaultList {
	var d decoder
	if !utf8.Valid(text) {
		d.faults.Add("", "must be UTF-8")
		return d.faults
	}
	var whole json.RawMessage
	if err := json.Unmarshal(text, &whole); err != nil {
		at := int64(0)
		if bad := (*json.SyntaxError)(nil); errors.As(err, &bad) {
			at = bad.Offset
		}
		d.faults.Add("", "must be one JSON object: offset %d: %s", at, err)
		return d.faults
	}
	d.value(whole, reflect.ValueOf(v).Elem(), "")
	return d.faults
}

// decoder sets values from JSON. encoding/json stops at the first unknown key or wrong type and
// does not say where it is.
type decoder struct{ faults FaultList }

func (d *decoder) value(raw json.RawMessage, v reflect.Value, at string) {
	if v.Type() == reflect.TypeFor[json.RawMessage]() {
		v.SetBytes(bytes.TrimSpace(raw))
		return
	}
	if string(bytes.TrimSpace(raw)) == "null" {
		switch v.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			v.SetZero()
		default:
			d.wrong(raw, v, at)
		}
		return
	}
	if target, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		d.text(raw, v, target, at)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		made := reflect.New(v.Type().Elem())
		d.value(raw, made.Elem(), at)
		v.Set(made)
	case reflect.Struct:
		d.object(raw, v, at)
	case reflect.Map:
		d.keys(raw, v, at)
	case reflect.Slice:
		d.list(raw, v, at)
	case reflect.Int, reflect.Int64:
		n, err := strconv.ParseInt(string(bytes.TrimSpace(raw)), 10, 64)
		if err != nil {
			d.wrong(raw, v, at)
			return
		}
		v.SetInt(n)
	default: // strings, truth values and numbers with a fraction
		if json.Unmarshal(raw, v.Addr().Interface()) != nil {
			d.wrong(raw, v, at)
		}
	}
}

// text sets a value that is a string in JSON.
func (d *decoder) text(raw json.RawMessage, v reflect.Value, target encoding.TextUnmarshaler, at string) {
	var text string
	if json.Unmarshal(raw, &text) != nil {
		d.wrong(raw, v, at)
		return
	}
	err := target.UnmarshalText([]byte(text))
	if _, isTime := target.(*time.Time); isTime && err != nil {
		err = errors.New("must be a time such as 2026-01-02T15:04:05Z")
	}
	if err != nil {
		d.faults.Add(at, "%s", err)
	}
}

// object sets the fields of a struct.
func (d *decoder) object(raw json.RawMessage, v reflect.Value, at string) {
	fields := fieldsOf(v.Type())
	d.members(raw, v, at, func(key string, value json.RawMessage) {
		i, known := fields[key]
		if !known {
			names := slices.Sorted(maps.Keys(fields))
			d.faults.Add(at+Step(key), "unknown key; the keys here are %s", strings.Join(names, ", "))
			return
		}
		field := v.FieldByIndex(i)
		d.value(value, field, at+Step(key))
		if field.Type() == reflect.TypeFor[secret.String]() && string(value) == `""` {
			d.faults.Add(at+Step(key), "must have a value, or be omitted") // a script may have used an unset variable
		}
	})
}

// keys sets a map.
func (d *decoder) keys(raw json.RawMessage, v reflect.Value, at string) {
	made := reflect.MakeMap(v.Type())
	d.members(raw, v, at, func(key string, value json.RawMessage) {
		element := reflect.New(v.Type().Elem()).Elem()
		d.value(value, element, at+Step(key))
		made.SetMapIndex(reflect.ValueOf(key), element)
	})
	v.Set(made)
}

// list sets a slice.
func (d *decoder) list(raw json.RawMessage, v reflect.Value, at string) {
	var elements []json.RawMessage
	if json.Unmarshal(raw, &elements) != nil {
		d.wrong(raw, v, at)
		return
	}
	made := reflect.MakeSlice(v.Type(), len(elements), len(elements))
	for i, element := range elements {
		d.value(element, made.Index(i), fmt.Sprintf("%s/%d", at, i))
	}
	v.Set(made)
}

// members calls f for each member of an object whose key did not come before. raw is valid JSON.
func (d *decoder) members(raw json.RawMessage, v reflect.Value, at string, f func(key string, value json.RawMessage)) {
	members := json.NewDecoder(bytes.NewReader(raw))
	if begin, _ := members.Token(); begin != json.Delim('{') {
		d.wrong(raw, v, at)
		return
	}
	seen := make(map[string]bool)
	for members.More() {
		key, _ := members.Token()
		name, _ := key.(string)
		var value json.RawMessage
		if err := members.Decode(&value); err != nil {
			d.faults.Add(at, "must be a JSON object: %s", err)
			return
		}
		if seen[name] {
			d.faults.Add(at+Step(name), "the key occurs twice")
			continue
		}
		seen[name] = true
		f(name, value)
	}
}

// wrong says that a value has another type than it must have.
func (d *decoder) wrong(raw json.RawMessage, v reflect.Value, at string) {
	d.faults.Add(at, "must be %s, got %s", kindName(v), shorten(raw))
}

func kindName(v reflect.Value) string {
	if _, ok := v.Addr().Interface().(*Duration); ok {
		return "a duration such as \"30s\" or \"2h\""
	}
	if _, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return "a text"
	}
	switch v.Kind() {
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Slice:
		return "a list"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Bool:
		return "true or false"
	default:
		return "a text"
	}
}

// shorten returns the given value for a fault. It does not show a text, which may be a secret in
// the wrong place.
func shorten(raw json.RawMessage) string {
	raw = bytes.TrimSpace(raw)
	switch {
	case len(raw) == 0:
		return "nothing"
	case raw[0] == '"':
		return "a text"
	case raw[0] == '{':
		return "an object"
	case raw[0] == '[':
		return "a list"
	case len(raw) > 40:
		return string(raw[:40]) + "..."
	default:
		return string(raw)
	}
}

// fieldsOf returns the indexes of a struct's fields by their keys in JSON.
func fieldsOf(t reflect.Type) map[string][]int {
	fields := make(map[string][]int, t.NumField())
	for _, field := range reflect.VisibleFields(t) {
		if name := keyOf(field); name != "" {
			fields[name] = field.Index
		}
	}
	return fields
}

// keyOf returns a field's key in JSON, empty if JSON does not have the field.
func keyOf(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}
