package schema

import (
	"encoding/json"
	"hash/maphash"
	"math/big"
	"slices"
)

// fewElements is how many elements a list may have so that the library compares all pairs. In a
// longer list it compares only elements with the same hash.
const fewElements = 20

// comparedPerStep and hashedPerStep are how many bytes of texts cost one step: each text is
// compared with half of the others, or hashed once.
const comparedPerStep, hashedPerStep = 16 << 10, 4 << 10

// uniqueCost returns the cost to find two equal elements. The hash and a comparison each go through
// the whole element. Data may be chosen so that many lists and objects have the same hash:
// uniqueCost hashes as the library does, and charges each element for those before it with the same
// hash.
func uniqueCost(list []any) int {
	n, deep, numbers, digits, texts := 0, 0, 0, 0, 0
	for _, v := range list {
		switch v := v.(type) {
		case map[string]any, []any:
			n++
			deep += comparison(v)
		case json.Number:
			numbers++
			digits += long(v)
		case string:
			texts += len(v)
		}
	}
	deep /= comparisons
	if len(list) <= fewElements {
		// One such list with all values that an event may have costs less than MostSteps.
		return len(list) + deep*n/4 + (numbers+digits)*numbers + texts*len(list)/comparedPerStep
	}
	total := len(list) + deep + digits + texts/hashedPerStep
	before := map[uint64]int{}
	var h maphash.Hash
	for _, v := range list {
		if !composed(v) {
			continue
		}
		h.Reset()
		writeHash(v, &h)
		sum := h.Sum64()
		total += before[sum] * (1 + comparison(v)/comparisons/2)
		if total > MostSteps {
			return total
		}
		before[sum]++
	}
	return total
}

// composed reports whether v is a list or an object.
func composed(v any) bool {
	switch v.(type) {
	case map[string]any, []any:
		return true
	}
	return false
}

// writeHash writes what the library hashes of a value: numbers without their sign, and nothing to
// mark where a value ends.
func writeHash(v any, h *maphash.Hash) {
	switch v := v.(type) {
	case map[string]any:
		_ = h.WriteByte(0)
		names := make([]string, 0, len(v))
		for name := range v {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			writeHash(name, h)
			writeHash(v[name], h)
		}
	case []any:
		_ = h.WriteByte(1)
		for _, element := range v {
			writeHash(element, h)
		}
	case nil:
		_ = h.WriteByte(2)
	case bool:
		_ = h.WriteByte(3)
		if v {
			_ = h.WriteByte(1)
		} else {
			_ = h.WriteByte(0)
		}
	case string:
		_ = h.WriteByte(4)
		_, _ = h.WriteString(v)
	case json.Number:
		_ = h.WriteByte(5)
		if n, ok := new(big.Rat).SetString(string(v)); ok {
			_, _ = h.Write(n.Num().Bytes())
			_, _ = h.Write(n.Denom().Bytes())
		}
	}
}
