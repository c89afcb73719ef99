package transform

import (
	"unicode/utf8"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/expression"
)

// variables are the variables of expressions. Expensive values (text, json, headers) are made when
// an expression uses them, once per message.
func variables() []cel.EnvOption {
	nullableBytes, nullableTime := cel.NullableType(cel.BytesType), cel.NullableType(cel.TimestampType)
	return []cel.EnvOption{
		// The key, null if there is none: key == b"7", string(key).
		cel.Variable("key", nullableBytes),
		// The value, null for a tombstone.
		cel.Variable("value", nullableBytes),
		// The value as text, "" for a tombstone. A value that is not valid UTF-8 is an error.
		cel.Variable("text", cel.StringType),
		// The value parsed as JSON, null for a tombstone: json.order.total > 100. A value that is
		// not JSON is an error.
		cel.Variable("json", cel.DynType),
		// The headers, as text; null is "". If several headers have one name, the last one counts.
		cel.Variable("headers", cel.MapType(cel.StringType, cel.StringType)),
		// Where the message comes from: topic or queue, partition and offset. partition and offset
		// are -1 if the source has none.
		cel.Variable("topic", cel.StringType),
		cel.Variable("partition", cel.IntType),
		cel.Variable("offset", cel.IntType),
		// The time that the producer set, null if it set none.
		cel.Variable("time", nullableTime),
		// What the producer published the message with in RabbitMQ; "" from other systems.
		cel.Variable("routing_key", cel.StringType),
		cel.Variable("exchange", cel.StringType),
		// The other basic properties of RabbitMQ that the message has, if they are text:
		// amqp.content_type, and content_encoding, correlation_id, reply_to, expiration, message_id,
		// type, user_id, app_id.
		cel.Variable("amqp", cel.MapType(cel.StringType, cel.StringType)),
	}
}

// view is a message as expressions see it.
type view struct {
	m *message.Message

	// Values made so far, or nil.
	text, json, headers ref.Val
}

// Parent is a method of CEL's Activation.
func (*view) Parent() cel.Activation { return nil }

// ResolveName is a method of CEL's Activation.
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
			v.headers = headersOf(m.Headers)
		}
		return v.headers, true
	case "topic":
		return types.String(m.From.Topic), true
	case "partition":
		return types.Int(m.From.Partition), true
	case "offset":
		return types.Int(m.From.Offset), true
	case "time":
		return timeOf(m), true
	case "routing_key", "exchange":
		switch {
		case m.AMQP == nil:
			return types.String(""), true
		case name == "exchange":
			return types.String(m.AMQP.Exchange), true
		default:
			return types.String(m.AMQP.RoutingKey), true
		}
	case "amqp":
		return amqpOf(m.AMQP), true
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

// timeOf returns null if there is no time, or its year is not one of CEL's, 1 to 9999.
func timeOf(m *message.Message) ref.Val {
	if y := m.Time.Year(); m.Time.IsZero() || y < 1 || y > 9999 {
		return types.NullValue
	}
	return types.Timestamp{Time: m.Time}
}

func amqpOf(a *message.AMQP) ref.Val {
	values := map[string]string{}
	if a != nil {
		for name, value := range map[string]string{
			"content_type": a.ContentType, "content_encoding": a.ContentEncoding, "correlation_id": a.CorrelationID, "reply_to": a.ReplyTo,
			"expiration": a.Expiration, "message_id": a.MessageID, "type": a.Type, "user_id": a.UserID, "app_id": a.AppID,
		} {
			if value != "" {
				values[name] = value
			}
		}
	}
	return types.NewStringStringMap(types.DefaultTypeAdapter, values)
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
