package event

import (
	"bytes"
	"errors"
	"iter"
)

var errNotStored = errors.New("event: not JSON that Eventbridge has stored")

// Decode reads the attributes of an event that Eventbridge has written. It is cheap: it stops at
// data or data_base64, which is last, and checks no more than it needs. The event refers to json,
// which must not be changed.
func Decode(json []byte) (Event, error) {
	e := Event{JSON: json}
	end := 0 // where the attributes end
	for m, err := range members(json) {
		if err != nil {
			return Event{}, err
		}
		if m.isData {
			e.dataAt = m.at
			break
		}
		end = m.at + len(m.raw)
	}
	head := string(json[:end])
	for m, err := range members(json) {
		if err != nil {
			return Event{}, err
		}
		if m.isData {
			e.dataKind = kindOfData(string(m.name), e.DataContentType)
			break
		}
		if m.raw[0] != '"' {
			continue
		}
		text := head[m.at+1 : m.at+len(m.raw)-1]
		if bytes.IndexByte(m.raw, '\\') >= 0 {
			text = string(appendDecoded(nil, m.raw[1:len(m.raw)-1]))
		}
		switch known(m.name) {
		case idName:
			e.ID = text
		case sourceName:
			e.Source = text
		case typeName:
			e.Type = text
		case subjectName:
			e.Subject = text
		case partitionKeyName:
			e.PartitionKey = text
		case contentTypeName:
			e.DataContentType = text
		case timeName:
			t, err := parseTime([]byte(text))
			if err != nil {
				return Event{}, errNotStored
			}
			e.Time = t
		}
	}
	if e.ID == "" || e.Source == "" || e.Type == "" {
		return Event{}, errNotStored
	}
	return e, nil
}

// stored is a member of an event that Eventbridge has written. For data and data_base64, raw is
// empty.
type stored struct {
	name, raw []byte
	at        int // where the value begins
	isData    bool
}

// members yields the members of an event that Eventbridge has written, its data last.
func members(json []byte) iter.Seq2[stored, error] {
	return func(yield func(stored, error) bool) {
		s := scanner{src: json}
		if len(json) < 2 || json[0] != '{' || json[len(json)-1] != '}' {
			yield(stored{}, errNotStored)
			return
		}
		for i := 1; ; {
			if i >= len(json) || json[i] != '"' {
				yield(stored{}, errNotStored)
				return
			}
			end := s.pass(i)
			if end < 0 || end >= len(json) || json[end] != ':' {
				yield(stored{}, errNotStored)
				return
			}
			m := stored{name: json[i+1 : end-1], at: end + 1}
			if m.isData = string(m.name) == dataName || string(m.name) == dataBase64Name; m.isData {
				if m.at >= len(json)-1 {
					yield(stored{}, errNotStored)
					return
				}
				yield(m, nil)
				return
			}
			end = s.pass(m.at)
			if end <= m.at || end >= len(json) || json[m.at] == '{' || json[m.at] == '[' {
				yield(stored{}, errNotStored)
				return
			}
			m.raw = json[m.at:end]
			if !yield(m, nil) || json[end] == '}' {
				return
			}
			i = end + 1
		}
	}
}

// Attributes yields the names and the canonical texts of all attributes, those of the specification
// first.
func (e Event) Attributes() iter.Seq2[string, string] {
	return func(yield func(name, text string) bool) {
		for m, err := range members(e.JSON) {
			if err != nil || m.isData {
				return
			}
			text := m.raw
			if text[0] == '"' {
				if text = text[1 : len(text)-1]; bytes.IndexByte(text, '\\') >= 0 {
					text = appendDecoded(nil, text)
				}
			}
			if !yield(string(m.name), string(text)) {
				return
			}
		}
	}
}
