// Package webhooksig signs requests and verifies signatures by Standard Webhooks 1.0. Of Aviary,
// it imports only pkg/secret.
package webhooksig

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"slices"
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

// signingKey appends the signature over head and body, in its form in the header.
type signingKey func(out, head, body []byte) []byte

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
	prefix, encoded, _ := strings.Cut(word, "_")
	prefix += "_"
	if prefix != symmetricPrefix && prefix != asymmetricPrefix {
		return nil, errors.New("must begin with " + symmetricPrefix + " (HMAC-SHA256) or " + asymmetricPrefix + " (ed25519)")
	}
	key, err := base64.StdEncoding.DecodeString(encoded)
	switch {
	case err != nil:
		return nil, errors.New("must hold base64 after " + prefix)
	case prefix == symmetricPrefix && (len(key) < minKey || len(key) > maxKey):
		return nil, fmt.Errorf("must hold %d to %d bytes after %s, got %d", minKey, maxKey, prefix, len(key))
	case prefix == symmetricPrefix:
		return macKey(key), nil
	case len(key) != ed25519.SeedSize && len(key) != ed25519.PrivateKeySize:
		return nil, fmt.Errorf("must hold an ed25519 key of 32 or 64 bytes after %s, got %d", prefix, len(key))
	}
	private := ed25519.NewKeyFromSeed(key[:ed25519.SeedSize])
	if len(key) == ed25519.PrivateKeySize && !private.Equal(ed25519.PrivateKey(key)) {
		return nil, errors.New("holds an ed25519 key whose public half belongs to another key")
	}
	return func(out, head, body []byte) []byte {
		return base64.StdEncoding.AppendEncode(append(out, "v1a,"...), ed25519.Sign(private, slices.Concat(head, body)))
	}, nil
}

// macKey signs by HMAC-SHA256. It uses MACs again: a new one hashes the key first.
func macKey(key []byte) signingKey {
	macs := sync.Pool{New: func() any { return hmac.New(sha256.New, key) }}
	return func(out, head, body []byte) []byte {
		mac := macs.Get().(hash.Hash) //nolint:errcheck // the pool holds nothing else
		defer macs.Put(mac)
		mac.Reset()
		mac.Write(head)
		mac.Write(body)
		return base64.StdEncoding.AppendEncode(append(out, "v1,"...), mac.Sum(make([]byte, 0, sha256.Size)))
	}
}

// Sign returns the header webhook-signature. timestamp is in seconds since 1970.
func (s *Signer) Sign(id, timestamp string, body []byte) string {
	head := []byte(id + "." + timestamp + ".")
	out := make([]byte, 0, 96*len(s.keys))
	for i, sign := range s.keys {
		if i > 0 {
			out = append(out, ' ')
		}
		out = sign(out, head, body)
	}
	return string(out)
}

// Verify reports whether header, a webhook-signature, has a signature of one of the keys. It looks at
// the first signatures only, twice as many as there may be keys. The caller checks the time.
func (s *Signer) Verify(id, timestamp string, body []byte, header string) bool {
	own := s.Sign(id, timestamp, body)
	given := strings.Fields(header)
	valid := 0
	for _, one := range given[:min(len(given), 2*maxKeys)] {
		for want := range strings.FieldsSeq(own) {
			valid |= subtle.ConstantTimeCompare([]byte(one), []byte(want))
		}
	}
	return valid == 1
}
