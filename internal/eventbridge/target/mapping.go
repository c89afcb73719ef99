package target

import (
	"slices"
	"strconv"
	"strings"

	"github.com/aviaryhq/aviary/internal/connector/message"
)

// Names of what goes beside an event's data in systems that have headers, in CloudEvents' binary mode.
const (
	kafkaPrefix     = "ce_"          // Kafka protocol binding 1.0.2, section 3.2; also for Pulsar and Redis, which have no binding
	amqpPrefix      = "cloudEvents:" // AMQP protocol binding 1.0.2, section 3.1; RabbitMQ shows headers as application properties
	contentTypeName = "content-type"
	hopsName        = "aviary-hops"
)

// attribute is one of an event's, in the canonical text of its value (CloudEvents 1.0, "Type System").
type attribute struct{ name, value string }

// mapping is an event, or what a transformation made of it, in binary mode.
type mapping struct {
	attributes []attribute // without datacontenttype
	// contentType is datacontenttype, or what JSON data without it is; empty without data.
	contentType string
	data        []byte // not nil
	hops        string // how often it has passed a bus, this one included
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

// headers are sorted by name, as connectors have them in systems that keep no order.
func (m *mapping) headers(prefix string) []message.Header {
	headers := make([]message.Header, 0, len(m.attributes)+2)
	for _, a := range m.attributes {
		headers = append(headers, message.Header{Name: prefix + a.name, Value: []byte(a.value)})
	}
	headers = append(headers, message.Header{Name: hopsName, Value: []byte(m.hops)})
	slices.SortFunc(headers, func(a, b message.Header) int { return strings.Compare(a.Name, b.Name) })
	return headers
}

// withType adds the content type, where it goes by its name.
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
