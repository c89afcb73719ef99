package transform

import (
	"maps"
	"unicode/utf8"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/expression"
)

// variables are the variables of expressions.
func variables() []cel.EnvOption {
	nullableBytes, nullableTime := cel.NullableType(cel.BytesType), cel.NullableType(cel.TimestampType)
	texts := cel.MapType(cel.StringType, cel.StringType)
	return []cel.EnvOption{
		cel.Variable("key", nullableBytes),          // null if there is none: key == b"7", string(key)
		cel.Variable("value", nullableBytes),        // null for a tombstone
		cel.Variable("text", cel.StringType),        // the value, "" for a tombstone; an error if it is not valid UTF-8
		cel.Variable("json", cel.DynType),           // the value, null for a tombstone; an error if it is not JSON
		cel.Variable("headers", texts),              // null is ""; of several headers of one name the last one counts
		cel.Variable("topic", cel.StringType),       // at the source, or the queue
		cel.Variable("partition", cel.IntType),      // -1 if the source has none
		cel.Variable("offset", cel.IntType),         // -1 if the source has none
		cel.Variable("time", nullableTime),          // set by the producer, null if it set none
		cel.Variable("routing_key", cel.StringType), // what the producer published with in RabbitMQ; "" from other systems
		cel.Variable("exchange", cel.StringType),    // the same
		cel.Variable("amqp", texts),                 // the other properties of RabbitMQ that are text, see amqpOf
	}
}

// view is a message as expressions see it: an Activation of CEL.
type view struct {
	m                   *message.Message
	text, json, headers ref.Val // nil until an expression uses them
}

func (*view) Parent() cel.Activation { return nil }

func (v *view) ResolveName(name string) (any, bool) {
	m := v.m
	switch name {
	case "key":
		return nullable(m.Key), true
	case "value":
		return nullable(m.Value), true
	case "text":
		if v.text == nil {
			v.text = textOf(m.Value)
		}
		return v.text, true
	case "json":
		if v.json == nil {
			v.json = jsonOf(m.Value)
		}
		return v.json, true
	case "headers":
		if v.headers == nil {
			v.headers = &headerMap{headers: m.Headers}
		}
		return v.headers, true
	case "topic":
		return types.String(m.From.Topic), true
	case "partition":
		return types.Int(m.From.Partition), true
	case "offset":
		return types.Int(m.From.Offset), true
	case "time":
		if y := m.Time.Year(); m.Time.IsZero() || y < 1 || y > 9999 { // CEL has no other years
			return types.NullValue, true
		}
		return types.Timestamp{Time: m.Time}, true
	case "routing_key":
		return types.String(amqpProperties(m).RoutingKey), true
	case "exchange":
		return types.String(amqpProperties(m).Exchange), true
	case "amqp":
		return amqpOf(amqpProperties(m)), true
	}
	return nil, false
}

func nullable(b []byte) ref.Val {
	if b == nil {
		return types.NullValue
	}
	return types.Bytes(b)
}

func textOf(value []byte) ref.Val {
	if !utf8.Valid(value) {
		return types.NewErr("text: the value is not valid UTF-8")
	}
	return types.String(value)
}

func jsonOf(value []byte) ref.Val {
	if value == nil {
		return types.NullValue
	}
	v, err := expression.JSON(value)
	if err != nil {
		return types.NewErr("json: the value is not JSON: %v", err)
	}
	return types.DefaultTypeAdapter.NativeToValue(v)
}

// amqpProperties returns the properties of a message of RabbitMQ, empty ones of any other.
func amqpProperties(m *message.Message) (a message.AMQP) {
	if m.AMQP != nil {
		a = *m.AMQP
	}
	return a
}

func amqpOf(a message.AMQP) ref.Val {
	values := map[string]string{
		"content_type": a.ContentType, "content_encoding": a.ContentEncoding, "correlation_id": a.CorrelationID, "reply_to": a.ReplyTo,
		"expiration": a.Expiration, "message_id": a.MessageID, "type": a.Type, "user_id": a.UserID, "app_id": a.AppID,
	}
	maps.DeleteFunc(values, func(_, value string) bool { return value == "" })
	return types.NewStringStringMap(types.DefaultTypeAdapter, values)
}
