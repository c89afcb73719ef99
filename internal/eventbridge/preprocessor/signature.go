package preprocessor

import (
	"crypto/hmac"
	"crypto/sha256"
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

// signed reads Aviary-Tenant and Aviary-Signature: t=SECONDS,v1=HEX. The HMAC-SHA256 is over the
// time, the path and the Content-Type, each followed by a line feed, and then the body as it is
// sent.
func (s *senders) signed(r *http.Request) (sender, error) {
	t := s.tenants[r.Header.Get(tenantHeader)]
	if t == nil || len(t.secrets) == 0 || len(r.Header[tenantHeader]) != 1 || len(r.Header[signatureHeader]) != 1 {
		return sender{}, unauthorized("a signature needs one header " + tenantHeader + " with the name of a tenant that signs, and one " + signatureHeader)
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
	if event.IsBinary(r.Header) {
		return sender{}, &refusal.Error{Status: http.StatusForbidden, Reason: "unsigned_attributes",
			Text: "a signature does not cover attributes in headers: send events in structured or batched mode"}
	}
	signedText := seconds + "\n" + r.URL.EscapedPath() + "\n" + r.Header.Get("Content-Type") + "\n"
	return sender{tenant: t, verify: func(body []byte) error {
		valid := false
		for _, secret := range t.secrets {
			mac := hmac.New(sha256.New, []byte(secret.Reveal()))
			mac.Write([]byte(signedText))
			mac.Write(body)
			sum := mac.Sum(nil)
			for _, given := range signatures {
				valid = hmac.Equal(sum, given) || valid
			}
		}
		if !valid {
			return unauthorized("the signature is not valid")
		}
		return nil
	}}, nil
}
