// Package protofield reads messages of protocol buffers field by field. It imports no other package
// of this repository.
package protofield

import "google.golang.org/protobuf/encoding/protowire"

// Each calls use with each number or text (an inner message is one, too) of a message of protocol
// buffers. It returns what is wrong with the message behind the last call, or use's error.
func Each(data []byte, use func(protowire.Number, uint64, []byte) error) error {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		var v uint64
		var text []byte
		switch kind {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(data)
		case protowire.BytesType:
			text, n = protowire.ConsumeBytes(data)
		default:
			n = protowire.ConsumeFieldValue(number, kind, data)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		if err := use(number, v, text); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// Value is a field's number or text.
type Value struct {
	Number uint64
	Text   []byte
}

// maxField is the highest field that Fields returns, so that a sender's bytes do not grow a map.
const maxField = 128

// Fields returns the last value of each field up to the 128th. With an error it holds those before
// the fault.
func Fields(data []byte) (map[protowire.Number]Value, error) {
	fields := make(map[protowire.Number]Value)
	err := Each(data, func(field protowire.Number, v uint64, text []byte) error {
		if field <= maxField {
			fields[field] = Value{v, text}
		}
		return nil
	})
	return fields, err
}
