package ingest

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/pkg/secret"
	"github.com/aviaryhq/aviary/test/await"
)

// guarded has a tenant for each way to be known, and strangers: the headers of requests without a
// tenant, each with another reason.
func guarded(t *testing.T, change func(*Config)) (d *double, keys keyring, strangers map[string][]string) {
	t.Helper()
	keys = newKeyring(t)
	path := writeFile(t, "keys", keys.pem(t, "EdDSA"))
	d = newDouble(t, func(c *Config) {
		c.Tenants = []TenantConfig{
			{Name: "shop", Buses: []string{"orders"}, APIKeys: []secret.String{"shop-key"}},
			{Name: "partner", Buses: []string{"orders"}, SigningSecrets: []secret.String{signingKey}},
			{Name: "batch", JWT: &JWTConfig{KeyFile: path, Issuer: "https://id", Audience: "aviary"}},
		}
		if change != nil {
			change(c)
		}
	})
	token := func(k keyring, issuer string, expires time.Duration) []string {
		return []string{"Authorization", "Bearer " + k.token(t, "EdDSA", "EdDSA", "", jwt.MapClaims{"iss": issuer, "aud": "aviary", "exp": time.Now().Add(expires).Unix()})}
	}
	sign := func(tenant string) []string {
		return append([]string{"tenant", tenant}, signed(t, otherSigningKey, time.Now(), anEvent("A1", ""))...)
	}
	foreign := newKeyring(t)
	return d, keys, map[string][]string{
		"nothing":                 nil,
		"a key":                   {"X-Api-Key", "shop"},
		"a wrong signature":       sign("partner"),
		"no tenant's signature":   sign("nobody"),
		"one that does not sign":  sign("shop"),
		"a token of another key":  token(foreign, "https://id", time.Minute),
		"an expired one of it":    token(foreign, "https://id", -time.Minute),
		"a token of nobody":       token(foreign, "https://other", time.Minute),
		"an expired one of these": token(foreign, "https://other", -time.Minute),
	}
}

// TestAnswersDoNotTellWhatExists: requests that differ in what exists here, and not in what a
// stranger knows, have the same answer, with all of its headers.
func TestAnswersDoNotTellWhatExists(t *testing.T) {
	d, keys, strangers := guarded(t, nil)
	whole := func(bus string, headers []string) string {
		if len(headers) > 0 && headers[0] == "tenant" {
			bus, headers = bus+"/events?tenant="+headers[1]+"#", headers[2:]
		}
		r := d.post(t, bus, text(anEvent("A1", "")), append([]string{"Content-Type", event.MediaType}, headers...)...)
		r.header.Del("Date")
		return fmt.Sprintf("%d %v %s", r.status, r.header, r.body)
	}
	for _, group := range [][]string{
		{"a wrong signature", "no tenant's signature", "one that does not sign"},
		{"a key", "a token of another key", "an expired one of it", "a token of nobody", "an expired one of these"},
	} {
		first := whole("orders", strangers[group[0]])
		assert.Contains(t, first, "401")
		for _, name := range group {
			assert.Equal(t, first, whole("orders", strangers[name]), name)
		}
	}
	for name, headers := range strangers {
		first := whole("orders", headers)
		for _, bus := range []string{"strict", "plain", "none"} {
			assert.Equal(t, first, whole(bus, headers), "%s, %s", name, bus)
		}
		// Faults of the request change nothing.
		more := append(slices.Clone(headers), "Aviary-Hops", "99", "ce-id", "1", "Content-Encoding", "br")
		assert.Equal(t, first, whole("orders", more), name)
	}
	shop := []string{"X-Api-Key", "shop-key"}
	assert.Equal(t, whole("strict", shop), whole("none", shop), "a tenant learns about its own buses only")
	assert.Contains(t, whole("none", shop), "403")
	expired := keys.token(t, "EdDSA", "EdDSA", "", jwt.MapClaims{"iss": "https://id", "aud": "aviary", "exp": time.Now().Add(-time.Minute).Unix()})
	assert.Contains(t, whole("orders", []string{"Authorization", "Bearer " + expired}), "the token has expired", "its owner learns more")
}

// begin writes the headers of a request for orders, and the beginning of its body.
func begin(headers []string, body string) string {
	var head strings.Builder
	head.WriteString(requestHead)
	for i := 0; i+1 < len(headers); i += 2 {
		head.WriteString(headers[i] + ": " + headers[i+1] + "\r\n")
	}
	return head.String() + body
}

// TestStrangersAreAnsweredAtOnce: the answer does not wait for the body, unless there is a signature
// to check.
func TestStrangersAreAnsweredAtOnce(t *testing.T) {
	d, _, strangers := guarded(t, func(c *Config) { c.Limits.ReadTimeout = 10 * await.Patience })
	for name, headers := range strangers {
		if strings.Contains(name, "sign") {
			continue
		}
		for _, body := range []string{"Content-Length: 100\r\n\r\n", "Content-Length: 100\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n"} {
			answer := answerOf(t, d.dial(t, begin(headers, body)))
			assert.Equal(t, http.StatusUnauthorized, answer.status, "%s, %q", name, body)
		}
	}
	// A request whose body is there keeps the connection.
	conn := d.dial(t, "")
	for range 2 {
		_, err := conn.Write([]byte(begin(nil, "Content-Length: 0\r\n\r\n")))
		require.NoError(t, err)
		assert.Equal(t, http.StatusUnauthorized, answerOf(t, conn).status)
	}
}

// TestStrangersDoNotLockATenantOut: whatever they send, they hold nothing of the memory for
// requests, and the tenants' events are stored.
func TestStrangersDoNotLockATenantOut(t *testing.T) {
	d, keys, strangers := guarded(t, func(c *Config) {
		c.Limits.InFlightBytes = c.Limits.least() // a body that a stranger holds would be missed
		c.Limits.ReadTimeout = 10 * await.Patience
	})
	token := keys.token(t, "EdDSA", "EdDSA", "", jwt.MapClaims{"iss": "https://id", "aud": "aviary", "exp": time.Now().Add(time.Hour).Unix()})
	tenants := func() {
		body := anEvent("A1", "")
		for name, headers := range map[string][]string{
			"shop": {"X-Api-Key", "shop-key"}, "batch": {"Authorization", "Bearer " + token},
		} {
			r := d.send(t, "A1", headers...)
			require.Equal(t, http.StatusAccepted, r.status, "%s: %s", name, r.body)
		}
		headers := append([]string{"Content-Type", event.MediaType}, signed(t, signingKey, time.Now(), body)...)
		r := d.post(t, "orders/events?tenant=partner#", text(body), headers...)
		require.Equal(t, http.StatusAccepted, r.status, r.body)
	}
	tenants()
	before := len(d.stored(orders))
	const rounds = 30
	for i := range rounds {
		for name, headers := range strangers {
			if strings.Contains(name, "sign") {
				continue // TestBodiesWithSignaturesHoldOneShare
			}
			// Their bodies never end, and most of their connections stay open.
			body := "Transfer-Encoding: chunked\r\n\r\n400000\r\n" + strings.Repeat(" ", i<<10)
			if i%3 == 0 {
				body = "Content-Length: " + strconv.Itoa(int(d.limits.BodyBytes)) + "\r\n\r\n{"
			}
			conn := d.dial(t, begin(headers, body))
			require.Equal(t, http.StatusUnauthorized, answerOf(t, conn).status)
			require.Zero(t, d.budget.Used())
		}
		tenants()
		require.Eventually(t, func() bool { return d.budget.Used() == 0 }, await.Patience, time.Millisecond)
	}
	assert.Len(t, d.stored(orders), before+3*rounds)
	assert.Len(t, d.opened, 1, "strangers open no topics")
}

// Bodies that come before their signature can be checked hold one tenant's share together: tenants
// without signatures go on.
func TestBodiesWithSignaturesHoldOneShare(t *testing.T) {
	d, _, strangers := guarded(t, func(c *Config) { c.Limits.ReadTimeout = 10 * await.Patience })
	headers := strangers["a wrong signature"][2:]
	size := int(d.limits.BodyBytes)
	for range 30 { // more than the share; the server refuses the later ones, perhaps while they are written
		conn := d.dial(t, begin(headers, "Content-Length: "+strconv.Itoa(size)+"\r\n\r\n"))
		go func() { _, _ = conn.Write(bytes.Repeat([]byte(" "), size-1)) }()
	}
	require.Eventually(t, func() bool { return d.budget.Used() > d.budget.Limit()/2 }, await.Patience, time.Millisecond)
	r := d.send(t, "A1", "X-Api-Key", "shop-key")
	require.Equal(t, http.StatusAccepted, r.status, r.body)
}
