package eventpattern

import (
	"hash/maphash"
	"slices"
)

// exactTable finds the postings of a text. Its seed is secret, so that nobody can choose texts that
// collide. With 100,000 rules cache misses take most of the time of a match: a slot here has 16
// bytes, and the texts are together. With Go maps a match takes a sixth longer.
type exactTable struct {
	seed  maphash.Seed
	slots []exactSlot // open addressing; the length is a power of two
	used  int
	texts []byte
	lists [][]posting // of texts with several postings
}

// exactSlot has a text, and its posting or the number of its list.
type exactSlot struct {
	hash       uint32 // the upper half, compared before the text
	at, length uint32 // of the text, in exactTable.texts
	posting    posting
}

func newExactTable() *exactTable {
	return &exactTable{seed: maphash.MakeSeed(), slots: make([]exactSlot, 8)}
}

// clone returns a copy that may change. Both share texts and lists: a table only appends to them.
func (t *exactTable) clone() *exactTable {
	if t == nil {
		return nil
	}
	c := *t
	c.slots, c.lists = slices.Clone(t.slots), slices.Clone(t.lists)
	return &c
}

func (t *exactTable) text(s *exactSlot) []byte { return t.texts[s.at : s.at+s.length] }

// slot returns the slot of a text, or the free one where it belongs.
func (t *exactTable) slot(hash uint64, text []byte) *exactSlot {
	mask := uint32(len(t.slots) - 1)
	for i := uint32(hash) & mask; ; i = (i + 1) & mask {
		s := &t.slots[i]
		if s.posting == noPosting || s.hash == uint32(hash>>32) && string(t.text(s)) == string(text) {
			return s
		}
	}
}

func (t *exactTable) find(text []byte, found []posting) []posting {
	s := t.slot(maphash.Bytes(t.seed, text), text)
	switch {
	case s.posting == noPosting:
		return found
	case s.posting&postingList == 0:
		return append(found, s.posting)
	}
	return append(found, t.lists[s.posting.number()]...)
}

// count returns how many postings a text has. A nil table has none.
func (t *exactTable) count(text string) int {
	if t == nil {
		return 0
	}
	return len(t.find([]byte(text), nil))
}

func (t *exactTable) add(text string, p posting) {
	if 2*t.used >= len(t.slots) {
		old := t.slots
		t.slots = make([]exactSlot, 2*len(old))
		for i := range old {
			if old[i].posting != noPosting {
				*t.slot(maphash.Bytes(t.seed, t.text(&old[i])), t.text(&old[i])) = old[i]
			}
		}
	}
	hash := maphash.String(t.seed, text)
	s := t.slot(hash, []byte(text))
	switch {
	case s.posting == noPosting:
		*s = exactSlot{hash: uint32(hash >> 32), at: uint32(len(t.texts)), length: uint32(len(text)), posting: p}
		t.texts = append(t.texts, text...)
		t.used++
	case s.posting&postingList == 0:
		t.lists = append(t.lists, []posting{s.posting, p})
		s.posting = makePosting(uint32(len(t.lists)-1), postingList)
	default:
		list := &t.lists[s.posting.number()]
		*list = append(*list, p)
	}
}
