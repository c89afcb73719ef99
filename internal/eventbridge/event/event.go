// Package event holds CloudEvents 1.0 as Eventbridge carries them: reading them from HTTP requests and writing them
// to HTTP requests.
package event

import "time"

// Event is one valid CloudEvent. It is immutable once made.
type Event struct {
	// JSON is the event in CloudEvents' JSON format: attributes on top, data or data_base64 beside them. Valid UTF-8 without
	// duplicate keys, and without white space between tokens where Eventbridge made it.
	JSON []byte
	// The attributes that Eventbridge looks at. Time is zero when the event has none.
	ID, Source, Type, Subject, PartitionKey, DataContentType string
	Time                                                     time.Time
}
