package target

import (
	"slices"
	"strconv"
	"strings"

	"github.com/aviaryhq/aviary/internal/connector/message"
)

// These are names and prefixes of the headers beside an event's data, in CloudEvents' binary mode.
const (
	kafkaPrefix     = "ce_"          // Kafka protocol binding 1.0.2, section 3.2; also for Pulsar, which has no binding
	amqpPrefix      = "cloudEvents:" // AMQP protocol binding 1.0.2, section 3.1; RabbitMQ shows headers as application properties
	contentTypeName = "content-type"
	hopsName        = "aviary-hops"
)

// attribute is an attribute of an event. Its value is in canonical text form (CloudEvents 1.0,
// "Type System").
type attribute struct{ name, value string }

// mapping is an event, or the result of its transformation, in binary mode.
type mapping struct {
	attributes []attribute // without datacontenttype
	// contentType is datacontenttype, or application/json if the event does not have it; empty
	// without data.
	contentType string
	data        []byte // not nil
	hops        string // how many buses the event has passed, this one included
}

func newMapping(d *Delivery) (mapping, error) {
	m := mapping{attributes: make([]attribute, 0, 8), contentType: d.Event.DataContentType, hops: strconv.Itoa(d.Hops + 1)}
	for name, value := range d.Event.Attributes() {
		if name != "datacontenttype" {
			m.attributes = append(m.attributes, attribute{name, value})
		}
	}
	if d.Body != nil {
		m.data, m.contentType = d.Body, d.ContentType
		return m, nil
	}
	var err error
	if m.data, err = d.Event.Bytes(); err != nil {
		return mapping{}, err
	}
	switch {
	case m.data == nil:
		m.data = []byte{} // null would delete the key in a compacted topic
	case m.contentType == "":
		m.contentType = "application/json"
	}
	return m, nil
}

// headers returns the headers sorted by name, as connectors do for systems that keep no order.
func (m *mapping) headers(prefix string) []message.Header {
	headers := make([]message.Header, 0, len(m.attributes)+2)
	for _, a := range m.attributes {
		headers = append(headers, message.Header{Name: prefix + a.name, Value: []byte(a.value)})
	}
	headers = append(headers, message.Header{Name: hopsName, Value: []byte(m.hops)})
	slices.SortFunc(headers, func(a, b message.Header) int { return strings.Compare(a.Name, b.Name) })
	return headers
}

// withType returns the headers with the content type, for systems in which it is a header.
func (m *mapping) withType(prefix string) []message.Header {
	headers := m.headers(prefix)
	if m.contentType == "" {
		return headers
	}
	h := message.Header{Name: contentTypeName, Value: []byte(m.contentType)}
	at, _ := slices.BinarySearchFunc(headers, h, func(a, b message.Header) int { return strings.Compare(a.Name, b.Name) })
	return slices.Insert(headers, at, h)
}

func keyOf(d *Delivery) []byte {
	if d.Event.PartitionKey == "" {
		return nil
	}
	return []byte(d.Event.PartitionKey)
}
