// Package access decides who may log in, and which commands and keys a user may use. It may not
// import the other packages of the proxy.
package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"strings"

	"github.com/aviaryhq/aviary/internal/sonic/command"
)

// Users are the accounts that may log in. A Users value never changes: SetUsers replaces it.
type Users struct {
	ByName  map[string]*Account
	Initial *Account // of clients that have not logged in; nil when they must
}

// NewUsers returns the accounts of a configuration. An empty configuration has one account,
// "default", that needs no password.
func NewUsers(list []User) *Users {
	all := &Users{ByName: make(map[string]*Account, len(list))}
	for _, u := range list {
		all.ByName[u.Name] = &Account{Name: u.Name, password: sha256.Sum256([]byte(u.Password)), ReadOnly: u.ReadOnly, Keys: u.Keys}
	}
	if len(list) == 0 {
		all.Initial = &Account{Name: "default", Open: true}
		all.ByName["default"] = all.Initial
	}
	return all
}

// User is the configuration of a user who may log in with AUTH or HELLO.
type User struct {
	// Name of the user. AUTH with a password only logs in as "default".
	Name     string
	Password string
	// ReadOnly refuses writes.
	ReadOnly bool
	// Keys are prefixes: the user may name only keys that begin with one of them. Default: none,
	// all keys.
	Keys []string
}

// Account is a user that a client has logged in as.
type Account struct {
	Name     string
	password [sha256.Size]byte
	Open     bool // it needs no password
	ReadOnly bool
	Keys     []string
}

// Accepts reports whether the password is right.
func (u *Account) Accepts(password []byte) bool {
	given := sha256.Sum256(password)
	return u.Open || subtle.ConstantTimeCompare(given[:], u.password[:]) == 1
}

// MayUseKey reports whether a command of the account may name a key.
func (u *Account) MayUseKey(key []byte) bool {
	if u.Keys == nil {
		return true
	}
	for _, prefix := range u.Keys {
		if strings.HasPrefix(string(key), prefix) {
			return true
		}
	}
	return false
}

// MayRun reports whether the account may run a command, without regard to its keys.
func (u *Account) MayRun(cmd *command.Command) bool {
	if u.ReadOnly && cmd.Changes {
		return false
	}
	if u.Keys == nil {
		return true
	}
	// For Redis all commands come from Sonic's own user. So Redis cannot prevent a script from
	// using keys that this account may not use.
	if cmd.Class == command.Write && !cmd.HasKeys() { // it writes all keys
		return false
	}
	return cmd.Group != "scripting"
}
