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
	if ends.Position <= p.Tail.Position {
		return nil, ends, fmt.Errorf("the effect %s does not come after the end of the topic", ends.Last)
	}
	payload, effects := Payload(entries)
	ends.Count += effects
	messages = inParts(payload, Header{
		Origin: p.Origin, Epoch: p.Tail.Epoch, Prev: p.Tail.Last, First: entries[0].ID, Last: ends.Last, Count: ends.Count, Config: p.Config,
	})
	for i := range messages {
		// Before a large entry the library leaves a gap in the ids, so that the positions of all
		// parts are above those of earlier messages.
		messages[i].Header.Position = ends.Position - int64(len(messages)-1-i)
	}
	return messages, ends, nil
}

// PackGroups is Pack for a zone that has a Redis Cluster. It counts positions. Only the last part has
// watermark: if the process ends before that part is stored, the effects are not in the topic, and the
// next owner goes on from the part that is the last one then.
func (p *Packer) PackGroups(groups []Group, watermark uint64, reached map[string]uint64) (messages []Message, ends Tail) {
	payload, effects := GroupsPayload(groups)
	ends = p.Tail
	ends.Count += effects
	for i := range groups {
		ends.Last = Max(ends.Last, groups[i].Last)
	}
	first := ends.Last
	for i := range groups {
		if id := groups[i].Entries[0].ID; id.Compare(first) < 0 {
			first = id
		}
	}
	messages = inParts(payload, Header{
		Origin: p.Origin, Epoch: p.Tail.Epoch, First: first, Last: ends.Last, Count: ends.Count, Config: p.Config,
		Slots: true, Watermark: p.Tail.Watermark, Reached: reached,
	})
	for i := range messages {
		ends.Position++
		messages[i].Header.Position = ends.Position
	}
	ends.Watermark = watermark
	messages[len(messages)-1].Header.Watermark = watermark
	return messages, ends
}

// inParts returns a payload as the parts of a message.
func inParts(payload []byte, h Header) (messages []Message) {
	h.Parts = (len(payload) + PartBytes - 1) / PartBytes
	for h.Part = 1; h.Part <= h.Parts; h.Part++ {
		n := min(PartBytes, len(payload))
		messages = append(messages, Message{h, payload[:n]})
		payload = payload[n:]
	}
	return messages
}
