package ingest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"errors"
	"fmt"
	"slices"
	"strings"
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
	// Issuer and Audience are what the claims iss and aud must have. Required.
	Issuer   string `yaml:"issuer"`
	Audience string `yaml:"audience"`
	// Subject is what the claim sub must be. Default: any that no other tenant of this issuer and
	// audience has.
	Subject string `yaml:"subject"`
	// Leeway is how far the clocks may differ for exp and nbf. A token without exp is refused.
	// Default 0.
	Leeway time.Duration `yaml:"leeway"`
}

// Validate returns every fault of the keys.
func (c JWTConfig) Validate() error {
	var errs []error
	for key, value := range map[string]string{"key_file": c.KeyFile, "issuer": c.Issuer, "audience": c.Audience} {
		if value == "" {
			errs = append(errs, config.Fault(key, "must be set"))
		}
	}
	if c.Leeway < 0 || c.Leeway > 5*time.Minute {
		errs = append(errs, config.Fault("leeway", "must be from 0 to 5m, got %s", c.Leeway))
	}
	return errors.Join(errs...)
}

// maxToken bounds the length of a token.
const maxToken = 8 << 10

// jwtKeys are the keys of one tenant's tokens.
type jwtKeys struct {
	log       *zap.Logger
	tenant    string
	cfg       JWTConfig
	key       string // the key in the configuration
	validator *jwt.Validator
	known     atomic.Pointer[[]publicKey]
	again     bearer.FileRefresh
}

// publicKey is a key, its ID and the algorithms that it may be used with.
type publicKey struct {
	id         string // empty for none
	algorithms []string
	key        crypto.PublicKey
}

func newJWTKeys(log *zap.Logger, tenant string, c JWTConfig, key string) (*jwtKeys, error) {
	k := &jwtKeys{log: log, tenant: tenant, cfg: c, key: key, validator: jwt.NewValidator(jwt.WithExpirationRequired(), jwt.WithLeeway(c.Leeway))}
	k.again.MarkDone()
	return k, k.read()
}

func (k *jwtKeys) read() error {
	keys, err := readKeys(k.cfg.KeyFile)
	if err != nil {
		return config.Fault(k.key, "%v", err)
	}
	k.known.Store(&keys)
	return nil
}

func (k *jwtKeys) keys() []publicKey {
	k.again.Do(func() {
		if err := k.read(); err != nil {
			k.log.Warn("cannot read the keys of tokens again, the previous ones stay in use", zap.Error(err))
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
	if err != nil {
		return "", unauthorized(invalidKey)
	}
	switch err := chosen.validator.Validate(&claims); {
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

var (
	errNoKey    = errors.New("no key for the token")
	errCritical = errors.New("the token has extensions that must be understood")
)

// mostKeys is how many keys are tried for a token whose kid does not single one out: the former and
// the new one while keys change. Each costs a verification, and anybody can send a token that claims
// a tenant's issuer and audience.
const mostKeys = 2

// find returns the keys that a token may be signed with: keys of its algorithm, with its kid if
// both have one.
func (k *jwtKeys) find(t *jwt.Token) (any, error) {
	if _, critical := t.Header["crit"]; critical { // none is understood here (RFC 7515, section 4.1.11)
		return nil, errCritical
	}
	id, _ := t.Header["kid"].(string)
	var set jwt.VerificationKeySet
	for _, known := range k.keys() {
		if known.id != "" && id != "" && known.id != id {
			continue
		}
		if slices.Contains(known.algorithms, t.Method.Alg()) && len(set.Keys) < mostKeys {
			set.Keys = append(set.Keys, known.key)
		}
	}
	if len(set.Keys) == 0 {
		return nil, errNoKey
	}
	return set, nil
}

// newPublicKey sets the algorithms by the kind of the key.
func newPublicKey(id string, key crypto.PublicKey) (publicKey, error) {
	p := publicKey{id: id, key: key}
	switch k := key.(type) {
	case *rsa.PublicKey:
		if k.N.BitLen() < 2048 || k.N.BitLen() > 4096 || k.E < 3 {
			return p, fmt.Errorf("an RSA key must have 2048 to 4096 bits, got %d", k.N.BitLen())
		}
		p.algorithms = []string{"RS256", "PS256"}
	case *ecdsa.PublicKey:
		switch bits := k.Curve.Params().BitSize; bits {
		case 256, 384:
			p.algorithms = []string{fmt.Sprintf("ES%d", bits)}
		default: // P-521 takes milliseconds to verify, also for strangers
			return p, fmt.Errorf("the curve of %d bits is not supported", bits)
		}
	case ed25519.PublicKey:
		p.algorithms = []string{"EdDSA"}
	default:
		return p, fmt.Errorf("a key of the type %s is not supported", strings.TrimPrefix(fmt.Sprintf("%T", key), "*"))
	}
	return p, nil
}
