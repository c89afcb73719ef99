package rabbitmq

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
)

const (
	// maxShort is the longest of AMQP's short strings: names, keys and most properties.
	maxShort = 255
	// maxFields and maxDepth are the library's limits for reading a table. It could not read a
	// message beyond them: the connection would break, also this one when the broker returns the
	// message as unroutable.
	maxFields = 8192
	maxDepth  = 32
	// maxExpiration is RabbitMQ's longest time to live.
	maxExpiration = 1<<32 - 1

	headerStreamOffset  = "x-stream-offset"
	headerDeliveryCount = "x-delivery-count" // how often a quorum queue got the message back
	// headerUserID has a user-id that this connection's user may not send.
	headerUserID = "pigeonhole.user_id"
)

// Reasons of refusals.
const (
	refusedTooLarge   = "too_large"
	refusedHeader     = "bad_header"
	refusedProperty   = "bad_property"
	refusedUnroutable = "unroutable"
	refusedByBroker   = "refused_by_broker"
)

// fromDelivery makes the message of a delivery; it takes the delivery over. stream takes the
// offset, which the broker has added, out of the headers.
func fromDelivery(d *amqp.Delivery, queue string, stream bool, now time.Time) *message.Message {
	offset := int64(-1)
	a := message.AMQP{
		Exchange: d.Exchange, RoutingKey: d.RoutingKey, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding,
		DeliveryMode: d.DeliveryMode, Priority: d.Priority, CorrelationID: d.CorrelationId, ReplyTo: d.ReplyTo,
		Expiration: d.Expiration, MessageID: d.MessageId, Type: d.Type, UserID: d.UserId, AppID: d.AppId,
	}
	var headers []message.Header
	if len(d.Headers) > 0 {
		headers = make([]message.Header, 0, len(d.Headers))
	}
	for name, v := range d.Headers {
		name, ok := headerName(name, d.Headers)
		text, isText := v.(string)
		number, isNumber := v.(int64)
		switch {
		case !ok:
		case isText && name == headerUserID && a.UserID == "":
			a.UserID = text
		case isText:
			headers = append(headers, message.Header{Name: name, Value: []byte(text)})
		case isNumber && name == headerStreamOffset && stream:
			offset = number
		default:
			headers = append(headers, message.Header{Name: name, Typed: fromField(v)})
		}
	}
	if d.Body == nil {
		d.Body = []byte{} // AMQP has no null value
	}
	m := message.FromAMQP(d.Body, a, headers, d.Timestamp)
	m.From = message.From{System: system, Topic: queue, Partition: -1, Offset: offset, Received: now}
	return m
}

// headerName returns the name under which a header is forwarded. Headers that RabbitMQ acts on get
// message.Prefix: a forwarded x-death makes a broker drop the message as one in a cycle. ok is false
// for a prefixed copy from an earlier Pigeonhole when RabbitMQ has set the header again.
func headerName(name string, headers amqp.Table) (forwarded string, ok bool) {
	if message.IsBrokerHeader(name) {
		return message.Prefix + name, true
	}
	if former, found := strings.CutPrefix(name, message.Prefix); found && message.IsBrokerHeader(former) {
		_, newer := headers[former]
		return name, !newer
	}
	return name, true
}

// fromField makes a value of message.Header.Typed, or a string within an array or table, of one
// that the library has read.
func fromField(v any) any {
	switch v := v.(type) {
	case nil:
		return message.Null{}
	case amqp.Decimal:
		return message.Decimal{Scale: v.Scale, Value: v.Value}
	case amqp.Table:
		t := make(message.Table, len(v))
		for name, element := range v {
			t[name] = fromField(element)
		}
		return t
	case []any:
		a := make([]any, len(v))
		for i := range v {
			a[i] = fromField(v[i])
		}
		return a
	}
	return v
}

// toPublishing makes the publishing of a message. size is about the bytes that it takes in memory and
// on the wire. It only shares the message's memory. An error is final.
func (c *SinkConfig) toPublishing(to string, m *message.Message) (pub amqp.Publishing, size int64, err error) {
	value, a, headers, t := m.ToAMQP()
	refuse := func(reason, format string, args ...any) (amqp.Publishing, int64, error) {
		return amqp.Publishing{}, 0, pipeline.Refuse(reason, fmt.Errorf(format, args...))
	}
	if int64(len(value)) > int64(c.MaxMessageBytes) {
		return refuse(refusedTooLarge, "the message has %d bytes, max_message_bytes is %s", len(value), c.MaxMessageBytes)
	}
	pub = amqp.Publishing{
		ContentType: a.ContentType, ContentEncoding: a.ContentEncoding, DeliveryMode: a.DeliveryMode, Priority: a.Priority,
		CorrelationId: a.CorrelationID, ReplyTo: a.ReplyTo, Expiration: a.Expiration, MessageId: a.MessageID, Timestamp: t,
		Type: a.Type, UserId: a.UserID, AppId: a.AppID, Body: value,
	}
	if m.AMQP == nil {
		pub.DeliveryMode = amqp.Persistent
	}
	foreign := a.UserID != "" && a.UserID != c.Username && !c.Impersonate
	if foreign {
		pub.UserId = ""
	}
	properties := 1024 // the others, the frame's header and a foreign user-id
	for _, p := range [...]struct{ name, value string }{
		{"routing key", to}, {"content type", pub.ContentType}, {"content encoding", pub.ContentEncoding},
		{"correlation id", pub.CorrelationId}, {"reply-to", pub.ReplyTo}, {"expiration", pub.Expiration},
		{"message id", pub.MessageId}, {"type", pub.Type}, {"user id", pub.UserId}, {"app id", pub.AppId},
	} {
		if len(p.value) > maxShort {
			return refuse(refusedProperty, "the %s has more than %d bytes", p.name, maxShort)
		}
		properties += len(p.value)
	}
	if pub.Expiration != "" {
		if n, err := strconv.ParseUint(pub.Expiration, 10, 64); err != nil || n > maxExpiration {
			return refuse(refusedProperty, "the expiration %q is not a number of milliseconds", pub.Expiration)
		}
	}
	if len(headers) > 0 || foreign {
		if len(headers) >= maxFields {
			return refuse(refusedHeader, "the message has %d headers, at most %d are allowed", len(headers), maxFields-1)
		}
		pub.Headers = make(amqp.Table, len(headers)+1)
		for i := range headers {
			h := &headers[i]
			v := h.Typed
			if v == nil && h.Value != nil {
				v = string(h.Value)
			}
			field, n, err := toField(h.Name, v, 1)
			if err != nil {
				return refuse(refusedHeader, "header %.64q: %w", h.Name, err)
			}
			pub.Headers[h.Name] = field
			properties += n
		}
		if foreign {
			pub.Headers[headerUserID] = a.UserID
		}
	}
	if properties > frameMax-1024 {
		// The broker takes them in one frame.
		return refuse(refusedTooLarge, "the headers have %d bytes, RabbitMQ accepts at most %d", properties, frameMax-1024)
	}
	return pub, int64(properties + len(value)), nil
}

// toField makes a table's value of one of message.Header.Typed, and its size on the wire with its
// name. Elements of arrays have no name.
func toField(name string, v any, depth int) (field any, size int, err error) {
	if depth > maxDepth {
		return nil, 0, fmt.Errorf("tables and arrays are nested more than %d deep", maxDepth)
	}
	if len(name) > maxShort {
		return nil, 0, fmt.Errorf("a name has more than %d bytes", maxShort)
	}
	size = 1 + len(name)
	switch v := v.(type) {
	case message.Null, nil:
		return nil, size + 1, nil
	case float32:
		return v, size + 9, checkFinite(float64(v))
	case float64:
		return v, size + 9, checkFinite(v)
	case bool, int8, uint8, int16, uint16, int32, uint32, int64:
		return v, size + 9, nil
	case time.Time:
		return time.Unix(v.Unix(), 0), size + 9, nil // as the library reads it, see matchesReturn
	case string:
		return v, size + 5 + len(v), nil
	case []byte:
		return v, size + 5 + len(v), nil
	case message.Decimal:
		return amqp.Decimal{Scale: v.Scale, Value: v.Value}, size + 6, nil
	case message.Table:
		if len(v) > maxFields {
			return nil, 0, fmt.Errorf("a table has more than %d entries", maxFields)
		}
		t := make(amqp.Table, len(v))
		for name, element := range v {
			value, n, err := toField(name, element, depth+1)
			if err != nil {
				return nil, 0, err
			}
			t[name] = value
			size += n
		}
		return t, size + 5, nil
	case []any:
		if len(v) > maxFields {
			return nil, 0, fmt.Errorf("an array has more than %d elements", maxFields)
		}
		var a []any // nil if empty, as the library reads it
		for _, element := range v {
			value, n, err := toField("", element, depth+1)
			if err != nil {
				return nil, 0, err
			}
			a = append(a, value)
			size += n
		}
		return a, size + 5, nil
	}
	return nil, 0, fmt.Errorf("AMQP has no type for %T", v)
}

// checkFinite refuses numbers over which RabbitMQ closes the connection.
func checkFinite(f float64) error {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return fmt.Errorf("RabbitMQ does not accept the number %g", f)
	}
	return nil
}
