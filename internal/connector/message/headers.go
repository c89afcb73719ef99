package message

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// EntryHeaders lists all headers of the message in their order, separated by commas:
//
//	4            the header that the system holds as the fifth (Kafka's order; by name
//	             in Pulsar and AMQP)
//	0-3          the first to the fourth
//	4:I          the fifth, whose text is an AMQP int32 (see typed.go)
//	name=Svalue  one that the system does not hold
//
// It is left out when the system holds all of them, in this order, without types. A
// reader passes over numbers that are too high, and puts at the end what is not listed:
// somebody has taken properties away, or added some.

// storage is how a system stores a header.
type storage byte

const (
	notStored    storage = iota
	storedAsIs           // name and value
	storedAsText         // name and text; its type is in EntryHeaders
)

// arrange returns which headers a system stores, as holds says for each, and the value of
// EntryHeaders. Both are nil when the system stores all headers as they are. An ordered system keeps
// order and repeated names. The others store each name once: the last header of that name.
func arrange(headers []Header, ordered bool, holds func(*Header) storage) (plain []bool, entry []byte) {
	for i := range headers {
		if holds(&headers[i]) != storedAsIs || !ordered && i > 0 && headers[i-1].Name >= headers[i].Name {
			return arrangeWithEntry(headers, ordered, holds)
		}
	}
	return nil, nil
}

func arrangeWithEntry(headers []Header, ordered bool, holds func(*Header) storage) (plain []bool, entry []byte) {
	plain = make([]bool, len(headers))
	byRank := make([]int, 0, len(headers))
	if ordered {
		for i := range headers {
			if plain[i] = holds(&headers[i]) != notStored; plain[i] {
				byRank = append(byRank, i)
			}
		}
	} else {
		taken := make(map[string]struct{}, len(headers))
		for i := range slices.Backward(headers) {
			if _, twice := taken[headers[i].Name]; !twice && holds(&headers[i]) != notStored {
				taken[headers[i].Name] = struct{}{}
				plain[i] = true
				byRank = append(byRank, i)
			}
		}
		slices.SortFunc(byRank, func(a, b int) int { return cmp.Compare(headers[a].Name, headers[b].Name) })
	}
	rank := make([]int, len(headers))
	for r, i := range byRank {
		rank[i] = r
	}
	return plain, appendEntry(make([]byte, 0, 64), headers, plain, rank, holds)
}

func appendEntry(b []byte, headers []Header, plain []bool, rank []int, holds func(*Header) storage) []byte {
	simple := func(i int) bool { return plain[i] && holds(&headers[i]) == storedAsIs }
	for i := 0; i < len(headers); i++ {
		if i > 0 {
			b = append(b, ',')
		}
		h := &headers[i]
		if !plain[i] {
			b = append(appendEscaped(b, h.Name, special), '=')
			b = appendTyped(b, h.any())
			continue
		}
		b = strconv.AppendInt(b, int64(rank[i]), 10)
		if !simple(i) {
			b = append(b, ':', kindOf(h.Typed))
			continue
		}
		last := i
		for last+1 < len(headers) && simple(last+1) && rank[last+1] == rank[last]+1 {
			last++
		}
		if last > i {
			b = strconv.AppendInt(append(b, '-'), int64(rank[last]), 10)
			i = last
		}
	}
	return b
}

// any is the header's value in the form of appendTyped.
func (h *Header) any() any {
	switch {
	case h.Typed != nil:
		return h.Typed
	case h.Value == nil:
		return Null{}
	default:
		return string(h.Value)
	}
}

// typedHeader makes a header of a value that parseTyped has returned.
func typedHeader(name string, v any) Header {
	switch v := v.(type) {
	case Null:
		return Header{Name: name}
	case string:
		return Header{Name: name, Value: []byte(v)}
	}
	return Header{Name: name, Value: textOf(v), Typed: v}
}

// restore returns all headers in their order; plain are those that the system stores. It reports
// false for an entry that arrange has not made.
func restore(plain []Header, entry string) ([]Header, bool) {
	all := make([]Header, 0, len(plain)+4)
	used := make([]bool, len(plain))
	for more := entry != ""; more; {
		end := strings.IndexAny(entry, ",=")
		if end >= 0 && entry[end] == '=' {
			name, ok := unescape(entry[:end])
			if !ok {
				return nil, false
			}
			v, rest, ok := parseTyped(entry[end+1:], 0)
			if !ok || rest != "" && rest[0] != ',' {
				return nil, false
			}
			all = append(all, typedHeader(name, v))
			if more = rest != ""; more {
				entry = rest[1:]
			}
			continue
		}
		var item string
		item, entry, more = strings.Cut(entry, ",")
		var ok bool
		if all, ok = restorePlain(all, plain, used, item); !ok {
			return nil, false
		}
	}
	for i := range plain {
		if !used[i] {
			all = append(all, plain[i])
		}
	}
	return all, true
}

func restorePlain(all, plain []Header, used []bool, item string) ([]Header, bool) {
	number, kind, withKind := strings.Cut(item, ":")
	if withKind && (len(kind) != 1 || !scalar(kind[0])) {
		return nil, false
	}
	from, to, isRun := strings.Cut(number, "-")
	first, err := strconv.ParseUint(from, 10, 31)
	last := first
	if err == nil && isRun {
		last, err = strconv.ParseUint(to, 10, 31)
	}
	if err != nil || last < first || withKind && isRun {
		return nil, false
	}
	for i := first; i <= last && i < uint64(len(plain)); i++ {
		if used[i] {
			return nil, false
		}
		used[i] = true
		h := plain[i]
		if withKind && h.Value != nil {
			if v, ok := parseStored(kind[0], h.Value); ok {
				h = Header{Name: h.Name, Value: textOf(v), Typed: v}
			}
		}
		all = append(all, h)
	}
	return all, true
}

// parseStored reads the typed value of a header that is stored as text.
func parseStored(kind byte, value []byte) (any, bool) {
	if kind == kindBytes {
		return value, true
	}
	return parseScalar(kind, string(value))
}

// validName reports whether every system can have a header of that name.
func validName(name string) bool { return name != "" && utf8.ValidString(name) && !isEntry(name) }

// Header returns the value of the last header of that name.
func (m *Message) Header(name string) (value []byte, ok bool) {
	for i := len(m.Headers) - 1; i >= 0; i-- {
		if m.Headers[i].Name == name {
			return m.Headers[i].Value, true
		}
	}
	return nil, false
}
