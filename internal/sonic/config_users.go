package sonic

import (
	"errors"
	"fmt"
	"strings"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/access"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// User is a user that may log in with AUTH or HELLO.
type User struct {
	// Name of the user. AUTH with a password alone logs in as "default".
	Name string `yaml:"name"`
	// Password is the user's password. PasswordFile is a file that holds it. One of the two is
	// required. Sonic reads the file at the start and at SIGHUP.
	Password     secret.String `yaml:"password"`
	PasswordFile string        `yaml:"password_file"`
	// ReadOnly makes Sonic refuse commands of this user that write. Default false.
	ReadOnly bool `yaml:"read_only"`
	// Keys are prefixes: commands of the user may name only keys that begin with one of these
	// prefixes. Default: none, all keys.
	Keys []string `yaml:"keys"`
}

// Validate returns every fault of the entry.
func (u User) Validate() error {
	var errs []error
	fault := func(path, format string, args ...any) { errs = append(errs, config.Fault(path, format, args...)) }
	if u.Name == "" || strings.ContainsAny(u.Name, " \t\r\n\x00") {
		fault("name", "must be a name without white space, got %q", u.Name)
	}
	switch password, err := secret.Resolve(u.Password, u.PasswordFile); {
	case err != nil:
		fault("password_file", "%s", err)
	case password == "":
		fault("password", "must be set, or password_file")
	}
	for i, prefix := range u.Keys {
		path := fmt.Sprintf("keys[%d]", i)
		if prefix == "" {
			fault(path, "must not be empty: without keys the user may name all of them")
		}
		if strings.HasPrefix(prefix, statePrefix) {
			fault(path, "must not begin with %s, which begins the names of Sonic's own keys, got %q", statePrefix, prefix)
		}
	}
	return errors.Join(errs...)
}

// checkUsers returns a fault for each name that occurs twice.
func checkUsers(users []User) error {
	var errs []error
	first := map[string]int{}
	for i, u := range users {
		if j, taken := first[u.Name]; taken {
			errs = append(errs, config.Fault(fmt.Sprintf("users[%d].name", i), "must be unique, %q is that of users[%d] too", u.Name, j))
			continue
		}
		first[u.Name] = i
	}
	return errors.Join(errs...)
}

// users returns the users of the proxy, with their passwords.
func (c Config) users() ([]access.User, error) {
	var users []access.User
	for i, u := range c.Users {
		password, err := secret.Resolve(u.Password, u.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("users[%d]: %w", i, err)
		}
		user := access.User{Name: u.Name, Password: password.Reveal(), ReadOnly: u.ReadOnly}
		if len(u.Keys) > 0 {
			user.Keys = u.Keys
		}
		users = append(users, user)
	}
	return users, nil
}
