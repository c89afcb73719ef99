package target

import (
	"slices"
	"strconv"
	"strings"

	"github.com/aviaryhq/aviary/internal/connector/message"
)

// newMessage returns an event, or the result of its transformation, in CloudEvents' binary mode:
// the data is the value, and the attributes are headers with a prefix. The headers are sorted by
// name: otherwise connectors add a header with their order. contentType is datacontenttype, or
// application/json if the event has data without it.
func newMessage(d *Delivery, prefix string) (m *message.Message, contentType string, err error) {
	m, contentType = &message.Message{Value: d.Body, Headers: make([]message.Header, 0, 12)}, d.ContentType
	if d.Body == nil {
		if m.Value, err = d.Event.Bytes(); err != nil {
			return nil, "", err
		}
		contentType = d.Event.DataContentType
		switch {
		case m.Value == nil:
			m.Value = []byte{} // null would delete the key in a compacted topic
		case contentType == "":
			contentType = "application/json"
		}
	}
	for name, value := range d.Event.Attributes() {
		if name != "datacontenttype" {
			m.Headers = append(m.Headers, message.Header{Name: prefix + name, Value: []byte(value)})
		}
	}
	addHeader(m, "aviary-hops", strconv.Itoa(d.Hops+1))
	return m, contentType, nil
}

// keyedMessage returns an event by the Kafka protocol binding 1.0.2, section 3.2, with its
// partitionkey as key. Pulsar has no binding and gets the same.
func keyedMessage(d *Delivery) (*message.Message, error) {
	m, contentType, err := newMessage(d, "ce_")
	if err != nil {
		return nil, err
	}
	if contentType != "" {
		addHeader(m, "content-type", contentType)
	}
	if d.Event.PartitionKey != "" {
		m.Key = []byte(d.Event.PartitionKey)
	}
	return m, nil
}

// addHeader adds a header and sorts.
func addHeader(m *message.Message, name, value string) {
	m.Headers = append(m.Headers, message.Header{Name: name, Value: []byte(value)})
	slices.SortFunc(m.Headers, func(a, b message.Header) int { return strings.Compare(a.Name, b.Name) })
}
