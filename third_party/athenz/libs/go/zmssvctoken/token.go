// Package zmssvctoken has the names that the client of Pulsar refers to. Aviary does not offer
// Athenz.
package zmssvctoken

import "errors"

// ErrNotBuilt is the error of everything here.
var ErrNotBuilt = errors.New("athenz is not built into Aviary")

// Token is a token of a service.
type Token interface {
	Value() (string, error)
}

// TokenBuilder makes tokens.
type TokenBuilder interface {
	SetExpiration(t int64)
	Token() Token
}

// NewTokenBuilder returns ErrNotBuilt.
func NewTokenBuilder(_, _ string, _ []byte, _ string) (TokenBuilder, error) {
	return nil, ErrNotBuilt
}
