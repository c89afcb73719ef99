package eventpattern

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
)

// exactTable is a hash table that finds the posts of a value. Its secret seed prevents authors of
// events and rules from choosing values that collide. With many rules, cache misses take most of
// the time. So a slot contains the post itself: the processor can fetch the post's data while it
// still compares the text.
type exactTable struct {
	owner *edit
	seed  maphash.Seed
	slots []exactSlot // open addressing; the length is a power of two
	texts []byte      // entries of kind, length and text
	lists [][]post    // for values with several posts
	count int         // slots in use
	dead  int         // slots in use whose value has no post any more
}

type exactSlot struct {
	hash uint32
	text uint32 // place in texts, counted from 1; 0: the slot is free
	list uint32 // number of the list with all posts but one, counted from 1; 0: the value has one post. A list stays even if it becomes empty
	post post   // noPost: the value has no post any more
}

const (
	textHead   = 4 // bytes of kind and length
	lengthBits = 24
	minSlots   = 8
)

func shape(k kind, length int) uint32 { return uint32(k)<<lengthBits | uint32(length) }

// edited returns a table that e may change: t, or a copy if older snapshots use t. Both share the
// existing texts and lists.
func (t *exactTable) edited(e *edit) *exactTable {
	if t == nil {
		return &exactTable{owner: e, seed: e.next.seed, slots: make([]exactSlot, minSlots)}
	}
	if t.owner == e {
		return t
	}
	c := *t
	c.owner, c.slots, c.lists = e, slices.Clone(t.slots), slices.Clone(t.lists)
	return &c
}

func hashValue(seed maphash.Seed, k kind, data []byte) uint64 {
	return maphash.Bytes(seed, data) + uint64(k)*0x9e3779b97f4a7c15
}

// find returns the slot of a value, or nil.
func (t *exactTable) find(k kind, data []byte) *exactSlot {
	if len(data) >= 1<<lengthBits {
		return nil // too long for a pattern and for shape
	}
	h := hashValue(t.seed, k, data)
	mask := uint32(len(t.slots) - 1)
	for i := uint32(h) & mask; ; i = (i + 1) & mask {
		s := &t.slots[i]
		if s.text == 0 {
			return nil
		}
		if s.hash == uint32(h>>32) {
			e := t.texts[s.text-1:]
			if binary.LittleEndian.Uint32(e) == shape(k, len(data)) && string(e[textHead:textHead+len(data)]) == string(data) {
				return s
			}
		}
	}
}

// posts appends the posts of a value to hits.
func (t *exactTable) posts(k kind, data []byte, hits []post) []post {
	s := t.find(k, data)
	if s == nil || s.post == noPost {
		return hits
	}
	hits = append(hits, s.post)
	if s.list != 0 {
		hits = append(hits, t.lists[s.list-1]...)
	}
	return hits
}

// posted returns the number of posts of a value.
func (t *exactTable) posted(k kind, text string) int {
	if t == nil {
		return 0
	}
	switch s := t.find(k, []byte(text)); {
	case s == nil || s.post == noPost:
		return 0
	case s.list == 0:
		return 1
	default:
		return 1 + len(t.lists[s.list-1])
	}
}

func (t *exactTable) add(k kind, text string, p post) {
	switch s := t.find(k, []byte(text)); {
	case s == nil:
		if t.count >= len(t.slots)/2 {
			t.rebuild()
		}
		at := len(t.texts)
		t.texts = append(binary.LittleEndian.AppendUint32(t.texts, shape(k, len(text))), text...)
		t.place(exactSlot{text: uint32(at + 1), post: p})
	case s.post == noPost:
		t.dead--
		s.post = p
	case s.list == 0:
		t.lists = append(t.lists, []post{p})
		s.list = uint32(len(t.lists))
	default:
		t.lists[s.list-1] = append(t.lists[s.list-1], p)
	}
}

// entry returns the kind and text of a slot.
func (t *exactTable) entry(s *exactSlot) (k kind, text []byte) {
	e := t.texts[s.text-1:]
	head := binary.LittleEndian.Uint32(e)
	return kind(head >> lengthBits), e[textHead : textHead+head&(1<<lengthBits-1)]
}

// rebuild drops values without posts, and makes room to double the number of values.
func (t *exactTable) rebuild() {
	size := minSlots
	for size < 4*(t.count-t.dead) {
		size *= 2
	}
	old := *t
	t.slots, t.texts, t.lists, t.count, t.dead = make([]exactSlot, size), make([]byte, 0, len(old.texts)+len(old.texts)/2), nil, 0, 0
	for i := range old.slots {
		s := old.slots[i]
		if s.text == 0 || s.post == noPost {
			continue
		}
		k, text := old.entry(&s)
		s.text = uint32(len(t.texts) + 1)
		t.texts = append(binary.LittleEndian.AppendUint32(t.texts, shape(k, len(text))), text...)
		if s.list != 0 && len(old.lists[s.list-1]) > 0 {
			t.lists = append(t.lists, old.lists[s.list-1])
			s.list = uint32(len(t.lists))
		} else {
			s.list = 0
		}
		t.place(s)
	}
}

// place adds the slot of a value that the table does not have.
func (t *exactTable) place(s exactSlot) {
	k, text := t.entry(&s)
	h := hashValue(t.seed, k, text)
	s.hash = uint32(h >> 32)
	mask := uint32(len(t.slots) - 1)
	i := uint32(h) & mask
	for t.slots[i].text != 0 {
		i = (i + 1) & mask
	}
	t.slots[i] = s
	t.count++
}

// remove removes an existing post.
func (t *exactTable) remove(k kind, text string, p post) {
	s := t.find(k, []byte(text))
	switch {
	case s.list == 0 || len(t.lists[s.list-1]) == 0:
		s.post = noPost
		t.dead++
		if t.dead > t.count/2 {
			t.rebuild()
		}
		return
	case s.post == p:
		others := t.lists[s.list-1]
		s.post = others[len(others)-1]
		t.lists[s.list-1] = withoutPost(others, s.post)
	default:
		t.lists[s.list-1] = withoutPost(t.lists[s.list-1], p)
	}
}

func (t *exactTable) empty() bool { return t.dead == t.count }
