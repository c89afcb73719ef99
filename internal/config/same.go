package config

import (
	"bytes"
	"reflect"

	"go.yaml.in/yaml/v3"
)

// Same reports whether every key has the same value in two configurations of one type. Fields
// without a key do not count, and an empty list is equal to none.
func Same[T any](a, b T) bool {
	return same(reflect.ValueOf(&a).Elem(), reflect.ValueOf(&b).Elem())
}

// Changed returns the keys of the first level that have different values in two configurations of one
// type.
func Changed[T any](a, b T) (keys []string) {
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	for _, k := range keysOf(x.Type()) {
		if !same(x.FieldByIndex(k.index), y.FieldByIndex(k.index)) {
			keys = append(keys, k.name)
		}
	}
	return keys
}

func same(a, b reflect.Value) bool {
	switch t := a.Type(); {
	case t.Kind() == reflect.Pointer || t.Kind() == reflect.Interface:
		if a.IsNil() || b.IsNil() || a.Elem().Type() != b.Elem().Type() {
			return a.IsNil() && b.IsNil()
		}
		return same(a.Elem(), b.Elem())
	case t.Kind() == reflect.Struct && decodesItself(t):
		return sameText(a, b)
	case t.Kind() == reflect.Struct:
		for _, k := range keysOf(t) {
			if !same(a.FieldByIndex(k.index), b.FieldByIndex(k.index)) {
				return false
			}
		}
		return true
	case t.Kind() == reflect.Slice:
		for i := range min(a.Len(), b.Len()) {
			if !same(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return a.Len() == b.Len()
	case t.Kind() == reflect.Map:
		for _, name := range a.MapKeys() {
			if other := b.MapIndex(name); !other.IsValid() || !same(a.MapIndex(name), other) {
				return false
			}
		}
		return a.Len() == b.Len()
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

// sameText compares values that have their own form in YAML by that form: they may hold what cannot
// be compared, such as a compiled expression.
func sameText(a, b reflect.Value) bool {
	textA, errA := yaml.Marshal(a.Interface())
	textB, errB := yaml.Marshal(b.Interface())
	return errA == nil && errB == nil && bytes.Equal(textA, textB)
}
