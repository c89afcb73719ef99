package message

import "fmt"

// An Entry is one entry of the outbox.
type Entry struct {
	ID          ID
	Effects     string // packed, one behind the other; empty at the end of a transaction
	Transaction string // its id; empty: none
}

// Size is what the entry counts against the bound of a message, in bytes.
func (e *Entry) Size() int { return len(e.Effects) + entryOverhead }

// entryOverhead is what an entry takes beside its effects, at most: its id, and the headers of both.
const entryOverhead = 40

// Bounds of a message. One may hold more only when it is one entry, or one transaction.
const (
	PackEntries = 512
	PackBytes   = 256 << 10
)

// PartBytes is how much of a payload goes into one message, when it is too large for one: well below what brokers take by default, 5 MiB.
const PartBytes = 1 << 20

// Cut returns how many of entries, from the first on, go into the next message: as many as its bounds allow, whole transactions only. With one
// it takes no more than the first entry, or the first transaction. It returns 0 when they end within the first transaction.
func Cut(entries []Entry, one bool) int {
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
		if n = end; one {
			break
		}
	}
	return n
}

// unit returns the end of what begins at begin and is never split: an entry, or all of a transaction. ok is false when the end of
// the transaction is not there.
func unit(entries []Entry, begin int) (end int, ok bool) {
	t := entries[begin].Transaction
	if t == "" {
		return begin + 1, true
	}
	for i := begin; i < len(entries); i++ {
		switch e := &entries[i]; {
		case e.Transaction != t: // it has no end: a function failed
			return i, true
		case e.Effects == "":
			return i + 1, true
		}
	}
	return 0, false
}

// A Tail is the end of a topic.
type Tail struct {
	Last     ID    // of the last effect
	Count    int64 // of all effects
	Position int64 // of the last message; -1: none
	Epoch    int64 // of the messages that follow
}

// A Message is what is stored: what it says of itself, and its payload.
type Message struct {
	Header  Header
	Payload []byte
}

// A Packer makes messages of entries.
type Packer struct {
	Origin string
	Lane   int
	Config string // of the zone, told in each message
	Tail   Tail   // behind what was stored last: who stores moves it
}

// Pack returns the messages of entries, which are one, or the parts of one, and the topic's end once they are stored. The error says that the
// entries are not behind the tail, or that an id has no position.
func (p *Packer) Pack(entries []Entry) (messages []Message, ends Tail, err error) {
	ends = p.Tail
	ends.Last = entries[len(entries)-1].ID
	if ends.Position, err = ends.Last.Position(); err != nil {
		return nil, ends, err
	}
	payload, effects := Payload(entries)
	ends.Count += effects
	h := Header{
		Origin: p.Origin, Lane: p.Lane, Epoch: p.Tail.Epoch, Prev: p.Tail.Last, First: entries[0].ID, Last: ends.Last,
		Count: ends.Count, Parts: (len(payload) + PartBytes - 1) / PartBytes, Config: p.Config,
	}
	for h.Part = 1; h.Part <= h.Parts; h.Part++ {
		// The library leaves room before what is large: the parts' positions are above those of all before.
		h.Position = ends.Position - int64(h.Parts-h.Part)
		if h.Part == h.Parts && h.Position <= p.Tail.Position {
			return nil, ends, fmt.Errorf("the effect %s is not behind what the topic has", ends.Last)
		}
		messages = append(messages, Message{h, payload[:min(PartBytes, len(payload))]})
		payload = payload[min(PartBytes, len(payload)):]
	}
	return messages, ends, nil
}
