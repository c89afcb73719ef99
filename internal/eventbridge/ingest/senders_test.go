package ingest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/webhooksig"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/pkg/secret"
)

func writeFile(t testing.TB, name string, text []byte) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, text, 0o600))
	return path
}

// TestAPIKeys: of the configuration and of a file, each bound to a tenant and its buses.
func TestAPIKeys(t *testing.T) {
	file := writeFile(t, "keys", []byte("shop-2\nshop-3\n"))
	tenants := []TenantConfig{
		{Name: "shop", Buses: []string{"ord*"}, APIKeys: []secret.String{"shop-1"}, APIKeyFile: file},
		{Name: "audit", APIKeys: []secret.String{"audit-1"}},
	}
	d := newDouble(t, func(c *Config) { c.Tenants = tenants })
	for _, test := range []struct {
		header, value, bus string
		status             int
		tenant             string
	}{
		{"Authorization", "Bearer shop-1", "orders", 202, "shop"},
		{"Authorization", "bearer shop-2", "orders", 202, "shop"},
		{"X-Api-Key", "shop-3", "orders", 202, "shop"},
		{"X-Api-Key", "audit-1", "orders", 202, "audit"},
		{"X-Api-Key", "audit-1", "strict", 202, ""},
		{"X-Api-Key", "shop-1", "strict", 403, ""},
		{"X-Api-Key", "shop-1", "none", 403, ""},
		{"X-Api-Key", "audit-1", "none", 404, ""},
		{"X-Api-Key", "shop", "orders", 401, ""},
		{"X-Api-Key", "", "orders", 401, ""},
		{"Authorization", "Basic c2hvcC0xOg==", "orders", 401, ""},
		{"Authorization", "Bearer a.b.c", "orders", 401, ""},
		{"X-Api-Key", "shop-4", "none", 401, ""},
	} {
		before := len(d.stored(orders))
		r := d.post(t, test.bus, text(anEvent("A1", "")), "Content-Type", event.MediaType, test.header, test.value)
		assert.Equal(t, test.status, r.status, "%+v: %s", test, r.body)
		assert.Equal(t, test.status == http.StatusUnauthorized, r.header.Get("WWW-Authenticate") != "", "%+v", test)
		assert.NotContains(t, r.body, "shop-")
		if records := d.stored(orders)[before:]; test.tenant != "" {
			require.Len(t, records, 1)
			assert.Equal(t, map[string]string{"tenant": test.tenant}, records[0].Properties)
		} else {
			assert.Empty(t, records)
		}
	}
}

// signed returns the headers of a request that is signed by Standard Webhooks.
func signed(t *testing.T, key secret.String, at time.Time, body string) []string {
	t.Helper()
	signer, err := webhooksig.New(key)
	require.NoError(t, err)
	seconds := strconv.FormatInt(at.Unix(), 10)
	signature := signer.Sign("msg_1", seconds, []byte(body))
	return []string{"webhook-id", "msg_1", "webhook-timestamp", seconds, "webhook-signature", signature}
}

// with returns headers with another value of one of them.
func with(headers []string, name, value string) []string {
	changed := slices.Clone(headers)
	changed[slices.Index(changed, name)+1] = value
	return changed
}

// without returns headers without one of them.
func without(headers []string, name string) []string {
	i := slices.Index(headers, name)
	return append(slices.Clone(headers[:i]), headers[i+2:]...)
}

const (
	signingKey      = secret.String("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	otherSigningKey = secret.String("whsec_OtherOtherOtherOtherOtherOtherXX")
)

// A signature covers the id, the time, and the body as it is sent.
func TestSignatures(t *testing.T) {
	const shop = "orders/events?tenant=shop#"
	d := newDouble(t, func(c *Config) {
		c.Tenants = []TenantConfig{
			{Name: "shop", Buses: []string{"orders"}, SigningSecrets: []secret.String{signingKey, otherSigningKey}},
			{Name: "audit", Buses: []string{"*"}, APIKeys: []secret.String{"audit-1"}},
		}
	})
	body := anEvent("A1", "")
	now := time.Now()
	right := signed(t, signingKey, now, body)
	signature := right[5]
	zipped := string(compressed(t, []byte(body)))
	gzip := signed(t, signingKey, now, zipped)
	header := func(name, value string) []string { return with(right, name, value) }
	for name, test := range map[string]struct {
		status  int
		bus     string // with the rest of the path and the parameters
		body    string
		headers []string
	}{
		"right":              {202, shop, body, right},
		"by the other key":   {202, shop, body, signed(t, otherSigningKey, now, body)},
		"two, one of them":   {202, shop, body, header("webhook-signature", "v1,AAAA "+signature)},
		"compressed":         {202, shop, zipped, append(gzip, "Content-Encoding", "gzip")},
		"the body unpacked":  {401, shop, body, append(gzip, "Content-Encoding", "gzip")},
		"another body":       {401, shop, anEvent("A2", ""), right},
		"part of the body":   {401, shop, body[:len(body)-1], right},
		"no body":            {401, shop, "", right},
		"another key":        {401, shop, body, signed(t, "whsec_AnotherAnotherAnotherAnotherAnot", now, body)},
		"too old":            {401, shop, body, signed(t, signingKey, now.Add(-6*time.Minute), body)},
		"from the future":    {401, shop, body, signed(t, signingKey, now.Add(6*time.Minute), body)},
		"another time":       {401, shop, body, header("webhook-timestamp", strconv.FormatInt(now.Unix()+1, 10))},
		"a time with a sign": {401, shop, body, header("webhook-timestamp", "+"+right[3])},
		"no time":            {401, shop, body, header("webhook-timestamp", "")},
		"another id":         {401, shop, body, header("webhook-id", "msg_2")},
		"no id":              {401, shop, body, header("webhook-id", "")},
		"a long id":          {401, shop, body, header("webhook-id", strings.Repeat("x", 257))},
		"no header of an id": {401, shop, body, without(right, "webhook-id")},
		"no tenant":          {401, "orders", body, right},
		"a tenant without":   {401, "orders/events?tenant=audit#", body, right},
		"an unknown tenant":  {401, "orders/events?tenant=x#", body, right},
		"an unknown tenant, a bus that is not there": {401, "none/events?tenant=x#", body, right},
		"a bus of others":    {403, "strict/events?tenant=shop#", body, right},
		"two headers":        {401, shop, body, append(slices.Clone(right), "webhook-signature", signature)},
		"empty":              {401, shop, body, header("webhook-signature", "")},
		"no version":         {401, shop, body, header("webhook-signature", strings.TrimPrefix(signature, "v1,"))},
		"another version":    {401, shop, body, header("webhook-signature", "v1a"+strings.TrimPrefix(signature, "v1"))},
		"too many":           {401, shop, body, header("webhook-signature", strings.Repeat("v1,AAAA ", 8)+signature)},
		"attributes outside": {403, shop, body, append(slices.Clone(right), "ce-id", "1")},
	} {
		before := len(d.stored(orders))
		r := d.post(t, test.bus, text(test.body), append([]string{"Content-Type", event.MediaType}, test.headers...)...)
		assert.Equal(t, test.status, r.status, "%s: %s", name, r.body)
		assert.Equal(t, test.status == http.StatusAccepted, len(d.stored(orders)) > before, name)
		assert.Zero(t, d.budget.Used(), name)
	}
}

// keyring makes keys of each kind.
type keyring map[string]crypto.Signer

func newKeyring(t *testing.T) keyring {
	t.Helper()
	small, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	require.NoError(t, err)
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	return keyring{"RS256": small, "ES256": p256, "ES384": p384, "EdDSA": ed}
}

func (k keyring) pem(t *testing.T, names ...string) []byte {
	t.Helper()
	var out []byte
	for _, name := range names {
		der, err := x509.MarshalPKIXPublicKey(k[name].Public())
		require.NoError(t, err)
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})...)
	}
	return out
}

func (k keyring) webKeys(t *testing.T) []byte {
	t.Helper()
	b64 := func(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
	var keys []map[string]string
	for name, key := range k {
		w := map[string]string{"kid": "key-" + name, "use": "sig", "alg": name}
		switch public := key.Public().(type) {
		case *rsa.PublicKey:
			w["kty"], w["n"], w["e"] = "RSA", b64(public.N.Bytes()), b64(big.NewInt(int64(public.E)).Bytes())
		case *ecdsa.PublicKey:
			point, err := public.Bytes()
			require.NoError(t, err)
			half := len(point) / 2
			w["kty"], w["crv"], w["x"], w["y"] = "EC", public.Curve.Params().Name, b64(point[1:half+1]), b64(point[half+1:])
		case ed25519.PublicKey:
			w["kty"], w["crv"], w["x"] = "OKP", "Ed25519", b64(public)
		}
		keys = append(keys, w)
	}
	keys = append(keys, map[string]string{"kty": "RSA", "use": "enc"},
		// Keys for others, and broken ones, are ignored (RFC 7517, section 5).
		map[string]string{"kty": "oct", "k": "AAAA"}, map[string]string{"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"},
		map[string]string{"kty": "AKP", "alg": "ML-DSA-44", "kid": "later"}, map[string]string{"kty": "RSA", "n": "AQAB", "e": "AQAB"})
	text, err := json.Marshal(map[string]any{"keys": keys})
	require.NoError(t, err)
	return text
}

func (k keyring) token(t *testing.T, name, method, kid string, claims jwt.MapClaims) string {
	t.Helper()
	token := jwt.NewWithClaims(jwt.GetSigningMethod(method), claims)
	if kid == "critical" {
		token.Header["crit"], token.Header["b64"] = []string{"b64"}, true
	} else if kid != "" {
		token.Header["kid"] = kid
	}
	var key any
	if name != "" {
		key = k[name]
	}
	if method == "HS256" { // the confusion of a public key with a shared secret
		key = k.pem(t, "RS256")
	}
	if method == "none" {
		key = jwt.UnsafeAllowNoneSignatureType
	}
	text, err := token.SignedString(key)
	require.NoError(t, err)
	return text
}

// TestJWT: the kind of the key fixes the algorithm; issuer, audience and expiry are asked for.
func TestJWT(t *testing.T) {
	keys, foreign := newKeyring(t), newKeyring(t)
	claims := func(changes ...any) jwt.MapClaims {
		c := jwt.MapClaims{"iss": "https://id", "aud": []string{"other", "aviary"}, "sub": "svc", "exp": time.Now().Add(time.Minute).Unix()}
		for i := 0; i+1 < len(changes); i += 2 {
			name, _ := changes[i].(string)
			if c[name] = changes[i+1]; changes[i+1] == nil {
				delete(c, name)
			}
		}
		return c
	}
	for kind, file := range map[string][]byte{"pem": keys.pem(t, "RS256", "ES256", "ES384", "EdDSA"), "jwks": keys.webKeys(t)} {
		t.Run(kind, func(t *testing.T) {
			path := writeFile(t, "keys", file)
			d := newDouble(t, func(c *Config) {
				c.Tenants = []TenantConfig{
					{Name: "shop", JWT: &JWTConfig{KeyFile: path, Issuer: "https://id", Audience: "aviary"}},
					{Name: "boss", JWT: &JWTConfig{KeyFile: path, Issuer: "https://id", Audience: "aviary", Subject: "boss"}},
				}
			})
			ask := func(token string) (status int, tenant string) {
				r := d.send(t, "A1", "Authorization", "Bearer "+token)
				if r.status == http.StatusAccepted {
					records := d.stored(orders)
					tenant = records[len(records)-1].Properties["tenant"]
				}
				return r.status, tenant
			}
			for name := range keys {
				status, tenant := ask(keys.token(t, name, name, "", claims()))
				assert.Equal(t, http.StatusAccepted, status, name)
				assert.Equal(t, "shop", tenant)
				status, _ = ask(keys.token(t, name, name, "key-"+name, claims()))
				assert.Equal(t, http.StatusAccepted, status, name)
				status, _ = ask(foreign.token(t, name, name, "", claims()))
				assert.Equal(t, http.StatusUnauthorized, status, "another's key")
			}
			status, tenant := ask(keys.token(t, "ES256", "ES256", "", claims("sub", "boss")))
			assert.Equal(t, http.StatusAccepted, status)
			assert.Equal(t, "boss", tenant, "the closest")
			good := keys.token(t, "EdDSA", "EdDSA", "", claims())
			for what, bad := range map[string]string{
				"expired":                keys.token(t, "EdDSA", "EdDSA", "", claims("exp", time.Now().Add(-time.Second).Unix())),
				"without expiry":         keys.token(t, "EdDSA", "EdDSA", "", claims("exp", nil)),
				"not yet":                keys.token(t, "EdDSA", "EdDSA", "", claims("nbf", time.Now().Add(time.Minute).Unix())),
				"another issuer":         keys.token(t, "EdDSA", "EdDSA", "", claims("iss", "https://id2")),
				"no issuer":              keys.token(t, "EdDSA", "EdDSA", "", claims("iss", nil)),
				"another audience":       keys.token(t, "EdDSA", "EdDSA", "", claims("aud", "aviary2")),
				"no audience":            keys.token(t, "EdDSA", "EdDSA", "", claims("aud", nil)),
				"the key as a secret":    keys.token(t, "", "HS256", "", claims()),
				"no signature":           keys.token(t, "", "none", "", claims()),
				"signature of another":   good[:strings.LastIndexByte(good, '.')] + ".AAAA",
				"changed claims":         strings.Replace(good, ".", ".e30", 1),
				"too long":               good + strings.Repeat("A", maxToken),
				"padding":                good + "=",
				"a critical extension":   keys.token(t, "EdDSA", "EdDSA", "critical", claims()),
				"a wrong expiry":         keys.token(t, "EdDSA", "EdDSA", "", claims("exp", "soon")),
				"only dots":              "..",
				"not base64":             "!.!.!",
				"a header of two things": base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"EdDSA"}{}`)) + good[strings.IndexByte(good, '.'):],
			} {
				status, _ := ask(bad)
				assert.Equal(t, http.StatusUnauthorized, status, what)
			}
			if kind == "jwks" {
				status, _ := ask(keys.token(t, "RS256", "PS256", "key-RS256", claims()))
				assert.Equal(t, http.StatusUnauthorized, status, "the key is for another algorithm")
				status, _ = ask(keys.token(t, "ES256", "ES256", "key-RS256", claims()))
				assert.Equal(t, http.StatusUnauthorized, status, "the name of another key")
			}
			// Keys change while the service runs.
			require.NoError(t, os.WriteFile(path, foreign.pem(t, "EdDSA"), 0o600))
			for _, k := range d.senders.Load().jwts {
				k.refresh.Expire()
			}
			status, _ = ask(good)
			assert.Equal(t, http.StatusUnauthorized, status)
			status, _ = ask(foreign.token(t, "EdDSA", "EdDSA", "", claims()))
			assert.Equal(t, http.StatusAccepted, status)
			require.NoError(t, os.WriteFile(path, []byte("broken"), 0o600))
			for _, k := range d.senders.Load().jwts {
				k.refresh.Expire()
			}
			status, _ = ask(foreign.token(t, "EdDSA", "EdDSA", "", claims()))
			assert.Equal(t, http.StatusAccepted, status, "what was read before stays")
		})
	}
}

// TestATokenIsOfOneTenant: its claims choose the tenant, and only that tenant's keys count.
func TestATokenIsOfOneTenant(t *testing.T) {
	keys := newKeyring(t)
	// Each tenant has a key of its own kind.
	tenant := func(name, key, audience, subject string) TenantConfig {
		return TenantConfig{Name: name, JWT: &JWTConfig{KeyFile: writeFile(t, "keys", keys.pem(t, key)), Issuer: "https://id", Audience: audience, Subject: subject}}
	}
	d := newDouble(t, func(c *Config) {
		c.Tenants = []TenantConfig{
			tenant("any", "ES256", "one", ""), tenant("boss", "ES384", "one", "boss"),
			tenant("second", "EdDSA", "two", ""), tenant("clerk", "RS256", "two", "clerk"),
		}
	})
	for _, test := range []struct {
		key      string
		audience []string
		subject  string
		tenant   string // empty: 401
	}{
		{"ES256", []string{"one"}, "x", "any"},
		{"ES384", []string{"one"}, "boss", "boss"},
		{"ES256", []string{"one"}, "boss", ""}, // a token of any's keys that claims to be boss
		{"ES384", []string{"one"}, "x", ""},
		{"EdDSA", []string{"two"}, "x", "second"},
		{"ES256", []string{"two", "one"}, "x", "any"}, // the first in the configuration
		{"EdDSA", []string{"two", "one"}, "x", ""},
		{"RS256", []string{"one", "two"}, "clerk", "clerk"}, // a subject comes before any
		{"ES256", []string{"one", "two"}, "clerk", ""},
		{"EdDSA", []string{"one", "two"}, "clerk", ""},
	} {
		before := len(d.stored(orders))
		token := keys.token(t, test.key, test.key, "", jwt.MapClaims{"iss": "https://id", "aud": test.audience, "sub": test.subject, "exp": time.Now().Add(time.Minute).Unix()})
		r := d.send(t, "A1", "Authorization", "Bearer "+token)
		if test.tenant == "" {
			assert.Equal(t, http.StatusUnauthorized, r.status, "%+v", test)
			continue
		}
		require.Equal(t, http.StatusAccepted, r.status, "%+v: %s", test, r.body)
		assert.Equal(t, test.tenant, d.stored(orders)[before].Properties["tenant"], "%+v", test)
	}
}

// TestKeyFilesThatCannotBeUsed: each says why.
func TestKeyFilesThatCannotBeUsed(t *testing.T) {
	tiny, err := rsa.GenerateKey(rand.Reader, 1024) // too small on purpose
	if err == nil {
		der, err := x509.MarshalPKIXPublicKey(tiny.Public())
		require.NoError(t, err)
		_, err = readKeys(writeFile(t, "tiny", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})))
		require.ErrorContains(t, err, "2048")
	}
	for text, want := range map[string]string{
		"": "no public key", "hello": "no public key", "{}": "no public key", `{"keys":[]}`: "no public key", `[]`: "no JSON Web Key Set",
		`{"keys":[{"kty":"oct","k":"AAAA"}]}`:                                                                               "public keys only",
		`{"keys":[{"kty":"EC","crv":"P-224","x":"AA","y":"AA"}]}`:                                                           "unsupported key type",
		`{"keys":[{"kty":"EC","crv":"P-256","x":"AA","y":"AA"}]}`:                                                           "wrong length for x",
		`{"keys":[{"kty":"EC","crv":"P-256","x":"` + strings.Repeat("A", 43) + `","y":"` + strings.Repeat("A", 43) + `"}]}`: "not on declared curve",
		`{"keys":[{"kty":"RSA","n":"!","e":"AQAB"}]}`:                                                                       "illegal base64",
		`{"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB"}]}`:                                                                    "2048",
		`{"keys":[{"kty":"OKP","crv":"X25519","x":"AA"}]}`:                                                                  "unsupported key type",
		"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n":                                                    "a public key is needed",
		"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n":                                                      "asn1",
	} {
		_, err := readKeys(writeFile(t, "keys", []byte(text)))
		assert.ErrorContains(t, err, want, text)
	}
	_, err = readKeys(filepath.Join(t.TempDir(), "none"))
	assert.Error(t, err)
}

// TestConfigFaults: all of them, by their keys.
func TestConfigFaults(t *testing.T) {
	cfg := DefaultConfig()
	require.Empty(t, config.Validate(cfg))
	cfg.RequestTimeout = 0
	cfg.Profile.BatchRecords = 2001
	cfg.Profile.Admission, cfg.Profile.Routing = messaging.FailFast, messaging.RouteRoundRobin
	cfg.Limits.BatchEvents, cfg.Limits.InFlightBytes, cfg.Limits.InFlightShare = 3000, config.MiB, 2
	cfg.Limits.Hops, cfg.Limits.Connections = -1, -1
	jwks := &JWTConfig{Issuer: "i", Audience: "a", KeyFile: "/none"}
	cfg.Tenants = []TenantConfig{
		{Name: "bus-free", Buses: []string{}, APIKeys: []secret.String{"other"}, SigningSecrets: []secret.String{signingKey, signingKey}},
		{Name: "signs", Buses: []string{"*"}, SigningSecrets: []secret.String{otherSigningKey, signingKey}},
		{Name: "Bad", APIKeys: []secret.String{"same"}, Buses: []string{"*", "a*", "b", "B", "a*b", ""}},
		{Name: "ok", Buses: []string{"*"}},
		{Name: "ok", Buses: []string{"*"}, APIKeys: []secret.String{"same", " "}, SigningSecrets: []secret.String{"short"}, JWT: jwks, Quota: Quota{EventsPerSecond: -1, EventsBurst: -1, BytesBurst: 1}},
		{Name: "twin", Buses: []string{"*"}, JWT: jwks},
		{Name: "empty", Buses: []string{"*"}, JWT: &JWTConfig{Leeway: time.Hour}},
	}
	var got []string
	for _, fault := range config.Validate(cfg) {
		got = append(got, fault.Path)
		assert.NotContains(t, fault.Error(), "same")
		assert.NotContains(t, fault.Error(), "MfKQ9r")
	}
	assert.ElementsMatch(t, []string{
		"request_timeout", "profile.batch_records", "profile.admission", "profile.routing", "limits.batch_events", "limits.hops", "limits.connections", "limits.in_flight_share", "limits.in_flight_bytes",
		"tenants[0].buses", "tenants[1].signing_secrets[1]",
		"tenants[2].name", "tenants[2].buses[3]", "tenants[2].buses[4]", "tenants[2].buses[5]", "tenants[3]", "tenants[4].name", "tenants[4].api_keys[1]",
		"tenants[4].signing_secrets[0]", "tenants[4].quota.events_per_second", "tenants[4].quota.events_burst", "tenants[4].quota.bytes_burst",
		"tenants[5].jwt", "tenants[6].jwt.key_file", "tenants[6].jwt.issuer", "tenants[6].jwt.audience", "tenants[6].jwt.leeway",
	}, got)
	require.ErrorContains(t, cfg.CheckFiles(), "ingest.tenants[4].api_keys[0]: is also a token of ingest.tenants[2].api_keys[0]")
	one := DefaultConfig()
	one.Tenants = []TenantConfig{{Name: "a", Buses: []string{"*"}, JWT: jwks}, {Name: "b", Buses: []string{"*"}, APIKeyFile: "/none"}}
	err := one.CheckFiles()
	require.ErrorContains(t, err, "ingest.tenants[1].api_key_file")
	one.Tenants = one.Tenants[:1]
	require.ErrorContains(t, one.CheckFiles(), "ingest.tenants[0].jwt.key_file")
}
