// Package event reads and writes CloudEvents 1.0 over HTTP.
//
// A [Parser] reads the structured, binary and batched modes, and plain JSON by a [Mapping]. It
// refuses duplicate keys at any depth, invalid UTF-8, halves of surrogate pairs and invalid
// attributes with an [*Error]. Its result is one form of JSON (see [Event]), which [Decode] reads
// without parsing the data. Of Aviary, the package imports only pkg/jsontext.
package event

import (
	"crypto/sha256"
	"encoding/base64"
	"time"
)

// These bound events. They are at or below the bounds of package eventpattern: every event within them
// can be matched.
const (
	// MaxDepth is how deep objects and lists may be nested, the event's own object included.
	MaxDepth = 128
	// MaxValues is how many values an event may have: texts, numbers, literals, objects and lists.
	MaxValues = 1 << 16
	// MaxAttributes is how many attributes an event may have.
	MaxAttributes = 64
	// MaxNameBytes is the longest name of an attribute. The specification advises at most 20.
	MaxNameBytes = 64
	// MaxTextBytes is the longest text of an attribute.
	MaxTextBytes = 8 << 10
	// MaxExponentDigits is the longest exponent of a number.
	MaxExponentDigits = 9
)

// Event is one valid CloudEvent. It is immutable once made, and safe for concurrent use.
type Event struct {
	// JSON is the event in CloudEvents' JSON format: valid UTF-8 without duplicate keys. The
	// attributes come first, data or data_base64 last. If Eventbridge made it, it has no white
	// space between tokens.
	JSON []byte
	// These are the attributes that Eventbridge looks at, empty if the event does not have them.
	// Time is zero if the event has none.
	ID, Source, Type, Subject, PartitionKey, DataContentType string
	Time                                                     time.Time
	// Tenant is the name of the tenant that sent the event, empty without tenants. It is not in
	// JSON: parsing and Decode leave it empty.
	Tenant string

	dataKind DataKind
	dataAt   int // where the value of data or data_base64 begins in JSON
}

// DataKind says what the data of an event is.
type DataKind byte

// The kinds of data.
const (
	NoData     DataKind = iota
	JSONData            // any JSON value
	TextData            // a text, where the event's datacontenttype is not JSON
	BinaryData          // bytes, as base64 in data_base64
)

// Data returns the data as it is in JSON: any value for JSONData, a JSON text for TextData,
// base64 in a JSON text for BinaryData; nil for NoData. It is a part of e.JSON.
func (e Event) Data() ([]byte, DataKind) {
	if e.dataKind == NoData {
		return nil, NoData
	}
	return e.JSON[e.dataAt : len(e.JSON)-1], e.dataKind
}

// WebhookID is the same for every copy of the event and every attempt to deliver it. It depends
// only on source and id, which together identify an event by the specification, and on the tenant:
// tenants choose their sources and ids themselves. It is "evt_" and 24 characters of base64url.
func (e Event) WebhookID() string {
	text := make([]byte, 0, 128)
	if e.Tenant != "" {
		text = append(append(text, e.Tenant...), 0)
	}
	text = append(text, e.Source...)
	text = append(text, 0)
	text = append(text, e.ID...)
	sum := sha256.Sum256(text)
	return "evt_" + base64.RawURLEncoding.EncodeToString(sum[:18])
}
