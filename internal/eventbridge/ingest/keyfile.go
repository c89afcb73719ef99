package ingest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"slices"

	"github.com/go-jose/go-jose/v4"
)

// publicKey is a key, its ID and the algorithms that it may be used with.
type publicKey struct {
	id         string // empty for none
	algorithms []string
	key        crypto.PublicKey
}

// newPublicKey chooses the algorithms by the kind of the key. only is the single one that the key is
// for, empty for all.
func newPublicKey(id, only string, key crypto.PublicKey) (publicKey, error) {
	p := publicKey{id: id, key: key}
	switch k := key.(type) {
	case *rsa.PublicKey:
		if k.N.BitLen() < 2048 || k.N.BitLen() > 4096 || k.E < 3 {
			return p, fmt.Errorf("an RSA key must have 2048 to 4096 bits, got %d", k.N.BitLen())
		}
		p.algorithms = []string{"RS256", "PS256"}
	case *ecdsa.PublicKey:
		bits := k.Curve.Params().BitSize
		if bits != 256 && bits != 384 { // P-521 takes milliseconds to verify, also for unknown senders
			return p, fmt.Errorf("the curve of %d bits is not supported", bits)
		}
		p.algorithms = []string{fmt.Sprintf("ES%d", bits)}
	case ed25519.PublicKey:
		p.algorithms = []string{"EdDSA"}
	default:
		return p, fmt.Errorf("a key of the type %T is not supported: RSA, ECDSA and Ed25519 public keys only", key)
	}
	if only != "" {
		if !slices.Contains(p.algorithms, only) {
			return p, fmt.Errorf("alg %q does not fit the key", only)
		}
		p.algorithms = []string{only}
	}
	return p, nil
}

// readKeys reads public keys in PEM or a JSON Web Key Set.
func readKeys(path string) ([]publicKey, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read keys: %w", err)
	}
	read := readPEM
	if json.Valid(text) {
		read = readKeySet
	}
	keys, err := read(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	case len(keys) == 0:
		return nil, fmt.Errorf("%s has no public key in PEM and is no JSON Web Key Set with one", path)
	}
	return keys, nil
}

func readPEM(text []byte) ([]publicKey, error) {
	var keys []publicKey
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return keys, nil
		}
		var key crypto.PublicKey
		var err error
		switch block.Type {
		case "PUBLIC KEY":
			key, err = x509.ParsePKIXPublicKey(block.Bytes)
		case "RSA PUBLIC KEY":
			key, err = x509.ParsePKCS1PublicKey(block.Bytes)
		case "CERTIFICATE":
			var certificate *x509.Certificate
			if certificate, err = x509.ParseCertificate(block.Bytes); err == nil {
				key = certificate.PublicKey
			}
		default:
			err = fmt.Errorf("a public key is needed, got a block %q", block.Type)
		}
		if err != nil {
			return nil, err
		}
		p, err := newPublicKey("", "", key)
		if err != nil {
			return nil, err
		}
		keys = append(keys, p)
	}
}

// readKeySet reads a JSON Web Key Set. It ignores keys for other uses, and keys of kinds that are not
// supported (RFC 7517, section 5), unless there is no other: then it returns why the first is not
// usable.
func readKeySet(text []byte) ([]publicKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, fmt.Errorf("no JSON Web Key Set: %w", err)
	}
	var keys []publicKey
	var unusable error
	for i, text := range set.Keys {
		var w jose.JSONWebKey
		var key publicKey
		err := w.UnmarshalJSON(text)
		if err == nil {
			key, err = newPublicKey(w.KeyID, w.Algorithm, w.Key)
		}
		switch {
		case err == nil && (w.Use == "" || w.Use == "sig"):
			keys = append(keys, key)
		case err != nil && unusable == nil:
			unusable = fmt.Errorf("keys[%d]: %w", i, err)
		}
	}
	if len(keys) == 0 {
		return nil, unusable
	}
	return keys, nil
}
