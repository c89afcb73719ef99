package fakebroker

import (
	"google.golang.org/protobuf/encoding/protowire"
)

// The client's generated protobuf code is internal, and generating our own would register a second
// pulsar.proto in the process. The few messages needed are therefore read and written field by
// field.

// field is one field of a protobuf message: n for the numeric wire types, b for bytes, strings and
// messages.
type field struct {
	num protowire.Number
	n   uint64
	b   []byte
}

// eachField calls fn for every field in order. The bytes it passes belong to b.
func eachField(b []byte, fn func(field) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		f := field{num: num}
		switch typ {
		case protowire.VarintType:
			f.n, n = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			f.n, n = protowire.ConsumeFixed64(b)
		case protowire.Fixed32Type:
			var v uint32
			v, n = protowire.ConsumeFixed32(b)
			f.n = uint64(v)
		case protowire.BytesType:
			f.b, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if err := fn(f); err != nil {
			return err
		}
	}
	return nil
}

// message is a protobuf message under construction. Its methods append one field each.
type message []byte

func (m message) num(field protowire.Number, v uint64) message {
	m = protowire.AppendTag(m, field, protowire.VarintType)
	return protowire.AppendVarint(m, v)
}

func (m message) flag(field protowire.Number, v bool) message {
	return m.num(field, protowire.EncodeBool(v))
}

func (m message) str(field protowire.Number, v string) message {
	m = protowire.AppendTag(m, field, protowire.BytesType)
	return protowire.AppendString(m, v)
}

func (m message) bytes(field protowire.Number, v []byte) message {
	m = protowire.AppendTag(m, field, protowire.BytesType)
	return protowire.AppendBytes(m, v)
}
