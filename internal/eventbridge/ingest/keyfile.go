package ingest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"slices"
)

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
			return nil, fmt.Errorf("a public key is needed, got a block %q", block.Type)
		}
		if err != nil {
			return nil, err
		}
		p, err := newPublicKey("", key)
		if err != nil {
			return nil, err
		}
		keys = append(keys, p)
	}
}

// webKey is a JSON Web Key (RFC 7517, RFC 7518 section 6, RFC 8037). Numbers are in base64url.
type webKey struct {
	Kind      string `json:"kty"`
	ID        string `json:"kid"`
	Use       string `json:"use"`
	Algorithm string `json:"alg"`
	Curve     string `json:"crv"`
	X         string `json:"x"`
	Y         string `json:"y"`
	N         string `json:"n"`
	E         string `json:"e"`
}

func readKeySet(text []byte) ([]publicKey, error) {
	var set struct {
		Keys []webKey `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, fmt.Errorf("no JSON Web Key Set: %w", err)
	}
	var keys []publicKey
	var unusable error // the first
	for i, w := range set.Keys {
		if w.Use != "" && w.Use != "sig" {
			continue
		}
		// A set may have keys for other uses, and keys of newer kinds: these are ignored (RFC 7517,
		// section 5).
		if key, err := w.usable(); err == nil {
			keys = append(keys, key)
		} else if unusable == nil {
			unusable = fmt.Errorf("keys[%d]: %w", i, err)
		}
	}
	if len(keys) == 0 {
		return nil, unusable
	}
	return keys, nil
}

// usable returns the key with the algorithms that it may be used with.
func (w webKey) usable() (publicKey, error) {
	key, err := w.public()
	if err != nil {
		return publicKey{}, err
	}
	p, err := newPublicKey(w.ID, key)
	if err != nil || w.Algorithm == "" {
		return p, err
	}
	if !slices.Contains(p.algorithms, w.Algorithm) {
		return p, fmt.Errorf("alg %q does not fit the key", w.Algorithm)
	}
	p.algorithms = []string{w.Algorithm}
	return p, nil
}

var errWebKey = errors.New("not a valid key")

func (w webKey) public() (crypto.PublicKey, error) {
	var numbers [4][]byte
	for i, text := range [...]string{w.X, w.Y, w.N, w.E} {
		var err error
		if numbers[i], err = base64.RawURLEncoding.Strict().DecodeString(text); err != nil {
			return nil, errWebKey
		}
	}
	x, y, n, e := numbers[0], numbers[1], numbers[2], numbers[3]
	switch w.Kind {
	case "RSA":
		exponent := new(big.Int).SetBytes(e)
		if !exponent.IsInt64() || exponent.Int64() > 1<<31-1 || len(n) == 0 {
			return nil, errWebKey
		}
		return &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: int(exponent.Int64())}, nil
	case "EC":
		curve := map[string]elliptic.Curve{"P-256": elliptic.P256(), "P-384": elliptic.P384()}[w.Curve]
		if curve == nil {
			return nil, fmt.Errorf("the curve %q is not supported", w.Curve)
		}
		key, err := ecdsa.ParseUncompressedPublicKey(curve, slices.Concat([]byte{4}, x, y))
		if err != nil {
			return nil, errWebKey
		}
		return key, nil
	case "OKP":
		if w.Curve != "Ed25519" || len(x) != ed25519.PublicKeySize {
			return nil, errWebKey
		}
		return ed25519.PublicKey(x), nil
	}
	return nil, fmt.Errorf("kty %q is not supported: public keys only", w.Kind)
}
