package wire

import "fmt"

// Entry is one entry of the outbox.
type Entry struct {
	ID          ID
	Effects     string // packed one after the other; empty for the entry that ends a transaction
	Transaction string // the id of its transaction; empty: none
}

// Size returns how many bytes the entry counts toward the bound of a message.
func (e *Entry) Size() int { return len(e.Effects) + entryOverhead }

// entryOverhead is how many bytes an entry takes at most besides its effects: its id, and the
// headers of both.
const entryOverhead = 40

// Bounds of a message. Only a message of a single entry or transaction may exceed them.
const (
	PackEntries = 512
	PackBytes   = 256 << 10
)

// PartBytes is the size of the parts of a payload that is too large for one message. It is well
// below the default maximum of brokers, 5 MiB.
const PartBytes = 1 << 20

// Cut returns how many of the first entries go into the next message: as many as its bounds allow,
// and never a part of a transaction. If single is true it takes only the first entry or the first
// transaction. It returns 0 if entries end within the first transaction.
func Cut(entries []Entry, single bool) int {
	n, bytes := 0, 0
	for n < len(entries) {
		end, ok := unit(entries, n)
		if !ok {
			break // the rest of the transaction has not been read
		}
		for i := n; i < end; i++ {
			bytes += entries[i].Size()
		}
		if n > 0 && (end > PackEntries || bytes > PackBytes) {
			break
		}
		if n = end; single {
			break
		}
	}
	return n
}

// unit returns the end of the entry or transaction that begins at begin. A unit is never split. ok
// is false if the end of the transaction is not among entries.
func unit(entries []Entry, begin int) (end int, ok bool) {
	t := entries[begin].Transaction
	if t == "" {
		return begin + 1, true
	}
	for i := begin; i < len(entries); i++ {
		switch e := &entries[i]; {
		case e.Transaction != t: // the transaction has no end entry: a function failed
			return i, true
		case e.Effects == "":
			return i + 1, true
		}
	}
	return 0, false
}

// Tail describes the end of a topic.
type Tail struct {
	Last     ID    // of the last effect
	Count    int64 // of all effects
	Position int64 // of the last message; -1: the topic is empty
	Epoch    int64 // of the messages that follow
	// Watermark is that of the last message, see [Header].
	Watermark uint64
}

// Message is a message of the topic: its header and its payload.
type Message struct {
	Header  Header
	Payload []byte
}

// Packer makes messages from entries.
type Packer struct {
	Origin string
	Config string // the zone's [Config], for each message
	Tail   Tail   // the end of the topic; the caller updates it after storing messages
}

// Pack returns entries as one message, or as the parts of one if it is too large, and the end of
// the topic after these are stored. It returns an error if the entries are not after the tail, or
// if an id has no position.
func (p *Packer) Pack(entries []Entry) (messages []Message, ends Tail, err error) {
	ends = p.Tail
	ends.Last = entries[len(entries)-1].ID
	if ends.Position, err = ends.Last.Position(); err != nil {
		return nil, ends, err
	}
	payload, effects := Payload(entries)
	ends.Count += effects
	h := Header{
		Origin: p.Origin, Epoch: p.Tail.Epoch, Prev: p.Tail.Last, First: entries[0].ID, Last: ends.Last,
		Count: ends.Count, Parts: (len(payload) + PartBytes - 1) / PartBytes, Config: p.Config,
	}
	for h.Part = 1; h.Part <= h.Parts; h.Part++ {
		// Before a large entry the library leaves a gap in the ids, so that the positions of all
		// parts are above those of earlier messages.
		h.Position = ends.Position - int64(h.Parts-h.Part)
		if h.Part == h.Parts && h.Position <= p.Tail.Position {
			return nil, ends, fmt.Errorf("the effect %s does not come after the end of the topic", ends.Last)
		}
		messages = append(messages, Message{h, payload[:min(PartBytes, len(payload))]})
		payload = payload[min(PartBytes, len(payload)):]
	}
	return messages, ends, nil
}
