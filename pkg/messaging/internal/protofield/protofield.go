// Package protofield reads messages of protocol buffers field by field.
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
