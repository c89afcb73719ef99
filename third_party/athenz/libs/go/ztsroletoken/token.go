// Package ztsroletoken has the names that the client of Pulsar refers to. Aviary does not offer
// Athenz.
package ztsroletoken

import (
	"time"

	"github.com/AthenZ/athenz/libs/go/zmssvctoken"
)

// RoleToken is a token of a role.
type RoleToken interface {
	StartPrefetcher() error
	StopPrefetcher() error
	RoleTokenValue() (string, error)
}

// RoleTokenOptions are what the client sets.
type RoleTokenOptions struct {
	BaseZTSURL, ProxyURL, Role, AuthHeader string
	MinExpire, MaxExpire, PrefetchInterval time.Duration
	CACert                                 []byte
	CertFile, KeyFile                      string
}

// NewRoleToken returns a token whose every method fails.
func NewRoleToken(zmssvctoken.Token, string, RoleTokenOptions) RoleToken { return refused{} }

// NewRoleTokenFromCert returns a token whose every method fails.
func NewRoleTokenFromCert(_, _, _ string, _ RoleTokenOptions) RoleToken { return refused{} }

type refused struct{}

func (refused) StartPrefetcher() error          { return zmssvctoken.ErrNotBuilt }
func (refused) StopPrefetcher() error           { return zmssvctoken.ErrNotBuilt }
func (refused) RoleTokenValue() (string, error) { return "", zmssvctoken.ErrNotBuilt }
