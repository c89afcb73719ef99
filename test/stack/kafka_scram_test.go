package stack

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"hash"
	"strconv"
	"strings"
)

func base64URL(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// A scramClient is RFC 5802 as far as a test needs it: one user, a fixed nonce, the server's
// signature unchecked.
type scramClient struct {
	hash           func() hash.Hash
	user, password string
	step           int
}

func newScram256() *scramClient { return &scramClient{hash: sha256.New} }
func newScram512() *scramClient { return &scramClient{hash: sha512.New} }

func (c *scramClient) Begin(user, password, _ string) error {
	c.user, c.password = user, password
	return nil
}

func (c *scramClient) Step(challenge string) (string, error) {
	c.step++
	first := "n=" + c.user + ",r=nonce"
	switch c.step {
	case 1:
		return "n,," + first, nil
	case 2:
		fields := make(map[string]string)
		for _, f := range strings.Split(challenge, ",") {
			key, value, _ := strings.Cut(f, "=")
			fields[key] = value
		}
		salt, err := base64.StdEncoding.DecodeString(fields["s"])
		rounds, err2 := strconv.Atoi(fields["i"])
		if err := errors.Join(err, err2); err != nil {
			return "", err
		}
		salted, err := pbkdf2.Key(c.hash, c.password, salt, rounds, c.hash().Size())
		if err != nil {
			return "", err
		}
		last := "c=biws,r=" + fields["r"]
		key := c.mac(salted, "Client Key")
		stored := c.hash()
		_, _ = stored.Write(key) // never fails
		proof := c.mac(stored.Sum(nil), first+","+challenge+","+last)
		for i := range proof {
			proof[i] ^= key[i]
		}
		return last + ",p=" + base64.StdEncoding.EncodeToString(proof), nil
	default:
		return "", nil
	}
}

func (c *scramClient) mac(key []byte, text string) []byte {
	h := hmac.New(c.hash, key)
	_, _ = h.Write([]byte(text)) // never fails
	return h.Sum(nil)
}

func (c *scramClient) Done() bool { return c.step >= 3 }
