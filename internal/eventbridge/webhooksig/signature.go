// Package webhooksig signs requests, and verifies signatures, by Standard Webhooks 1.0.
package webhooksig

import (
	"crypto"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"strings"
	"sync"

	"github.com/aviaryhq/aviary/pkg/secret"
)

// Headers of a signed request.
const (
	IDHeader        = "Webhook-Id"
	TimestampHeader = "Webhook-Timestamp"
	SignatureHeader = "Webhook-Signature"
)

// Signer signs requests: the signature is over "id.timestamp.body", and its header holds one
// "version,base64" for each key, separated by spaces. It is safe for concurrent use.
type Signer struct {
	keys []signingKey
}

// signingKey is a key of one of the two kinds; the field of the other kind is nil.
type signingKey struct {
	macs    *sync.Pool // of hash.Hash: HMAC-SHA256, v1
	private ed25519.PrivateKey
}

const (
	symmetricPrefix  = "whsec_"
	asymmetricPrefix = "whsk_"
	// Bounds of a symmetric key (Standard Webhooks, "Signature scheme").
	minKey, maxKey = 24, 64
	// maxKeys is how many keys may sign at the same time: one, and a few while keys change.
	maxKeys = 4
)

// New parses keys, separated by spaces. It returns nil if there are none. Errors do not hold
// keys.
func New(text secret.String) (*Signer, error) {
	words := strings.Fields(text.Reveal())
	switch {
	case len(words) == 0:
		return nil, nil //nolint:nilnil // no keys are not a fault
	case len(words) > maxKeys:
		return nil, fmt.Errorf("holds %d keys, at most %d are allowed", len(words), maxKeys)
	}
	s := &Signer{}
	for _, word := range words {
		key, err := parseKey(word)
		if err != nil {
			return nil, err
		}
		s.keys = append(s.keys, key)
	}
	return s, nil
}

func parseKey(word string) (signingKey, error) {
	if encoded, ok := strings.CutPrefix(word, symmetricPrefix); ok {
		key, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return signingKey{}, errors.New("must hold base64 after " + symmetricPrefix)
		}
		if len(key) < minKey || len(key) > maxKey {
			return signingKey{}, fmt.Errorf("must hold %d to %d bytes after %s, got %d", minKey, maxKey, symmetricPrefix, len(key))
		}
		return signingKey{macs: &sync.Pool{New: func() any { return hmac.New(sha256.New, key) }}}, nil
	}
	if encoded, ok := strings.CutPrefix(word, asymmetricPrefix); ok {
		key, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return signingKey{}, errors.New("must hold base64 after " + asymmetricPrefix)
		}
		switch len(key) {
		case ed25519.SeedSize:
			return signingKey{private: ed25519.NewKeyFromSeed(key)}, nil
		case ed25519.PrivateKeySize:
			private := ed25519.NewKeyFromSeed(key[:ed25519.SeedSize])
			if !private.Equal(ed25519.PrivateKey(key)) {
				return signingKey{}, errors.New("holds an ed25519 key whose public half belongs to another key")
			}
			return signingKey{private: private}, nil
		}
		return signingKey{}, fmt.Errorf("must hold an ed25519 key of 32 or 64 bytes after %s, got %d", asymmetricPrefix, len(key))
	}
	return signingKey{}, errors.New("must begin with " + symmetricPrefix + " (HMAC-SHA256) or " + asymmetricPrefix + " (ed25519)")
}

// Sign returns the header webhook-signature. timestamp is in seconds since 1970.
func (s *Signer) Sign(id, timestamp string, body []byte) (string, error) {
	head := make([]byte, 0, len(id)+len(timestamp)+2)
	head = append(append(append(append(head, id...), '.'), timestamp...), '.')
	out := make([]byte, 0, 96*len(s.keys))
	for i, k := range s.keys {
		if i > 0 {
			out = append(out, ' ')
		}
		if k.macs != nil {
			mac, ok := k.macs.Get().(hash.Hash)
			if !ok {
				return "", errors.New("the pool of MACs holds something else")
			}
			mac.Reset()
			mac.Write(head)
			mac.Write(body)
			var sum [sha256.Size]byte
			out = base64.StdEncoding.AppendEncode(append(out, "v1,"...), mac.Sum(sum[:0]))
			k.macs.Put(mac)
			continue
		}
		signature, err := k.private.Sign(nil, append(head[:len(head):len(head)], body...), crypto.Hash(0))
		if err != nil {
			return "", fmt.Errorf("cannot sign: %w", err)
		}
		out = base64.StdEncoding.AppendEncode(append(out, "v1a,"...), signature)
	}
	return string(out), nil
}

// Verify reports whether header, a webhook-signature, has a signature of one of the keys. It looks at
// the first signatures only, twice as many as there may be keys. The caller checks the time.
func (s *Signer) Verify(id, timestamp string, body []byte, header string) bool {
	own, err := s.Sign(id, timestamp, body)
	if err != nil {
		return false
	}
	given := strings.Fields(header)
	valid := 0
	for _, one := range given[:min(len(given), 2*maxKeys)] {
		for want := range strings.FieldsSeq(own) {
			valid |= subtle.ConstantTimeCompare([]byte(one), []byte(want))
		}
	}
	return valid == 1
}
