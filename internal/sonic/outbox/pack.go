package outbox

import (
	"encoding/binary"
	"fmt"

	"github.com/aviaryhq/aviary/internal/sonic/message"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// partBytes is how much of a payload goes into one message, when it is too large for one: well below what brokers take by default, 5 MiB.
const partBytes = 1 << 20

// tail is the end of the topic.
type tail struct {
	last     message.ID // of the last effect
	count    int64
	position int64 // -1: none
	epoch    int64
}

// tailOf is the end of a topic whose last message is d; nil: none.
func tailOf(d *messaging.Delivery) (tail, error) {
	if d == nil {
		return tail{position: -1}, nil
	}
	h, err := message.ParseHeader(d.Properties)
	if err != nil {
		return tail{}, err
	}
	t := tail{last: h.Last, count: h.Count, position: h.Position, epoch: h.Epoch}
	if h.Part < h.Parts {
		// The rest is not stored. The same parts are made again, and those that are stored are not stored twice.
		t.last = h.Prev
	}
	return t, nil
}

// packer makes messages of entries.
type packer struct {
	origin string
	lane   int
	config string // told in each message
	tail   tail   // behind what was packed last
}

// pack returns the messages of entries, which are one, or the parts of one. ends is how far the topic is once they are stored.
func (p *packer) pack(entries []entry) (records []*messaging.Record, ends tail, err error) {
	ends = p.tail
	ends.last = entries[len(entries)-1].id
	if ends.position, err = ends.last.Position(); err != nil {
		return nil, ends, err
	}
	payload, effects := payloadOf(entries)
	ends.count += effects
	h := message.Header{
		Origin: p.origin, Lane: p.lane, Epoch: p.tail.epoch, Prev: p.tail.last, First: entries[0].id, Last: ends.last,
		Count: ends.count, Parts: (len(payload) + partBytes - 1) / partBytes, Config: p.config,
	}
	for h.Part = 1; h.Part <= h.Parts; h.Part++ {
		// The library leaves room before what is large: the parts' positions are above those of all before.
		h.Position = ends.position - int64(h.Parts-h.Part)
		if h.Part == h.Parts && h.Position <= p.tail.position {
			return nil, ends, fmt.Errorf("%w: the effect %s is not behind what the topic has", ErrState, ends.last)
		}
		position := h.Position
		records = append(records, &messaging.Record{
			Payload: payload[:min(partBytes, len(payload))], Properties: h.Properties(), SequenceID: &position,
		})
		payload = payload[min(partBytes, len(payload)):]
	}
	return records, ends, nil
}

// payloadOf packs the ids and effects of entries as an array of MessagePack: id, effects, id, effects. The end of a transaction has none.
func payloadOf(entries []entry) (payload []byte, effects int64) {
	size := 5
	for i := range entries {
		if e := &entries[i]; e.effects != "" {
			effects++
			size += e.size()
		}
	}
	payload = make([]byte, 0, size)
	payload = binary.BigEndian.AppendUint32(append(payload, 0xdd), uint32(2*effects))
	for i := range entries {
		if e := &entries[i]; e.effects != "" {
			payload = appendText(appendText(payload, e.id.String()), e.effects)
		}
	}
	return payload, effects
}

// appendText appends a string of MessagePack.
func appendText(b []byte, text string) []byte {
	switch n := len(text); {
	case n < 32:
		b = append(b, 0xa0|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 0xda), uint16(n))
	default:
		b = binary.BigEndian.AppendUint32(append(b, 0xdb), uint32(n))
	}
	return append(b, text...)
}
