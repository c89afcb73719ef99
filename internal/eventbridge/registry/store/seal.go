package store

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// Keys encrypt secrets in the registry's topic by AES-256-GCM. The first key encrypts, all keys
// decrypt. A nil *Keys encrypts nothing and decrypts nothing. Keys are immutable.
type Keys struct {
	first string
	byID  map[string]cipher.AEAD
}

// ParseKeys reads keys. Each line has one: its ID, white space, and 32 random bytes in base64.
// Empty lines and lines that begin with # are ignored.
//
// To change the key, add the new one after the old one on all instances. Once all instances have
// it, move it before the old one. Then call [Store.Reencrypt], and remove the old key.
func ParseKeys(text secret.String) (*Keys, error) {
	k := &Keys{byID: make(map[string]cipher.AEAD)}
	for i, line := range strings.Split(text.Reveal(), "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		wrong := func(problem string) error { return fmt.Errorf("line %d: %s", i+1, problem) }
		if len(fields) != 2 || !model.ValidName(fields[0]) {
			return nil, wrong("must be an id (a-z, 0-9 and -) and 32 bytes in base64")
		}
		key, err := base64.StdEncoding.DecodeString(fields[1])
		if err != nil || len(key) != 32 {
			return nil, wrong("the key must be 32 bytes in base64")
		}
		if k.byID[fields[0]] != nil {
			return nil, wrong("the id occurs twice")
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, wrong(err.Error())
		}
		if k.byID[fields[0]], err = cipher.NewGCM(block); err != nil {
			return nil, wrong(err.Error())
		}
		if k.first == "" {
			k.first = fields[0]
		}
	}
	if k.first == "" {
		return nil, errors.New("it holds no key")
	}
	return k, nil
}

// sealed are encrypted secrets.
type sealed struct {
	Key  string `json:"key"`  // the ID of the key
	Data []byte `json:"data"` // the nonce, then the output of AES-GCM
}

// seal encrypts the secrets of a record. They cannot be decrypted for another place.
func (k *Keys) seal(secrets map[string]string, place string) (*sealed, error) {
	text, err := json.Marshal(secrets)
	if err != nil {
		return nil, err
	}
	aead := k.byID[k.first]
	nonce := make([]byte, aead.NonceSize(), aead.NonceSize()+len(text)+aead.Overhead())
	_, _ = rand.Read(nonce) // never fails
	return &sealed{Key: k.first, Data: aead.Seal(nonce, nonce, text, []byte(place))}, nil
}

func (k *Keys) open(s *sealed, place string) (secrets map[string]string, err error) {
	if k == nil || k.byID[s.Key] == nil {
		return nil, fmt.Errorf("its secrets are encrypted by the key %q, which this instance does not have", s.Key)
	}
	aead := k.byID[s.Key]
	if len(s.Data) < aead.NonceSize() {
		return nil, errors.New("its encrypted secrets are too short")
	}
	text, err := aead.Open(nil, s.Data[:aead.NonceSize()], s.Data[aead.NonceSize():], []byte(place))
	if err != nil {
		return nil, fmt.Errorf("its secrets cannot be decrypted by the key %q: the key is another one, or the record was changed", s.Key)
	}
	return secrets, json.Unmarshal(text, &secrets)
}
