package match

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
)

// exactTable finds the posts of a value. A hash with a secret seed keeps events and rules from choosing values that collide. Everything about a value
// stands together in one piece of memory: with many rules, a look costs two cache misses.
type exactTable struct {
	owner   *edit
	seed    maphash.Seed
	slots   []exactSlot // open addressing; a power of two
	entries []byte
	lists   [][]post // of values with several posts; nil: free
	count   int      // entries
	dead    int      // those without posts
}

// exactSlot has the place of an entry, counted from 1.
type exactSlot struct{ hash, entry uint32 }

// An entry is the first post, the number of the list with the others, counted from 1, the kind and length of the text, and the text.
const (
	entryPost  = 0
	entryList  = 4
	entryShape = 8
	entryText  = 12
	lengthBits = 24
	minSlots   = 8
)

func shape(k kind, length int) uint32 { return uint32(k)<<lengthBits | uint32(length) }

// edited returns a table that e may change: t, or a copy if older snapshots use t.
func (t *exactTable) edited(e *edit) *exactTable {
	if t == nil {
		return &exactTable{owner: e, seed: e.next.seed, slots: make([]exactSlot, minSlots)}
	}
	if t.owner == e {
		return t
	}
	c := *t
	c.owner, c.slots, c.lists = e, slices.Clone(t.slots), slices.Clone(t.lists)
	c.entries = append(make([]byte, 0, len(t.entries)+len(t.entries)/8), t.entries...)
	return &c
}

func hashValue(seed maphash.Seed, k kind, data []byte) uint64 {
	return maphash.Bytes(seed, data) + uint64(k)*0x9e3779b97f4a7c15
}

// find returns the place of a value, or -1.
func (t *exactTable) find(k kind, data []byte) int {
	h := hashValue(t.seed, k, data)
	mask := uint32(len(t.slots) - 1)
	want := shape(k, len(data))
	for i := uint32(h) & mask; ; i = (i + 1) & mask {
		s := t.slots[i]
		if s.entry == 0 {
			return -1
		}
		if s.hash == uint32(h>>32) {
			at := int(s.entry - 1)
			e := t.entries[at:]
			if binary.LittleEndian.Uint32(e[entryShape:]) == want && string(e[entryText:entryText+len(data)]) == string(data) {
				return at
			}
		}
	}
}

// posts appends the posts of the value.
func (t *exactTable) posts(k kind, data []byte, hits []post) []post {
	at := t.find(k, data)
	if at < 0 {
		return hits
	}
	p, list := t.entry(at)
	if p == noPost {
		return hits
	}
	hits = append(hits, p)
	if list != 0 {
		hits = append(hits, t.lists[list-1]...)
	}
	return hits
}

func (t *exactTable) entry(at int) (p post, list uint32) {
	return post(binary.LittleEndian.Uint32(t.entries[at+entryPost:])), binary.LittleEndian.Uint32(t.entries[at+entryList:])
}

func (t *exactTable) setEntry(at int, p post, list uint32) {
	binary.LittleEndian.PutUint32(t.entries[at+entryPost:], uint32(p))
	binary.LittleEndian.PutUint32(t.entries[at+entryList:], list)
}

// posted counts the posts of a value.
func (t *exactTable) posted(k kind, text string) int {
	if t == nil {
		return 0
	}
	at := t.find(k, []byte(text))
	if at < 0 {
		return 0
	}
	switch p, list := t.entry(at); {
	case p == noPost:
		return 0
	case list == 0:
		return 1
	default:
		return 1 + len(t.lists[list-1])
	}
}

func (t *exactTable) add(k kind, text string, p post) {
	at := t.find(k, []byte(text))
	if at < 0 {
		if t.count >= len(t.slots)/2 {
			t.rebuild()
		}
		at = len(t.entries)
		t.entries = append(t.entries, make([]byte, entryText)...)
		binary.LittleEndian.PutUint32(t.entries[at+entryShape:], shape(k, len(text)))
		t.entries = append(t.entries, text...)
		t.setEntry(at, p, 0)
		t.place(at)
		t.count++
		return
	}
	switch first, list := t.entry(at); {
	case first == noPost:
		t.dead--
		t.setEntry(at, p, 0)
	case list == 0:
		t.lists = append(t.lists, []post{p})
		t.setEntry(at, first, uint32(len(t.lists)))
	default:
		t.lists[list-1] = append(t.lists[list-1], p)
	}
}

// text returns the kind and text of an entry, and the place of the next.
func (t *exactTable) text(at int) (k kind, text []byte, next int) {
	s := binary.LittleEndian.Uint32(t.entries[at+entryShape:])
	next = at + entryText + int(s&(1<<lengthBits-1))
	return kind(s >> lengthBits), t.entries[at+entryText : next], next
}

// rebuild drops entries without posts and makes room for as many again as there are.
func (t *exactTable) rebuild() {
	size := minSlots
	for size < 4*(t.count-t.dead) {
		size *= 2
	}
	old := *t
	t.slots, t.entries, t.lists, t.count, t.dead = make([]exactSlot, size), make([]byte, 0, len(old.entries)+len(old.entries)/2), nil, 0, 0
	for at := 0; at < len(old.entries); {
		_, _, next := old.text(at)
		if p, list := old.entry(at); p != noPost {
			to := len(t.entries)
			t.entries = append(t.entries, old.entries[at:next]...)
			if list != 0 {
				t.lists = append(t.lists, old.lists[list-1])
				list = uint32(len(t.lists))
			}
			t.setEntry(to, p, list)
			t.place(to)
			t.count++
		}
		at = next
	}
}

func (t *exactTable) place(at int) {
	k, text, _ := t.text(at)
	h := hashValue(t.seed, k, text)
	mask := uint32(len(t.slots) - 1)
	i := uint32(h) & mask
	for t.slots[i].entry != 0 {
		i = (i + 1) & mask
	}
	t.slots[i] = exactSlot{uint32(h >> 32), uint32(at + 1)}
}

// remove takes out a post that is there.
func (t *exactTable) remove(k kind, text string, p post) {
	at := t.find(k, []byte(text))
	first, list := t.entry(at)
	switch {
	case list == 0:
		t.setEntry(at, noPost, 0)
		t.dead++
		if t.dead > t.count/2 {
			t.rebuild()
		}
		return
	case first == p:
		others := t.lists[list-1]
		first = others[len(others)-1]
		t.lists[list-1] = withoutPost(others, first)
	default:
		t.lists[list-1] = withoutPost(t.lists[list-1], p)
	}
	if len(t.lists[list-1]) == 0 {
		list = 0 // the list itself goes with the next rebuild
	}
	t.setEntry(at, first, list)
}

func (t *exactTable) empty() bool { return t.dead == t.count }
