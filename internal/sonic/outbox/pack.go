package outbox

import (
	"github.com/aviaryhq/aviary/internal/sonic/message"
	"github.com/aviaryhq/aviary/internal/sonic/script"
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

// tailOf is the end of a topic whose last message d is; nil: none.
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
		// The rest was never stored: all of its parts come again.
		t.last = h.Prev
	}
	return t, nil
}

// packer makes messages of entries.
type packer struct {
	origin string
	lane   int
	tail   tail // behind what was packed last
}

// pack returns the messages of entries, which are one, or the parts of one. ends is how far the topic is once they are stored.
func (p *packer) pack(entries []entry) (records []*messaging.Record, ends tail) {
	ends = p.tail
	ends.last = entries[len(entries)-1].id
	var effects []script.Entry
	for i := range entries {
		if e := &entries[i]; e.effects != "" {
			effects = append(effects, script.Entry{ID: e.id.String(), Effects: e.effects})
		}
	}
	ends.count += int64(len(effects))
	payload := script.Pack(effects)
	h := message.Header{
		Origin: p.origin, Lane: p.lane, Epoch: p.tail.epoch, Prev: p.tail.last, First: entries[0].id, Last: ends.last,
		Count: ends.count, Parts: max((len(payload)+partBytes-1)/partBytes, 1),
	}
	for h.Part = 1; h.Part <= h.Parts; h.Part++ {
		ends.position = ends.last.Position(ends.position)
		h.Position = ends.position
		position := h.Position
		records = append(records, &messaging.Record{
			Payload: payload[:min(partBytes, len(payload))], Properties: h.Properties(), SequenceID: &position,
		})
		payload = payload[min(partBytes, len(payload)):]
	}
	return records, ends
}
