package message

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
)

// Errors of SplitBySlot besides [ErrPayload].
var (
	// ErrFlush says that a payload has the effect of FLUSHALL or FLUSHDB.
	ErrFlush = errors.New("a flush of databases is not supported in front of a Redis Cluster")
	// ErrDatabase says that a payload has an effect on another database than 0.
	ErrDatabase = errors.New("a Redis Cluster has only the database 0")
	// ErrEffect says that a payload has an effect that this version does not know.
	ErrEffect = errors.New("an effect of an unknown kind: run the newer version of Sonic in this zone, too")
)

// SlotPayload is what a payload has for one slot.
type SlotPayload struct {
	Slot    int
	Last    ID     // of its last entry
	Payload []byte // as [Payload] makes it
}

// keyedEffects are the kinds of effects of a key, which is their fourth value. P is of a channel.
const keyedEffects = "SRLDHAZhazEIijPNO"

// SplitBySlot splits a payload of a zone with one Redis by the slots of keys. Slots are in the order
// of their first effect. Entries keep their ids and their order, and may be in several slots. told is
// the last cursor of each zone that the payload tells: how far the zone has applied its effects.
func SplitBySlot(payload []byte) (slots []SlotPayload, told map[string]ID, err error) {
	entries, err := Entries(payload)
	if err != nil {
		return nil, nil, err
	}
	var split [][]Entry
	told = map[string]ID{}
	at := map[int]int{} // slot to index in slots, split and packs
	var packs [][]byte  // effects of the entry that is read
	for i := range entries {
		id := entries[i].ID
		var filled []int
		err := eachEffect([]byte(entries[i].Effects), func(effect [][]byte, packed []byte) error {
			switch op := effect[0]; {
			case string(op) == "_":
				return readTold(effect[4:], told)
			case string(op) == "F":
				return ErrFlush
			case len(op) != 1 || bytes.IndexByte([]byte(keyedEffects), op[0]) < 0:
				return fmt.Errorf("%w: %q", ErrEffect, op)
			case string(effect[2]) != "0":
				return fmt.Errorf("%w, and an effect is of database %s", ErrDatabase, effect[2])
			}
			slot := cluster.Slot(effect[3])
			n, found := at[slot]
			if !found {
				n = len(slots)
				at[slot] = n
				slots, split, packs = append(slots, SlotPayload{Slot: slot}), append(split, nil), append(packs, nil)
			}
			if len(packs[n]) == 0 {
				filled = append(filled, n)
			}
			packs[n] = append(packs[n], packed...)
			return nil
		})
		if err != nil {
			return nil, nil, fmt.Errorf("the entry %s: %w", id, err)
		}
		for _, n := range filled {
			slots[n].Last = id
			split[n] = append(split[n], Entry{ID: id, Effects: string(packs[n])})
			packs[n] = packs[n][:0]
		}
	}
	for n := range slots {
		slots[n].Payload, _ = Payload(split[n])
	}
	return slots, told, nil
}

// eachEffect calls f with the values of each effect, and with the packed effect.
func eachEffect(packed []byte, f func(effect [][]byte, packed []byte) error) error {
	for len(packed) > 0 {
		n, rest, err := readArray(packed)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrPayload, err)
		}
		if n < 4 {
			return fmt.Errorf("%w: an effect of %d values", ErrPayload, n)
		}
		effect := make([][]byte, n)
		for i := range effect {
			if effect[i], rest, err = readString(rest); err != nil {
				return fmt.Errorf("%w: %w", ErrPayload, err)
			}
		}
		if err := f(effect, packed[:len(packed)-len(rest)]); err != nil {
			return err
		}
		packed = rest
	}
	return nil
}

// readTold reads zone, cursor, zone, cursor.
func readTold(values [][]byte, told map[string]ID) error {
	if len(values)%2 != 0 {
		return fmt.Errorf("%w: a zone without a cursor", ErrPayload)
	}
	for i := 0; i < len(values); i += 2 {
		id, err := ParseID(string(values[i+1]))
		if err != nil {
			return fmt.Errorf("%w: %w", ErrPayload, err)
		}
		told[string(values[i])] = id
	}
	return nil
}
