package message

import (
	"math"
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
// It is left out when the system holds all of them, in this order, without types. A reader ignores
// numbers that are too high, and puts what is not listed at the end: others may change properties.

// storage is how a system stores a header.
type storage byte

const (
	notStored    storage = iota
	storedAsIs           // name and value
	storedAsText         // name and text; its type is in EntryHeaders
)

// stores returns how the system stores h.
func (in system) stores(h *Header) storage {
	binary, _ := h.Typed.([]byte)
	switch {
	case isEntry(h.Name), in != inKafka && (h.Name == "" || !utf8.ValidString(h.Name)),
		in == inAMQP && (len(h.Name) > math.MaxUint8 || IsBrokerHeader(h.Name)):
		return notStored
	case in == inAMQP, h.Typed == nil && (in == inKafka || h.Value != nil && utf8.Valid(h.Value)):
		return storedAsIs
	case h.Typed == nil, !scalar(kindOf(h.Typed)), in == inPulsar && !utf8.Valid(binary):
		return notStored
	default:
		return storedAsText
	}
}

// arrange returns the headers that a system stores, and the text of EntryHeaders, nil for none. Kafka
// keeps order and repeated names. The others store the last header of each name.
func arrange(headers []Header, in system) (stored []Header, entry []byte) {
	asTheyAre := true
	for i := range headers {
		inOrder := in == inKafka || i == 0 || headers[i-1].Name < headers[i].Name
		asTheyAre = asTheyAre && inOrder && in.stores(&headers[i]) == storedAsIs
	}
	if asTheyAre {
		return headers, nil
	}
	how := make([]storage, len(headers))
	taken := make(map[string]bool, len(headers))
	byRank := make([]int, 0, len(headers))
	for i := range slices.Backward(headers) {
		h := &headers[i]
		if in == inKafka || !taken[h.Name] {
			how[i] = in.stores(h)
		}
		if how[i] != notStored {
			taken[h.Name] = true
			byRank = append(byRank, i)
		}
	}
	slices.Reverse(byRank)
	stored = make([]Header, 0, len(byRank))
	for _, i := range byRank {
		h := headers[i]
		if how[i] == storedAsText {
			h = Header{Name: h.Name, Value: textOf(h.Typed)}
		}
		stored = append(stored, h)
	}
	if in != inKafka {
		slices.SortFunc(byRank, func(a, b int) int { return strings.Compare(headers[a].Name, headers[b].Name) })
	}
	rank := make([]int, len(headers))
	for r, i := range byRank {
		rank[i] = r
	}
	return stored, appendEntry(make([]byte, 0, 64), headers, how, rank)
}

func appendEntry(b []byte, headers []Header, how []storage, rank []int) []byte {
	for i := 0; i < len(headers); i++ {
		if i > 0 {
			b = append(b, ',')
		}
		h := &headers[i]
		if how[i] == notStored {
			b = append(appendEscaped(b, h.Name, special), '=')
			b = appendTyped(b, h.any())
			continue
		}
		b = strconv.AppendInt(b, int64(rank[i]), 10)
		if how[i] == storedAsText {
			b = append(b, ':', kindOf(h.Typed))
			continue
		}
		last := i
		for last+1 < len(headers) && how[last+1] == storedAsIs && rank[last+1] == rank[last]+1 {
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
func restore(plain []Header, entry string) (all []Header, ok bool) {
	used := make([]bool, len(plain))
	for more := entry != ""; more; {
		end := strings.IndexAny(entry, ",=")
		if end < 0 || entry[end] == ',' {
			var item string
			item, entry, more = strings.Cut(entry, ",")
			if all, ok = restorePlain(all, plain, used, item); !ok {
				return nil, false
			}
			continue
		}
		name, ok := unescape(entry[:end])
		if !ok {
			return nil, false
		}
		v, rest, ok := parseTyped(entry[end+1:], 0)
		if !ok || rest != "" && rest[0] != ',' {
			return nil, false
		}
		all = append(all, typedHeader(name, v))
		_, entry, more = strings.Cut(rest, ",")
	}
	for i := range plain {
		if !used[i] {
			all = append(all, plain[i])
		}
	}
	return all, true
}

// restorePlain appends the stored headers that item names: a number with or without a kind, or a run.
func restorePlain(all, plain []Header, used []bool, item string) ([]Header, bool) {
	number, kind, withKind := strings.Cut(item, ":")
	from, to, isRun := strings.Cut(number, "-")
	if !isRun {
		to = from
	}
	first, err := strconv.ParseUint(from, 10, 31)
	last, err2 := strconv.ParseUint(to, 10, 31)
	if err != nil || err2 != nil || last < first || withKind && (isRun || len(kind) != 1 || !scalar(kind[0])) {
		return nil, false
	}
	for i := first; i <= last && i < uint64(len(plain)); i++ {
		if used[i] {
			return nil, false
		}
		used[i] = true
		h := plain[i]
		if withKind && h.Value != nil {
			if v, ok := parseText(kind[0], h.Value); ok {
				h = typedHeader(h.Name, v)
			}
		}
		all = append(all, h)
	}
	return all, true
}

// Header returns the value of the last header of that name.
func (m *Message) Header(name string) (value []byte, ok bool) {
	for i := len(m.Headers) - 1; i >= 0; i-- {
		if m.Headers[i].Name == name {
			return m.Headers[i].Value, true
		}
	}
	return nil, false
}
