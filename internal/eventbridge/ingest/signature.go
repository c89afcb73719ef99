package ingest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
)

// signatureWindow is how far a signature's time may be from this process' clock. For so long, an
// attacker who has recorded a request could send it again. The bus' dedup window leaves out an
// event that comes again.
const signatureWindow = 5 * time.Minute

// mostSignatures is how many signatures a request may have, for a sender that changes its secret.
const mostSignatures = 5

// signed checks Aviary-Tenant and Aviary-Signature: t=SECONDS,v1=HEX. The HMAC-SHA256 is over the
// time, the path, Content-Type, Content-Encoding and Content-Digest, each followed by a line feed.
// So the sender is known before the body is read. receive compares the digest with the body.
//
// Until the signature is valid, the answers do not depend on which tenants exist.
func (s *senders) signed(r *http.Request) (sender, error) {
	if len(r.Header[tenantHeader]) != 1 || len(r.Header[signatureHeader]) != 1 {
		return sender{}, unauthorized("a signature needs one header " + tenantHeader + " and one " + signatureHeader)
	}
	digest, ok := digestOf(r.Header)
	if !ok {
		return sender{}, unauthorized("a signature needs one header " + digestHeader + ": sha-256=:BASE64:, of the body as it is sent")
	}
	seconds, signatures := "", [][]byte(nil)
	for part := range strings.SplitSeq(r.Header.Get(signatureHeader), ",") {
		switch name, value, _ := strings.Cut(strings.TrimSpace(part), "="); name {
		case "t":
			seconds = value
		case "v1":
			if sum, err := hex.DecodeString(value); err == nil && len(sum) == sha256.Size && len(signatures) < mostSignatures {
				signatures = append(signatures, sum)
			}
		}
	}
	at, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil || len(signatures) == 0 {
		return sender{}, unauthorized(signatureHeader + " must be t=SECONDS,v1=HEX")
	}
	if difference := time.Since(time.Unix(at, 0)); difference > signatureWindow || difference < -signatureWindow {
		return sender{}, unauthorized("the signature's time is more than " + signatureWindow.String() + " from now")
	}
	t := s.tenants[r.Header.Get(tenantHeader)]
	if t == nil || len(t.secrets) == 0 {
		t = s.unknown
	}
	text := strings.Join([]string{seconds, r.URL.EscapedPath(), r.Header.Get("Content-Type"), r.Header.Get("Content-Encoding"), r.Header.Get(digestHeader), ""}, "\n")
	valid := false
	for _, secret := range t.secrets {
		mac := hmac.New(sha256.New, []byte(secret.Reveal()))
		mac.Write([]byte(text))
		sum := mac.Sum(nil)
		for _, given := range signatures {
			valid = hmac.Equal(sum, given) || valid
		}
	}
	if !valid {
		return sender{}, unauthorized("the signature is not valid")
	}
	if event.IsBinary(r.Header) {
		return sender{tenant: t}, &refusal.Error{Status: http.StatusForbidden, Reason: "unsigned_attributes",
			Text: "a signature does not cover attributes in headers: send events in structured or batched mode"}
	}
	return sender{tenant: t, digest: &digest}, nil
}

// digestOf returns the SHA-256 in Content-Digest (RFC 9530).
func digestOf(h http.Header) (sum [sha256.Size]byte, ok bool) {
	values := h[digestHeader]
	if len(values) != 1 {
		return sum, false
	}
	text, begins := strings.CutPrefix(values[0], "sha-256=:")
	text, ends := strings.CutSuffix(text, ":")
	decoded, err := base64.StdEncoding.Strict().DecodeString(text)
	if !begins || !ends || err != nil || len(decoded) != sha256.Size {
		return sum, false
	}
	return [sha256.Size]byte(decoded), true
}
