package ingest

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/httpserver/bearer"
)

// JWTConfig says which JSON Web Tokens (RFC 7519) belong to a tenant.
type JWTConfig struct {
	// KeyFile has the public keys, in PEM or as a JSON Web Key Set (RFC 7517): RSA of 2048 to
	// 4096 bits, P-256, P-384 or Ed25519. The kind of a key fixes the algorithm: RS256 or PS256, ES256,
	// ES384, EdDSA. Of a set, keys of other kinds are ignored. The file is read again every ten
	// seconds.
	KeyFile string `yaml:"key_file"`
	// Issuer is the required value of the claim iss. Must be set.
	Issuer string `yaml:"issuer"`
	// Audience is the required value of the claim aud. Must be set.
	Audience string `yaml:"audience"`
	// Subject is the required value of the claim sub. Default: any that no other tenant of this
	// issuer and audience has.
	Subject string `yaml:"subject"`
	// Leeway is how far the clocks may differ for exp and nbf. A token without exp is refused.
	// Default 0.
	Leeway time.Duration `yaml:"leeway"`
}

// Validate returns every fault of the keys.
func (c JWTConfig) Validate() error {
	return errors.Join(
		config.Require(c.KeyFile != "", "key_file", "must be set"),
		config.Require(c.Issuer != "", "issuer", "must be set"),
		config.Require(c.Audience != "", "audience", "must be set"),
		config.CheckRange("leeway", c.Leeway, 0, 5*time.Minute))
}

// maxToken bounds the length of a token.
const maxToken = 8 << 10

// jwtKeys are the keys of one tenant's tokens.
type jwtKeys struct {
	log       *zap.Logger
	tenant    string
	cfg       JWTConfig
	path      string // of key_file in the configuration
	validator *jwt.Validator
	known     atomic.Pointer[[]publicKey]
	refresh   bearer.FileRefresh
}

func newJWTKeys(log *zap.Logger, tenant string, c JWTConfig, path string) (*jwtKeys, error) {
	k := &jwtKeys{log: log, tenant: tenant, cfg: c, path: path, validator: jwt.NewValidator(jwt.WithExpirationRequired(), jwt.WithLeeway(c.Leeway))}
	k.refresh.MarkDone()
	return k, k.read()
}

func (k *jwtKeys) read() error {
	keys, err := readKeys(k.cfg.KeyFile)
	if err != nil {
		return config.Fault(k.path, "%v", err)
	}
	k.known.Store(&keys)
	return nil
}

// current returns the keys. It reads the file again if that is due.
func (k *jwtKeys) current() []publicKey {
	k.refresh.Do(func() {
		if err := k.read(); err != nil {
			k.log.Warn("cannot reload the keys of tokens: the previous keys stay in use", zap.Error(err))
		}
	})
	return *k.known.Load()
}

// byJWT returns the tenant of a token. The token's claims choose the tenant, and only that tenant's
// keys can verify the token. The answer says that a token has expired only if its signature is
// valid.
func (s *senders) byJWT(text string) (tenant string, err error) {
	if len(text) > maxToken {
		return "", unauthorized(invalidKey)
	}
	var claims jwt.RegisteredClaims
	var chosen *jwtKeys
	parser := jwt.NewParser(jwt.WithStrictDecoding(), jwt.WithoutClaimsValidation(), jwt.WithValidMethods([]string{"RS256", "PS256", "ES256", "ES384", "EdDSA"}))
	_, err = parser.ParseWithClaims(text, &claims, func(t *jwt.Token) (any, error) {
		if chosen = s.claimed(&claims); chosen == nil {
			return nil, errNoKey
		}
		return chosen.find(t)
	})
	if err == nil {
		err = chosen.validator.Validate(&claims)
	}
	switch {
	case errors.Is(err, jwt.ErrTokenExpired):
		return "", unauthorized("the token has expired")
	case err != nil:
		return "", unauthorized(invalidKey)
	}
	return chosen.tenant, nil
}

// claimed returns the tenant with the issuer, the audience and the subject that a token claims. If
// there is none, it returns the tenant for any subject, the first in the configuration; nil if
// there is none either.
func (s *senders) claimed(c *jwt.RegisteredClaims) *jwtKeys {
	var chosen *jwtKeys
	for _, k := range s.jwts {
		if c.Issuer != k.cfg.Issuer || !slices.Contains(c.Audience, k.cfg.Audience) {
			continue
		}
		if k.cfg.Subject != "" && k.cfg.Subject == c.Subject {
			return k
		}
		if k.cfg.Subject == "" && chosen == nil {
			chosen = k
		}
	}
	return chosen
}

var errNoKey = errors.New("no key for the token")

// mostKeys is how many keys are tried for a token whose kid does not single one out: the former and
// the new one while keys change. Each costs a verification, and anybody can send a token that claims
// a tenant's issuer and audience.
const mostKeys = 2

// find returns the keys that a token may be signed with: keys of its algorithm, with its kid if
// both have one. There is none for a token with critical extensions, because none is supported (RFC
// 7515, section 4.1.11).
func (k *jwtKeys) find(t *jwt.Token) (any, error) {
	_, critical := t.Header["crit"]
	id, _ := t.Header["kid"].(string)
	var set jwt.VerificationKeySet
	for _, known := range k.current() {
		if (known.id == "" || id == "" || known.id == id) && slices.Contains(known.algorithms, t.Method.Alg()) && len(set.Keys) < mostKeys {
			set.Keys = append(set.Keys, known.key)
		}
	}
	if critical || len(set.Keys) == 0 {
		return nil, errNoKey
	}
	return set, nil
}
