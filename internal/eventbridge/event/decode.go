package event

import (
	"bytes"
	"errors"
	"iter"

	"github.com/aviaryhq/aviary/pkg/jsontext"
)

var errNotStored = errors.New("event: not JSON that Eventbridge has stored")

// decoded returns what a JSON string of an event stands for.
func decoded(raw []byte) []byte {
	raw = raw[1 : len(raw)-1]
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw
	}
	text, _ := jsontext.AppendDecoded(make([]byte, 0, len(raw)), raw)
	return text
}

// Decode reads the attributes of an event that Eventbridge has written. It is cheap: it does not
// read data or data_base64, which is last, and checks no more than it needs. The event refers to
// json, which must not be changed.
func Decode(json []byte) (Event, error) {
	e := Event{JSON: json}
	if !bytes.HasPrefix(json, []byte{'{'}) || !bytes.HasSuffix(json, []byte{'}'}) {
		return Event{}, errNotStored
	}
	end := bytes.Index(json, []byte(`,"data":`)) // no string has it: its quotes would have backslashes
	if end < 0 {
		end = len(json)
	}
	head, at := string(json[:end]), 1
	for name, raw := range members(json) {
		at += len(name) + len(`"":`)
		if raw == nil {
			return Event{}, errNotStored
		}
		which := known(name)
		switch field := e.text(which); {
		case isData(name):
			e.dataAt, e.dataKind = at, kindOfData(string(name), e.DataContentType)
		case raw[0] != '"':
		case which == timeName:
			var err error
			if e.Time, err = parseTime(decoded(raw)); err != nil {
				return Event{}, errNotStored
			}
		case field == nil:
		case bytes.IndexByte(raw, '\\') >= 0:
			*field = string(decoded(raw))
		default:
			*field = head[at+1 : at+len(raw)-1]
		}
		at += len(raw) + len(`,`)
	}
	if e.ID == "" || e.Source == "" || e.Type == "" {
		return Event{}, errNotStored
	}
	return e, nil
}

func isData(name []byte) bool { return string(name) == dataName || string(name) == dataBase64Name }

// members yields the names and the values of the members of an event that Eventbridge has written,
// its data last. It yields nil for the value, and ends, where json is not such an event.
func members(json []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, raw []byte) bool) {
		s := jsontext.Scanner{Src: json} // MaxDepth 0: attributes are scalars
		for i := 1; ; {
			name, at := s.Key(i)
			if at != i+len(name)+len(`"":`) { // also -1
				break
			}
			end := len(json) - 1
			if !isData(name) {
				end = s.Value(at)
			}
			if end <= at || end >= len(json) {
				break
			}
			if !yield(name, json[at:end]) || json[end] == '}' {
				return
			}
			i = end + 1
		}
		yield(nil, nil)
	}
}

// Attributes yields the names and the canonical texts of all attributes, those of the specification
// first.
func (e Event) Attributes() iter.Seq2[string, string] {
	return func(yield func(name, text string) bool) {
		for name, raw := range members(e.JSON) {
			if raw == nil || isData(name) {
				return
			}
			if raw[0] == '"' {
				raw = decoded(raw)
			}
			if !yield(string(name), string(raw)) {
				return
			}
		}
	}
}
