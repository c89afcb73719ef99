package event_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
)

// strictly are the reasons for which valid JSON is refused all the same.
func strictly(err error) bool {
	fault := (*event.Error)(nil)
	if !errors.As(err, &fault) {
		return false
	}
	switch fault.Reason {
	case event.NotJSON, event.InvalidUTF8:
		return false
	}
	return true
}

// FuzzJSON compares with encoding/json: what is taken is valid and means the same, what is not JSON
// is refused.
func FuzzJSON(f *testing.F) {
	for _, seed := range []string{`{"a":[1,-2.5e+3,"x\u00e9\ud83d\ude00",true,false,null,{}],"b":{"c":[[]]}}`, " [ ] ", `"\ud800"`, `{"a":1,"\u0061":2}`, "\"\xff\"", `1e99999999999`, `-0.0`} {
		f.Add([]byte(seed))
	}
	var p event.Parser
	h := http.Header{"Ce-Specversion": {"1.0"}, "Ce-Id": {"1"}, "Ce-Source": {"s"}, "Ce-Type": {"t"}, "Content-Type": {"application/json"}}
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) == 0 {
			return
		}
		e, err := p.Binary(h, body, event.Options{})
		valid := json.Valid(body) && utf8.Valid(body)
		if err != nil {
			half := strings.Contains(err.Error(), "surrogate")
			if valid && !half && !strictly(err) {
				t.Fatalf("%q is refused: %v", body, err)
			}
			return
		}
		if !valid {
			t.Fatalf("%q is taken", body)
		}
		data, _ := e.Data()
		var want, got any
		if json.Unmarshal(body, &want) != nil { // a number beyond float64
			return
		}
		if err := json.Unmarshal(data, &got); err != nil || !reflect.DeepEqual(want, got) {
			t.Fatalf("%q became %q, %v", body, data, err)
		}
		var compact bytes.Buffer
		if json.Compact(&compact, body) != nil || !bytes.Equal(compact.Bytes(), data) {
			t.Fatalf("%q became %q, not %q", body, data, compact.Bytes())
		}
	})
}

// FuzzStructured: what is taken is read again as the same, in each mode.
func FuzzStructured(f *testing.F) {
	f.Add([]byte(`{` + head + `,"data":{"a":[1]}}`))
	f.Add([]byte(`{` + head + `,"time":"2026-11-22T17:00:00Z","data_base64":"AAEC","x":-5,"y":true,"subject":"\u00e9\"%20"}`))
	f.Add([]byte(`{` + head + `,"datacontenttype":"text/plain","data":"\u0000\ud83d\ude00"}`))
	var p event.Parser
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := p.Structured(body, event.Options{})
		if err != nil {
			return
		}
		if !json.Valid(e.JSON) || len(e.JSON) != cap(e.JSON) {
			t.Fatalf("%q became %q, capacity %d", body, e.JSON, cap(e.JSON))
		}
		again, err := p.Structured(e.JSON, event.Options{})
		if err != nil || !reflect.DeepEqual(e, again) {
			t.Fatalf("%q, read again: %+v, %v", e.JSON, again, err)
		}
		decoded, err := event.Decode(e.JSON)
		if err != nil || !reflect.DeepEqual(e, decoded) {
			t.Fatalf("%q, decoded: %+v, %v", e.JSON, decoded, err)
		}
		out := http.Header{}
		sent, err := e.WriteBinary(out)
		if err != nil {
			t.Fatalf("%q: %v", e.JSON, err)
		}
		back, err := p.Binary(out, sent, event.Options{})
		if err != nil || back.ID != e.ID || back.Source != e.Source || back.Subject != e.Subject || !back.Time.Equal(e.Time) {
			t.Fatalf("%q, by headers %v: %+v, %v", e.JSON, out, back, err)
		}
	})
}

// FuzzHeader: an attribute's text comes back, and nothing panics.
func FuzzHeader(f *testing.F) {
	f.Add("Euro%20%E2%82%AC", `{"a":1}`, "application/json")
	f.Add(`"a\"b"`, "x", "text/plain; charset=utf-8")
	var p event.Parser
	f.Fuzz(func(t *testing.T, subject, body, contentType string) {
		h := http.Header{"Ce-Specversion": {"1.0"}, "Ce-Id": {"1"}, "Ce-Source": {"s"}, "Ce-Type": {"t"}, "Ce-Subject": {subject}, "Content-Type": {contentType}}
		e, err := p.Binary(h, []byte(body), event.Options{})
		if err != nil {
			return
		}
		out := http.Header{}
		sent, err := e.WriteBinary(out)
		if err != nil {
			t.Fatal(err)
		}
		back, err := p.Binary(out, sent, event.Options{})
		if err != nil || back.Subject != e.Subject {
			t.Fatalf("%q, %v", back.Subject, err)
		}
	})
}

// FuzzPointer: no pointer and no bytes make it panic or loop.
func FuzzPointer(f *testing.F) {
	f.Add("/a/0/b", []byte(`{"a":[{"b":1}]}`))
	f.Add("/2000000000", []byte(`[}`))
	f.Fuzz(func(t *testing.T, text string, doc []byte) {
		if p, err := event.ParsePointer(text); err == nil {
			p.Find(doc)
		}
	})
}
