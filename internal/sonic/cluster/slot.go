// Package cluster follows a Redis Cluster: which primary has which slots. It imports no other package
// of Sonic.
package cluster

import "bytes"

// Slots is how many slots a Redis Cluster has.
const Slots = 16384

// Slot returns the slot of a key: CRC16 of its hash tag or, without one, of the whole key. See
// "Redis cluster specification", sections "Key distribution model" and "Hash tags".
func Slot(key []byte) int {
	if begin := bytes.IndexByte(key, '{'); begin >= 0 {
		if end := bytes.IndexByte(key[begin+1:], '}'); end > 0 {
			key = key[begin+1 : begin+1+end]
		}
	}
	// CRC-16/XMODEM, a byte at a time: polynomial x^16 + x^12 + x^5 + 1, initial value 0.
	crc := uint16(0)
	for _, b := range key {
		x := crc>>8 ^ uint16(b)
		x ^= x >> 4
		crc = crc<<8 ^ x<<12 ^ x<<5 ^ x
	}
	return int(crc) % Slots
}
