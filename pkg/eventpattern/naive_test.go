package eventpattern_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"net/netip"
	"slices"
	"strings"
)

// naive evaluates a pattern as the language's description in doc.go reads. It shares no code with
// the matcher: both documents are decoded by encoding/json, the event is taken apart into its
// values, and every choice of values is tried.
func naive(pattern, event []byte) (bool, error) {
	p, err := naivePattern(pattern)
	if err != nil {
		return false, err
	}
	e, err := naiveValues(event)
	if err != nil {
		return false, err
	}
	return e.meets(p), nil
}

// naivePattern is a pattern's combinations.
func naivePattern(text []byte) ([][]naiveField, error) {
	p, err := naiveObject(text)
	return naiveBranches(nil, p), err
}

// naiveValues is an event, taken apart.
func naiveValues(text []byte) (naiveEvent, error) {
	n := naiveEvent{}
	e, err := naiveObject(text)
	n.take(nil, e, nil)
	return n, err
}

func naiveObject(text []byte) (object map[string]any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	err = d.Decode(&object)
	return object, err
}

func (n naiveEvent) meets(pattern [][]naiveField) bool {
	return slices.ContainsFunc(pattern, func(conjunction []naiveField) bool { return n.matches(conjunction, nil, nil) })
}

// naiveField is the lists of alternatives of one path.
type naiveField struct {
	path  []string
	lists [][]any
}

// naiveBranches writes out the combinations of the branches of $or.
func naiveBranches(path []string, object map[string]any) [][]naiveField {
	all := [][]naiveField{nil}
	for key, v := range object {
		var parts [][]naiveField
		switch v := v.(type) {
		case map[string]any:
			parts = naiveBranches(append(slices.Clip(path), key), v)
		case []any:
			if key == "$or" {
				for _, branch := range v {
					parts = append(parts, naiveBranches(path, branch.(map[string]any))...)
				}
			} else {
				parts = [][]naiveField{{{append(slices.Clip(path), key), [][]any{v}}}}
			}
		}
		var next [][]naiveField
		for _, one := range all {
			for _, part := range parts {
				next = append(next, naiveJoin(one, part))
			}
		}
		all = next
	}
	return all
}

// naiveJoin puts the lists of the same path together: one value has to meet them all.
func naiveJoin(a, b []naiveField) []naiveField {
	out := slices.Clone(a)
	for _, f := range b {
		i := slices.IndexFunc(out, func(o naiveField) bool { return slices.Equal(o.path, f.path) })
		if i < 0 {
			out = append(out, f)
		} else {
			out[i].lists = slices.Concat(out[i].lists, f.lists)
		}
	}
	return out
}

// naiveValue is a string, number or literal of an event, and which element it is in, of each array
// around it.
type naiveValue struct {
	path   []string
	value  any
	within map[int]int
}

type naiveEvent struct {
	values []naiveValue
	arrays int
}

func (n *naiveEvent) take(path []string, v any, within map[int]int) {
	switch v := v.(type) {
	case map[string]any:
		for key, below := range v {
			n.take(append(slices.Clip(path), key), below, within)
		}
	case []any:
		id := n.arrays
		n.arrays++
		for i, element := range v {
			inside := maps.Clone(within)
			if inside == nil {
				inside = map[int]int{}
			}
			inside[id] = i
			n.take(path, element, inside)
		}
	default:
		n.values = append(n.values, naiveValue{path, v, within})
	}
}

func consistent(a, b naiveValue) bool {
	for id, i := range a.within {
		if j, ok := b.within[id]; ok && i != j {
			return false
		}
	}
	return true
}

// matches tries every choice of values for the fields that are left.
func (n *naiveEvent) matches(left []naiveField, chosen []naiveValue, absent []naiveField) bool {
	fits := func(v naiveValue) bool {
		return !slices.ContainsFunc(chosen, func(c naiveValue) bool { return !consistent(v, c) })
	}
	if len(left) == 0 {
		for _, f := range absent {
			for _, v := range n.values {
				if slices.Equal(v.path, f.path) && fits(v) {
					return false
				}
			}
		}
		return true
	}
	f := left[0]
	if all(f.lists, func(list []any) bool { return slices.ContainsFunc(list, naiveAbsent) }) && n.matches(left[1:], chosen, append(slices.Clip(absent), f)) {
		return true
	}
	for _, v := range n.values {
		if slices.Equal(v.path, f.path) && fits(v) && all(f.lists, func(list []any) bool { return naiveAny(list, v.value) }) &&
			n.matches(left[1:], append(slices.Clip(chosen), v), absent) {
			return true
		}
	}
	return false
}

func all[T any](list []T, f func(T) bool) bool {
	return !slices.ContainsFunc(list, func(one T) bool { return !f(one) })
}

func naiveAbsent(alternative any) bool {
	o, ok := alternative.(map[string]any)
	return ok && o["exists"] == false
}

func naiveAny(list []any, v any) bool {
	return slices.ContainsFunc(list, func(one any) bool { return naiveMeets(one, v) })
}

// naiveMeets reports whether a value meets one alternative.
func naiveMeets(alternative, v any) bool {
	operators, ok := alternative.(map[string]any)
	if !ok {
		return naiveEqual(alternative, v)
	}
	text, isText := v.(string)
	for name, operand := range operators {
		switch name {
		case "prefix":
			return isText && naiveAffix(text, operand, strings.HasPrefix, func(r []rune, n int) []rune { return r[:n] })
		case "suffix":
			return isText && naiveAffix(text, operand, strings.HasSuffix, func(r []rune, n int) []rune { return r[len(r)-n:] })
		case "equals-ignore-case":
			return isText && strings.EqualFold(text, operand.(string))
		case "wildcard":
			return isText && naiveWildcard([]rune(operand.(string)), []rune(text))
		case "anything-but":
			return !naiveExcluded(operand, v)
		case "numeric":
			return naiveNumeric(operand.([]any), v)
		case "cidr":
			return isText && naiveNetwork(operand.(string), text)
		case "exists":
			return operand == true
		}
	}
	panic(fmt.Sprint("not an operator: ", alternative))
}

func naiveEqual(a, b any) bool {
	x, ok := a.(json.Number)
	y, too := b.(json.Number)
	if ok && too {
		return rational(x).Cmp(rational(y)) == 0
	}
	return a == b
}

func rational(n json.Number) *big.Rat {
	r, ok := new(big.Rat).SetString(n.String())
	if !ok {
		panic("not a number: " + n.String())
	}
	return r
}

func naiveAffix(text string, operand any, plain func(s, affix string) bool, cut func(r []rune, n int) []rune) bool {
	if affix, ok := operand.(string); ok {
		return plain(text, affix)
	}
	affix := operand.(map[string]any)["equals-ignore-case"].(string)
	n := len([]rune(affix))
	return len([]rune(text)) >= n && strings.EqualFold(string(cut([]rune(text), n)), affix)
}

func naiveWildcard(pattern, text []rune) bool {
	switch {
	case len(pattern) == 0:
		return len(text) == 0
	case pattern[0] == '*':
		return naiveWildcard(pattern[1:], text) || len(text) > 0 && naiveWildcard(pattern, text[1:])
	case pattern[0] == '\\':
		pattern = pattern[1:]
	}
	return len(text) > 0 && pattern[0] == text[0] && naiveWildcard(pattern[1:], text[1:])
}

func naiveExcluded(operand, v any) bool {
	switch o := operand.(type) {
	case []any:
		return slices.ContainsFunc(o, func(one any) bool { return naiveEqual(one, v) })
	case map[string]any:
		for name, inner := range o {
			list, ok := inner.([]any)
			if !ok {
				list = []any{inner}
			}
			for _, one := range list {
				if naiveMeets(map[string]any{name: one}, v) {
					return true
				}
			}
		}
		return false
	}
	return naiveEqual(operand, v)
}

func naiveNumeric(operand []any, v any) bool {
	n, ok := v.(json.Number)
	if !ok {
		return false
	}
	for i := 0; i < len(operand); i += 2 {
		order := rational(n).Cmp(rational(operand[i+1].(json.Number)))
		holds := map[string]bool{"=": order == 0, "<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}
		if !holds[operand[i].(string)] {
			return false
		}
	}
	return true
}

func naiveNetwork(operand, text string) bool {
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" {
		return false
	}
	p := netip.MustParsePrefix(operand)
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Contains(addr.Unmap())
}
