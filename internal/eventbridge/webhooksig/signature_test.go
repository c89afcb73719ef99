package webhooksig

import (
	"crypto/ed25519"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/secret"
)

const symmetric = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// TestSignatureOfTheSpecification is the example of Standard Webhooks' own libraries.
func TestSignatureOfTheSpecification(t *testing.T) {
	s, err := New(symmetric)
	require.NoError(t, err)
	got := s.Sign("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`))
	assert.Equal(t, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", got)
}

func TestSignatureIsVerifiedByOthers(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	other := "whsec_" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 64)))
	for name, key := range map[string]string{"whole key": asymmetricPrefix + base64.StdEncoding.EncodeToString(private),
		"seed": asymmetricPrefix + base64.StdEncoding.EncodeToString(private.Seed())} {
		t.Run(name, func(t *testing.T) {
			s, err := New(secret.String(symmetric + " " + other + "  " + key))
			require.NoError(t, err)
			body := []byte("{\"a\": \"\u00e9\"}")
			now := strconv.FormatInt(time.Now().Unix(), 10)
			for range 3 { // MACs are used again
				header := s.Sign("evt_1", now, body)
				request := http.Header{}
				request.Set("webhook-id", "evt_1")
				request.Set("webhook-timestamp", now)
				request.Set("webhook-signature", header)
				for _, key := range []string{symmetric, other} {
					verifier, err := standardwebhooks.NewWebhook(key)
					require.NoError(t, err)
					require.NoError(t, verifier.Verify(body, request))
					require.Error(t, verifier.Verify(append(body, ' '), request))
				}
				signatures := strings.Fields(header)
				require.Len(t, signatures, 3)
				encoded, ok := strings.CutPrefix(signatures[2], "v1a,")
				require.True(t, ok)
				signature, err := base64.StdEncoding.DecodeString(encoded)
				require.NoError(t, err)
				assert.True(t, ed25519.Verify(public, []byte("evt_1."+now+"."+string(body)), signature))
			}
		})
	}
}

func TestKeysThatAreRefused(t *testing.T) {
	encode := base64.StdEncoding.EncodeToString
	_, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	mixed := append(append([]byte{}, private[:32]...), make([]byte, 32)...)
	for _, test := range []struct{ key, want string }{
		{"MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "must begin with whsec_"},
		{"whsec_***", "must hold base64"},
		{"whsk_***", "must hold base64"},
		{"whsec_" + encode(make([]byte, 23)), "must hold 24 to 64 bytes after whsec_, got 23"},
		{"whsec_" + encode(make([]byte, 65)), "got 65"},
		{"whsk_" + encode(make([]byte, 33)), "must hold an ed25519 key of 32 or 64 bytes"},
		{"whsk_" + encode(mixed), "public half"},
		{strings.Repeat(symmetric+" ", 5), "holds 5 keys"},
	} {
		_, err := New(secret.String(test.key))
		require.ErrorContains(t, err, test.want)
		assert.NotContains(t, err.Error(), "MfKQ")
	}
}
