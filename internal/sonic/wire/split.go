package wire

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
)

// ErrEffect says that a payload has an effect that this version does not know.
var ErrEffect = errors.New("an effect of an unknown kind: run the newer version of Sonic in this zone, too")

// Split is a payload of a zone with one Redis, split by the slots of keys.
type Split struct {
	// Slots are in the order of their first effect. Entries keep their ids and their order, and may be
	// in several slots.
	Slots []SlotPayload
	// Reached has, for each other zone, the last effect that the origin says it has applied.
	Reached map[string]ID
	// OtherDatabases is how many effects are of databases other than 0, by database: a Redis Cluster
	// does not have these.
	OtherDatabases map[string]int64
}

// SlotPayload is what a payload has for one slot.
type SlotPayload struct {
	Slot    int
	Last    ID     // of its last entry
	Payload []byte // as [Payload] makes it
}

// keyedEffects are the kinds of effects of a key, which is their fourth value. P is of a channel.
const keyedEffects = "SRLDHAZhazEIijPNO"

// SplitBySlot splits a payload of a zone with one Redis by the slots of keys. A flush of database 0
// is in every slot. SplitBySlot leaves out effects of other databases: see Split.OtherDatabases. Its
// errors are [ErrPayload] and [ErrEffect].
func SplitBySlot(payload []byte) (Split, error) {
	entries, err := Entries(payload)
	if err != nil {
		return Split{}, err
	}
	s := splitter{Split: Split{Reached: map[string]ID{}, OtherDatabases: map[string]int64{}}, at: map[int]int{}}
	for i := range entries {
		e := &entries[i]
		effects, err := Effects(e.Effects)
		for n := 0; err == nil && n < len(effects); n++ {
			err = s.add(effects[n])
		}
		if err != nil {
			return Split{}, fmt.Errorf("the entry %s: %w", e.ID, err)
		}
		s.endEntry(e.ID)
	}
	for n := range s.Slots {
		s.Slots[n].Payload, _ = Payload(s.entries[n])
	}
	return s.Split, nil
}

// splitter splits one entry after the other.
type splitter struct {
	Split
	at      map[int]int // slot to index in Slots, entries and packs
	entries [][]Entry
	packs   [][]byte // effects of the entry that is read
	filled  []int    // indexes of packs that have effects
}

// add adds an effect of the entry that is read.
func (s *splitter) add(e Effect) error {
	op, db := e.Values[0], e.Values[2]
	switch {
	case op == "_":
		return readReached(e.Values[4:], s.Reached)
	case op == "F":
		// A flush of other databases deletes nothing in a Redis Cluster.
		if db == "0" || slices.Contains(e.Values[4:], "0") {
			flush := appendArray(nil, 4)
			for _, value := range []string{"F", e.Values[1], "0", ""} {
				flush = appendString(flush, value)
			}
			for slot := range cluster.Slots {
				s.put(slot, string(flush))
			}
		}
	case len(op) != 1 || !strings.Contains(keyedEffects, op):
		return fmt.Errorf("%w: %q", ErrEffect, op)
	case db != "0" && op != "P": // a channel is of no database
		if op != "N" && op != "O" { // these ask for effects and announce them
			s.OtherDatabases[db]++
		}
	default:
		s.put(cluster.Slot([]byte(e.Values[3])), e.packed)
	}
	return nil
}

func (s *splitter) put(slot int, packed string) {
	n, found := s.at[slot]
	if !found {
		n = len(s.Slots)
		s.at[slot] = n
		s.Slots, s.entries, s.packs = append(s.Slots, SlotPayload{Slot: slot}), append(s.entries, nil), append(s.packs, nil)
	}
	if len(s.packs[n]) == 0 {
		s.filled = append(s.filled, n)
	}
	s.packs[n] = append(s.packs[n], packed...)
}

// endEntry makes entries of what was added since the last call.
func (s *splitter) endEntry(id ID) {
	for _, n := range s.filled {
		s.Slots[n].Last = id
		s.entries[n] = append(s.entries[n], Entry{ID: id, Effects: string(s.packs[n])})
		s.packs[n] = s.packs[n][:0]
	}
	s.filled = s.filled[:0]
}

// readReached reads zone, cursor, zone, cursor.
func readReached(values []string, reached map[string]ID) error {
	if len(values)%2 != 0 {
		return fmt.Errorf("%w: a zone without a cursor", ErrPayload)
	}
	for i := 0; i < len(values); i += 2 {
		id, err := ParseID(values[i+1])
		if err != nil {
			return fmt.Errorf("%w: %w", ErrPayload, err)
		}
		reached[values[i]] = id
	}
	return nil
}
