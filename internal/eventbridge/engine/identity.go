package engine

import "crypto/sha256"

// identity identifies an event: 128 bits of a hash of its source and id.
type identity [16]byte

func identityOf(source, id string) identity {
	var room [256]byte
	text := append(append(append(room[:0], source...), 0), id...)
	sum := sha256.Sum256(text)
	return identity(sum[:len(identity{})])
}
