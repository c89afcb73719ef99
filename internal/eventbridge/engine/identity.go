package engine

import "crypto/sha256"

// identity is 128 bits that tell an event from others: a hash of its source and id.
type identity [16]byte

func identityOf(source, id string) identity {
	var room [256]byte
	text := append(append(append(room[:0], source...), 0), id...)
	sum := sha256.Sum256(text)
	return identity(sum[:len(identity{})])
}
